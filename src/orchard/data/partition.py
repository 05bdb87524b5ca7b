"""Who holds what: a matrix, classes × clients, of shares of each class.

The same matrix cuts training and test data, so that a client is tested on what it trains for. The two splits
of the paper are drawn with NumPy's legacy generator, in the order of the published code, and reproduce it.
"""

import numpy as np
from numpy.typing import NDArray

from orchard.errors import Refusal
from orchard.experiment import IID, Column, Dirichlet, Given, PartitionSettings, Pathological, Practical
from orchard.randomness import generator

Matrix = NDArray[np.float64]
Indices = NDArray[np.int64]

PATHOLOGICAL_CLASSES = 2
REDRAWS = 1000


def partition_matrix(partition: PartitionSettings, classes: int, clients: int) -> Matrix:
    """Return each client's share (columns) of each class (rows)."""
    match partition:
        case Pathological():
            return _pathological(partition, classes, clients)
        case Practical():
            return _practical(partition, classes, clients)
        case Dirichlet():
            draw = generator(partition.seed, "dirichlet")
            return draw.dirichlet(np.full(clients, partition.alpha), size=classes)
        case IID():
            return np.full((classes, clients), np.nextafter(1 / clients, 1))  # so that n/N whole samples stay whole
        case Column() | Given():
            raise TypeError("data that come with their owners are not dealt out by shares")


def _pathological(partition: Pathological, classes: int, clients: int) -> Matrix:
    draw = np.random.RandomState(partition.seed)
    pairs = _class_pairs(draw, classes, clients)
    for _ in range(REDRAWS):
        if not (partition.strict and (pairs[:, 0] == pairs[:, 1]).any()):
            break
        pairs = _class_pairs(draw, classes, clients)
    else:
        raise Refusal(f"partition.strict: no draw gives {clients} clients two different of {classes} classes each")
    matrix = np.zeros((classes, clients))
    for k in range(classes):
        holders = np.flatnonzero((pairs == k).any(axis=1))
        shares = draw.uniform(size=len(holders))
        matrix[k, holders] = shares / shares.sum()
    return matrix


def _class_pairs(draw: np.random.RandomState, classes: int, clients: int) -> Indices:
    """Deal two classes to each client from shuffles of the class list, laid end to end."""
    entries = PATHOLOGICAL_CLASSES * clients
    shuffles = [draw.permutation(classes) for _ in range(-(-entries // classes))]
    return np.concatenate(shuffles)[:entries].reshape(clients, PATHOLOGICAL_CLASSES)


def _practical(partition: Practical, classes: int, clients: int) -> Matrix:
    draw = np.random.RandomState(partition.seed)
    shares = np.array([0.01] * (clients - 2) + [0.1, 0.8]) if clients > 1 else np.ones(1)
    if clients != 12:  # with twelve, the paper's number, the shares are whole as they stand
        shares /= shares.sum()
    matrix = np.empty((classes, clients))
    for k in range(classes):
        draw.shuffle(shares)  # the last class's order is shuffled on, as in the published code
        matrix[k] = shares
    return matrix


def assign(labels: Indices, matrix: Matrix, seed: int, purpose: str) -> list[Indices]:
    """Return the indices of each client's samples; what does not divide evenly is left out."""
    parts: list[list[Indices]] = [[] for _ in range(matrix.shape[1])]
    for k, shares in enumerate(matrix):
        order = generator(seed, purpose, k).permutation(np.flatnonzero(labels == k))
        ends = np.cumsum((shares * len(order)).astype(np.int64))
        for part, piece in zip(parts, np.split(order, ends)[:-1], strict=True):
            part.append(piece)
    return [np.concatenate(part) for part in parts]


def keep_fraction(labels: Indices, fraction: float, seed: int) -> Indices:
    """Return the indices of a random share of every class."""
    kept = [generator(seed, "fraction", int(k)).permutation(np.flatnonzero(labels == k)) for k in np.unique(labels)]
    return np.sort(np.concatenate([order[: int(fraction * len(order))] for order in kept]))
