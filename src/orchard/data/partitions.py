"""Partitions: a matrix of classes × clients says which share of each class each client holds.

The same matrix divides training and test data, so a client is tested on the classes that it trains on. The paper's two
splits are drawn with NumPy's legacy generator in the order of the published code, which they reproduce.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator

from orchard.errors import UserError
from orchard.randomness import generator
from orchard.settings import Settings, checked, named
from orchard.text import nearest

Matrix = NDArray[np.float64]
Indices = NDArray[np.int64]

PATHOLOGICAL_CLASSES = 2
REDRAWS = 1000


class Ownership(Settings):
    """What all partitions share: a seed of their own, independent of the training seed."""

    seed: int = Field(default=42, ge=0, lt=2**32, description="of who holds what; that of the training is another")


class Pathological(Ownership):
    """Every client holds two classes."""

    name: Literal["pathological"] = "pathological"
    strict: bool = Field(default=False, description="redraw until no client gets the same class twice")


class Practical(Ownership):
    """Every client holds every class: one client 80 % of it, another 10 %, the others 1 % each."""

    name: Literal["practical"] = "practical"


class Dirichlet(Ownership):
    """The shares of each class are drawn from a symmetric Dirichlet distribution."""

    name: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(default=0.5, gt=0, allow_inf_nan=False, description="the smaller, the more clients differ")


class IID(Ownership):
    """Every client holds the same share of every class."""

    name: Literal["iid"] = "iid"


class Column(Ownership):
    """An array beside the samples, ``<key>_train`` and so on, names the owner of each sample."""

    name: Literal["column"] = "column"
    key: str = Field(description="the name of the column of owners")

    @model_validator(mode="before")
    @classmethod
    def _check_key(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and "key" not in values:
            raise ValueError("key: is missing; name the column of owners, e.g. --set partition.key=hospital")
        return values


class Natural(Ownership):
    """Each client holds what one source collected: the digits of one writer's form, the patients of one hospital."""

    name: Literal["writers", "hospitals"] = "writers"


class Given(Ownership):
    """The data come client by client and are not divided further."""

    name: Literal["given"] = "given"


PartitionSettings = Pathological | Practical | Dirichlet | IID | Column | Natural | Given
PARTITIONS: Mapping[str, type[PartitionSettings]] = {
    name: kind
    for kind in (Pathological, Practical, Dirichlet, IID, Column, Natural, Given)
    for name in get_args(kind.model_fields["name"].annotation)
}


def _partition(value: object) -> object:
    value = named(value)
    if isinstance(value, PartitionSettings):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"name = {value!r}: expected the name of a partition, or a table of its settings")
    name = str(value.get("name", ""))
    if name not in PARTITIONS:
        raise ValueError(f"name = {name!r}: unknown; {nearest(name, list(PARTITIONS))}")
    return checked(PARTITIONS[name], dict(value))


Partition = Annotated[PartitionSettings, BeforeValidator(_partition)]


def column_key(partition: object) -> str | None:
    """Return the name of the column of owners, of a partition or of a table of its settings; None if it has none."""
    key = partition.get("key") if isinstance(partition, Mapping) else getattr(partition, "key", None)
    return key if isinstance(key, str) else None


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
            share = np.nextafter(1 / clients, 1)  # rounded up, so that truncating n/N does not lose a sample
            return np.full((classes, clients), share)
        case Column() | Natural() | Given():
            raise TypeError("data that come with their owners have no matrix of shares")


def _pathological(partition: Pathological, classes: int, clients: int) -> Matrix:
    draw = np.random.RandomState(partition.seed)
    pairs = _class_pairs(draw, classes, clients)
    for _ in range(REDRAWS):
        if not (partition.strict and (pairs[:, 0] == pairs[:, 1]).any()):
            break
        pairs = _class_pairs(draw, classes, clients)
    else:
        raise UserError(
            f"partition.strict: found no draw that gives each of {clients} clients two different classes "
            f"out of {classes}; set partition.strict = false"
        )
    matrix = np.zeros((classes, clients))
    for k in range(classes):
        holders = np.flatnonzero((pairs == k).any(axis=1))
        shares = draw.uniform(size=len(holders))
        matrix[k, holders] = shares / shares.sum()
    return matrix


def _class_pairs(draw: np.random.RandomState, classes: int, clients: int) -> Indices:
    """Concatenate shuffled lists of all classes, and give each client the next two."""
    entries = PATHOLOGICAL_CLASSES * clients
    shuffles = [draw.permutation(classes) for _ in range(-(-entries // classes))]
    return np.concatenate(shuffles)[:entries].reshape(clients, PATHOLOGICAL_CLASSES)


def _practical(partition: Practical, classes: int, clients: int) -> Matrix:
    draw = np.random.RandomState(partition.seed)
    shares = np.array([0.01] * (clients - 2) + [0.1, 0.8]) if clients > 1 else np.ones(1)
    if clients != 12:  # with twelve clients, as in the paper, they sum to 1 as they are
        shares /= shares.sum()
    matrix = np.empty((classes, clients))
    for k in range(classes):
        draw.shuffle(shares)  # starts from the order of the class before, as in the published code
        matrix[k] = shares
    return matrix


def assign(labels: Indices, matrix: Matrix, seed: int, purpose: str) -> list[Indices]:
    """Return the indices of each client's samples; samples that do not divide evenly are left out."""
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
