"""Ditto: its two limits, and that the global model never depends on the personal ones."""

import torch
from torch import Tensor

from helpers import SmallFederation, method
from orchard.methods.ditto import DittoClient


def test_without_a_pull_it_is_separate_training(alone: Tensor) -> None:
    assert torch.equal(SmallFederation(method=method("ditto", lam=0.0)).run(3).models(), alone)


def test_the_global_model_is_that_of_fedavg_whatever_the_pull() -> None:
    fedavg = SmallFederation(method="fedavg").run(3).global_model()
    for lam in (0.0, 0.1, 5.0):
        assert torch.equal(SmallFederation(method=method("ditto", lam=lam)).run(3).global_model(), fedavg)


def test_a_stronger_pull_stays_nearer_to_the_global_model() -> None:
    distances = []
    for lam in (0.0, 0.5, 5.0):
        federation = SmallFederation(method=method("ditto", lam=lam)).run(3)
        distances.append((federation.models() - federation.global_model()).norm().item())
    assert distances[0] > distances[1] > distances[2]


def test_the_personal_model_is_not_uploaded() -> None:
    federation = SmallFederation(method="ditto")
    for update, client in zip(federation.round(0), federation.clients, strict=True):
        assert isinstance(client, DittoClient)
        assert list(update.upload) == ["model"]
        assert not torch.equal(update.upload["model"], client.personal)


def test_the_pull_is_towards_the_model_received_this_round() -> None:
    """One step from v on ∇F(v) + λ(v − w): with a huge data-independent pull, v' = v − lr·(g + λ(v − w))."""
    federation = SmallFederation(method=method("ditto", lam=3.0), epochs=1, batch_size=1000)
    federation.run(2)
    client, context = federation.clients[0], federation.contexts[0]
    assert isinstance(client, DittoClient)
    v, w, lr = client.personal.double(), federation.global_model().double(), federation.experiment.lr
    x, y = context.data.train
    network = federation.federation.network()
    network.vector.copy_(client.personal)
    torch.autograd.backward(torch.nn.functional.cross_entropy(network.module(x), y))
    federation.round(2)
    expected = v - lr * (network.gradient.double() + 3.0 * (v - w))
    torch.testing.assert_close(client.personal.double(), expected, rtol=0, atol=1e-6)
