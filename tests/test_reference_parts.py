"""FedRep, LG-FedAvg and FedBN against a second implementation: NumPy, float64, gradients by hand."""

import numpy as np
import pytest
from torch import nn

from reference import (
    DECAY,
    EPOCHS,
    LR,
    MOMENTUM,
    ROUNDS,
    Array,
    Clients,
    clients_of,
    equal,
    federation,
    likelihoods,
    slope,
)

WEIGHTS, BIASES = slice(0, 18), slice(18, 21)


def moved(clients: Clients, w: Array, part: slice, i: int, r: int, epochs: range) -> Array:
    """Train one part of a linear model."""
    w, velocity = w.copy(), np.zeros_like(w[part])
    for x, y in clients.batches(i, r, epochs):
        velocity = MOMENTUM * velocity + slope(w, x, y)[part]
        w[part] -= LR * DECAY**r * velocity
    return w


@pytest.mark.parametrize(
    ("parameters", "head_epochs", "body_epochs"), [({}, EPOCHS, 1), ({"head_epochs": 1, "body_epochs": 2}, 1, 2)]
)
def test_fedrep(parameters: dict[str, int], head_epochs: int, body_epochs: int) -> None:
    small = federation("fedrep", private=["bias"], **parameters)
    clients, n = clients_of(small), 5
    models = [small.federation.initial_model().numpy().copy()] * n
    head, body = range(head_epochs), range(head_epochs, head_epochs + body_epochs)
    for r in range(ROUNDS):
        models = [moved(clients, models[i], BIASES, i, r, head) for i in range(n)]
        models = [moved(clients, models[i], WEIGHTS, i, r, body) for i in range(n)]
        small.round(r)
        equal(small.models().numpy(), models)
        shared = clients.shares @ np.stack(models)[:, WEIGHTS]
        models = [np.concatenate([shared, model[BIASES]]) for model in models]


def normalised() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3)).double()


def scaled(w: Array, x: Array) -> tuple[Array, Array]:
    """Return normalised samples, and what the layer's γ and β make of them."""
    still = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    return still, w[:6] * still + w[6:12]


@pytest.mark.parametrize("name", ["fedbn", "lg-fedavg"])
def test_a_normalisation_layer_stays_and_a_linear_one_is_averaged(name: str) -> None:
    """For FedBN since the first layer normalises, for LG-FedAvg since it is not the last one."""
    small = federation(name, model=normalised)
    clients, n = clients_of(small), 5
    models = [small.federation.initial_model().numpy().copy()] * n
    for r in range(ROUNDS):
        for i, w in enumerate(models):
            velocity = np.zeros_like(w)
            for x, y in clients.batches(i, r):
                still, z = scaled(w, x)
                below = (likelihoods(w[12:], z) - np.eye(3)[y]) @ w[12:30].reshape(3, 6) / len(y)
                g = np.concatenate([(below * still).sum(0), below.sum(0), slope(w[12:], z, y)])
                velocity = MOMENTUM * velocity + g
                w = w - LR * DECAY**r * velocity
            models[i] = w
        small.round(r)
        equal(small.models().numpy(), models)
        shared = clients.shares @ np.stack(models)[:, 12:]
        models = [np.concatenate([model[:12], shared]) for model in models]
