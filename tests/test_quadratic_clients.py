"""Clients with quadratic losses, where it can be worked out by hand to which model a method leads.

Client i's loss is Σ_k c_ik·(w_k − m_ik)²/2 over two weights, however its samples are ordered: linear regression on the
samples ±√c_i1·e_1 and ±√c_i2·e_2. Clients differ in their minima m_i, curvatures c_i and numbers of samples.
"""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import nn

from helpers import federation_of, method, small_experiment
from orchard.core.contract import Download
from orchard.core.training import ClientContext
from orchard.data.client_arrays import ClientArrays, from_arrays
from orchard.tasks.regression import Regression

Array = NDArray[np.float64]
CURVATURES = np.array([[1.0, 2.0], [2.0, 1.0], [1.5, 1.0]])
MINIMA = np.array([[1.0, -2.0], [-1.0, 0.0], [2.0, 3.0]])
SHARES = np.array([1, 2, 3]) / 6
LR, STEPS = 0.3, 4

different = pytest.mark.parametrize("spread", [0.1, 1.0, 100.0])
"""How far apart the minima are; the curvatures are what they are."""


def two_weights() -> nn.Module:
    return nn.Linear(2, 1, bias=False).double()


def client_arrays(curvatures: Array, minima: Array, copies: int) -> ClientArrays:
    corners = np.diag(np.sqrt(curvatures))
    x = np.concatenate([corners, -corners] * copies).astype(np.float32)
    y = (x @ minima).astype(np.float32)
    return ClientArrays(x, y, x, y, x, y)


def reached(name: str, spread: float, rounds: int, epochs: int = STEPS, lr: float = LR, **parameters: Any) -> Array:
    """Return the global model after some rounds of full batches, in units in which the minima are `spread` × MINIMA."""
    settings = {"task": "regression", "clients": 3, "batch_size": 100, "momentum": 0.0, "model": two_weights}
    experiment = small_experiment(method=method(name, **parameters), epochs=epochs, lr=lr, **settings)
    given = [client_arrays(c, spread * m, i + 1) for i, (c, m) in enumerate(zip(CURVATURES, MINIMA, strict=True))]
    data = from_arrays(given, experiment)
    federation = federation_of(experiment, data)
    like = federation.network().vector
    contexts = [ClientContext(i, experiment, one.to(like), federation.network()) for i, one in enumerate(data.clients)]
    clients = [experiment.method.client(i, federation) for i in range(3)]
    server = experiment.method.server(federation)
    for r in range(rounds):
        for i, (client, context) in enumerate(zip(clients, contexts, strict=True)):
            client.receive(context, Download(r, server.send(i, client.select(r))))
            client.train(context, r)
        server.aggregate({i: client.upload() for i, client in enumerate(clients)})
    # Targets are standardised with all clients' mean, 0 here, and deviation, which outputs and weights are in units of.
    assert isinstance(data.task, Regression)
    assert data.task.mean == pytest.approx((0.0,), abs=1e-6)
    weights: Array = data.task.deviation[0] * server.send(0, ("model",))["model"].numpy()
    return weights


def balance(weights: Array) -> Array:
    """Return where Σ_i weights_i·(w − m_i) = 0, weight by weight."""
    point: Array = (weights * MINIMA).sum(0) / weights.sum(0)
    return point


def of_the_sum() -> Array:
    """Return the minimum of Σ_i F_i."""
    return balance(CURVATURES)


@different
def test_scaffold_reaches_the_minimum_of_the_sum(spread: float) -> None:
    """Of the unweighted sum, since its control variates are averaged without weights."""
    np.testing.assert_allclose(reached("scaffold", spread, 24), spread * of_the_sum(), rtol=1e-5)


@different
def test_feddyn_reaches_the_minimum_of_the_sum(spread: float) -> None:
    np.testing.assert_allclose(reached("feddyn", spread, 24, alpha=1.2), spread * of_the_sum(), rtol=1e-5)


@different
def test_fedavg_comes_to_rest_elsewhere(spread: float) -> None:
    """K steps of η take a client 1 − (1 − η·c)^K of the way to its minimum: where these moves cancel each other."""
    moves = SHARES[:, None] * (1 - (1 - LR * CURVATURES) ** STEPS)
    rest = reached("fedavg", spread, 14)
    np.testing.assert_allclose(rest, spread * balance(moves), rtol=1e-5)
    for weights in (CURVATURES, SHARES[:, None] * CURVATURES):  # neither the sum, nor the sum weighted by samples
        assert np.linalg.norm(rest - spread * balance(weights)) > 0.1 * spread


def test_pfedme_reaches_the_minimum_of_the_sum_of_envelopes() -> None:
    """With one batch a round, of Σ_i (n_i/n)·min_θ F_i(θ) + (λ/2)‖θ − w‖², whose slope is λc/(c + λ)·(w − m)."""
    lam = 2.0
    envelopes = SHARES[:, None] * lam * CURVATURES / (CURVATURES + lam)
    model = reached("pfedme", 1.0, 16, epochs=1, lr=0.8, lam=lam, inner_lr=0.28, inner_steps=8)
    np.testing.assert_allclose(model, balance(envelopes), rtol=1e-5)
