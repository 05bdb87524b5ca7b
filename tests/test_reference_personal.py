"""Methods that make something of its own for every client, against a second implementation of them.

NumPy, float64, a linear model, gradients by hand: see `test_reference.py`.
"""

import numpy as np
import pytest

from orchard.methods import fedala
from orchard.methods.fedala import FedALAClient
from orchard.methods.fedamp import FedAMPServer
from orchard.methods.mocha import MochaServer
from orchard.randomness import generator
from reference import BATCH, ROUNDS, Array, Clients, clients_of, equal, federation, loss, numbers, slope


def test_fedamp() -> None:
    n, sigma, alpha, lam = 5, 6.0, 0.9, 0.3
    small = federation("fedamp", sigma=sigma, alpha=alpha, lam=lam)
    clients = clients_of(small)
    models = np.stack([small.federation.initial_model().numpy()] * n)
    for r in range(ROUNDS):
        mixtures = models
        if r:
            weights = np.array([[alpha / sigma * np.exp(-((a - b) @ (a - b)) / sigma) for a in models] for b in models])
            for i in range(n):
                weights[i, i] = 0
                weights[i, i] = 1 - weights[i].sum()
            assert isinstance(small.server, FedAMPServer)
            equal(small.server.weights.numpy(), weights)
            mixtures = weights @ models
        models = np.stack([clients.local_sgd(models[i], i, r, mixtures[i], lam / alpha) for i in range(n)])
        small.round(r)
        equal(small.models().numpy(), models)


def test_mocha() -> None:
    n, lam, ridge = 5, 0.4, 0.01
    small = federation("mocha", lam=lam)
    clients = clients_of(small)
    models = np.stack([small.federation.initial_model().numpy()] * n)
    for r in range(ROUNDS):
        left, lengths, _ = np.linalg.svd(models)
        shares = left @ np.diag(lengths / lengths.sum()) @ left.T
        omega = ridge * np.linalg.inv(shares + ridge * np.eye(n))
        if r:  # equal models leave the root of a rounding error
            assert isinstance(small.server, MochaServer)
            equal(small.server.relations.numpy(), omega)
        centres = models - omega @ models
        models = np.stack([clients.local_sgd(models[i], i, r, centres[i], lam) for i in range(n)])
        small.round(r)
        equal(small.models().numpy(), models)


@pytest.mark.parametrize(
    ("still", "most", "epochs"), [(0.1, 100, {10}), (3e-4, 100, set(range(11, 100))), (0, 15, {15})]
)
def test_fedala(still: float, most: int, epochs: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedala, "STILL", still)
    monkeypatch.setattr(fedala, "MOST_EPOCHS", most)
    n, rate, percent = 5, 0.8, 60
    small = federation("fedala", weights_lr=rate, percent=percent, rounds=3)
    clients = clients_of(small)
    shared = small.federation.initial_model().numpy().copy()
    own, weights = [shared] * n, [np.ones(21)] * n
    taken, inside = set(), False
    for r in range(3):
        starts = [shared] * n
        for i in range(n if r else 0):
            x, y = part_of(clients, i, r, percent)
            losses: list[float] = []
            while len(losses) < (most if r == 1 else 1) and not (len(losses) >= 10 and np.std(losses[-10:]) < still):
                total = 0.0
                order = generator(clients.seed, "batches", i, r, 0).permutation(len(y))
                for start in range(0, len(y), BATCH):
                    rows = order[start : start + BATCH]
                    mixed = own[i] + (shared - own[i]) * weights[i]
                    total += loss(mixed, x[rows], y[rows]) * len(rows)
                    step = rate * slope(mixed, x[rows], y[rows]) * (shared - own[i])
                    weights[i] = np.clip(weights[i] - step, 0, 1)
                losses.append(total / len(y))
            taken |= {len(losses)} if r == 1 else set()
            starts[i] = own[i] + (shared - own[i]) * weights[i]
            inside |= bool(((weights[i] > 0) & (weights[i] < 1)).any())
        own = [clients.local_sgd(starts[i], i, r) for i in range(n)]
        shared = clients.shares @ np.stack(own)
        small.round(r)
        equal(small.models().numpy(), own)
        if r:
            equal(numbers(c.weights for c in small.clients if isinstance(c, FedALAClient)), weights)
    assert taken & epochs
    assert inside, "else nobody would notice if weights were all or nothing"


def part_of(clients: Clients, i: int, r: int, percent: float) -> tuple[Array, np.ndarray]:
    """The part of the training data, in whole batches, that a client learns its weights on."""
    x, y = clients.train[i]
    batches = -int(-len(y) * percent // (100 * BATCH))
    rows = generator(clients.seed, "fedala", i, r).permutation(len(y))[: batches * BATCH]
    return x[rows], y[rows]
