"""Federations to run: random images of MNIST's shape, dealt out in the sizes of the practical split."""

import numpy as np

from orchard.data import ClientArrays
from orchard.data.partition import partition_matrix
from orchard.experiment import Practical

CLIENTS = 12


def practical_sizes(total: int) -> list[int]:
    """Return the clients' numbers of training images in the paper's practical split of ten equal classes."""
    return [int(total * share) for share in partition_matrix(Practical(), 10, CLIENTS).mean(axis=0)]


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
