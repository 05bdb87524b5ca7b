"""Federations to run: images of MNIST's shape, random ones or dealt out as in the practical split."""

import numpy as np

from orchard.data import ClientArrays
from orchard.data.partition import partition_matrix
from orchard.experiment import Practical

CLIENTS = 12


def random_images(sizes: list[int], tests: float = 1 / 6) -> list[ClientArrays]:
    """Return clients with so many training images each, and MNIST's share of test images."""
    draw = np.random.default_rng(0)
    arrays = []
    for size in sizes:
        n = size + max(10, int(size * tests))
        x, y = draw.integers(256, size=(n, 28, 28), dtype=np.uint8), draw.integers(10, size=n)
        y[:10] = y[-10:] = np.arange(10)
        arrays.append(ClientArrays(x[:size], y[:size], x[size:], y[size:]))
    return arrays


def practical_images(total: int, tests: float = 1 / 6) -> list[ClientArrays]:
    """Return the clients of the practical split of ten classes, whose images are noisy views of one image a class."""
    draw = np.random.default_rng(0)
    faces = draw.integers(256, size=(10, 28, 28))

    def views(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y = draw.permutation(np.repeat(np.arange(10), counts))
        return ((faces[y] + 4 * draw.integers(256, size=(len(y), 28, 28))) // 5).astype(np.uint8), y

    arrays = []
    for shares in partition_matrix(Practical(), 10, CLIENTS).T:
        counts = (total / 10 * shares).astype(int)
        arrays.append(ClientArrays(*views(counts), *views(np.ceil(tests * counts).astype(int))))
    return arrays
