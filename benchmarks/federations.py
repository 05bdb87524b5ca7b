"""Federations to run: images of MNIST's shape, random ones or divided as in the practical split."""

import numpy as np
from sklearn.datasets import load_digits

from orchard.data.client_arrays import ClientArrays
from orchard.data.partitions import Practical, partition_matrix

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
    """Return the clients of the practical split, with scikit-learn's digits: enlarged threefold, anywhere in 28×28."""
    draw = np.random.default_rng(0)
    digits = load_digits()
    large = (15 * digits.images.repeat(3, axis=1).repeat(3, axis=2)).astype(np.uint8)

    def views(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y = draw.permutation(np.repeat(np.arange(10), counts))
        x = np.zeros((len(y), 28, 28), dtype=np.uint8)
        for image, label in zip(x, y, strict=True):
            top, left = draw.integers(5, size=2)
            image[top : top + 24, left : left + 24] = draw.choice(large[digits.target == label])
        return x, y

    arrays = []
    for shares in partition_matrix(Practical(), 10, CLIENTS).T:
        counts = (total / 10 * shares).astype(int)
        arrays.append(ClientArrays(*views(counts), *views(np.ceil(tests * counts).astype(int))))
    return arrays
