"""What the second implementation of the methods stands on: NumPy, float64, a linear model, gradients by hand.

First models, data and the order of samples are Orchard's; what is done with them is written from the equations.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from helpers import SmallFederation, method
from orchard.randomness import generator

Array = NDArray[np.float64]
LR, DECAY, MOMENTUM, EPOCHS, BATCH, ROUNDS = 0.3, 0.9, 0.9, 3, 8, 6


def linear() -> nn.Module:
    return nn.Linear(6, 3).double()


def federation(name: str, **parameters: Any) -> SmallFederation:
    rounds, model = parameters.pop("rounds", ROUNDS), parameters.pop("model", linear)
    settings = {"clients": 5, "rounds": rounds, "epochs": EPOCHS, "batch_size": BATCH, "lr": LR, "lr_decay": DECAY}
    return SmallFederation(model=model, method=method(name, **parameters), **settings)


@dataclass
class Clients:
    """What the second implementation works on."""

    seed: int
    train: list[tuple[Array, NDArray[np.int64]]]
    validation: list[tuple[Array, NDArray[np.int64]]]

    @property
    def shares(self) -> Array:
        sizes = [len(y) for _, y in self.train]
        return np.array(sizes, dtype=np.float64) / sum(sizes)

    def batches(
        self, i: int, r: int, epochs: Sequence[int] = range(EPOCHS)
    ) -> Iterator[tuple[Array, NDArray[np.int64]]]:
        x, y = self.train[i]
        for epoch in epochs:
            order = generator(self.seed, "batches", i, r, epoch).permutation(len(y))
            for start in range(0, len(y), BATCH):
                rows = order[start : start + BATCH]
                yield x[rows], y[rows]

    def local_sgd(self, w: Array, i: int, r: int, centre: Array | None = None, pull: float = 0.0) -> Array:
        velocity = np.zeros_like(w)
        for x, y in self.batches(i, r):
            g = slope(w, x, y) + (0 if centre is None else pull * (w - centre))
            velocity = MOMENTUM * velocity + g
            w = w - LR * DECAY**r * velocity
        return w


def clients_of(small: SmallFederation) -> Clients:
    parts = [[(part.x.numpy(), part.y.numpy()) for part in (s.data.train, s.data.validation)] for s in small.contexts]
    return Clients(small.experiment.seed, [p[0] for p in parts], [p[1] for p in parts])


def likelihoods(w: Array, x: Array) -> Array:
    scores = x @ w[:18].reshape(3, 6).T + w[18:]
    powers = np.exp(scores - scores.max(1, keepdims=True))
    likelihood: Array = powers / powers.sum(1, keepdims=True)
    return likelihood


def loss(w: Array, x: Array, y: NDArray[np.int64]) -> float:
    return float(-np.log(likelihoods(w, x)[np.arange(len(y)), y]).mean())


def slope(w: Array, x: Array, y: NDArray[np.int64]) -> Array:
    excess = (likelihoods(w, x) - np.eye(3)[y]) / len(y)
    return np.concatenate([(excess.T @ x).ravel(), excess.sum(0)])


def numbers(tensors: Any) -> Array:
    return torch.stack(list(tensors)).numpy()


def equal(one: Any, other: Any) -> None:
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)
