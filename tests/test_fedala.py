"""FedALA: its three limits, and how its weights are learned."""

import pytest
import torch
from torch import Tensor, nn

from golden import wide
from helpers import SmallFederation, method
from orchard.core.vector import Network
from orchard.methods.fedala import FedALAClient


def clients_of(federation: SmallFederation) -> list[FedALAClient]:
    return [client for client in federation.clients if isinstance(client, FedALAClient)]


def with_weights(value: float, layers: int) -> SmallFederation:
    """A federation in which no weight ever changes."""
    federation = SmallFederation(method=method("fedala", layers=layers, weights_lr=0.0))
    for client in clients_of(federation):
        client.weights = torch.full((len(client.adapted),), value)
    return federation


@pytest.mark.parametrize("layers", [1, 2])
def test_with_all_weights_one_it_is_fedavg_local(layers: int) -> None:
    fedavg = SmallFederation(method="fedavg-local").run(3).models()
    assert torch.equal(with_weights(1.0, layers).run(3).models(), fedavg)
    unchanged = SmallFederation(method=method("fedala", layers=layers, weights_lr=0.0))
    assert torch.equal(unchanged.run(3).models(), fedavg)


def test_with_all_weights_zero_in_all_layers_it_is_separate_training(alone: Tensor) -> None:
    assert torch.equal(with_weights(0.0, 2).run(3).models(), alone)


def test_with_all_weights_zero_in_the_last_layer_it_is_fedper() -> None:
    assert torch.equal(with_weights(0.0, 1).run(3).models(), SmallFederation(method="fedper").run(3).models())


@pytest.mark.parametrize("rate", [3.0, 300.0])
def test_a_step_of_the_weights_by_hand(rate: float) -> None:
    """One batch: W ← clip(W − η·g⊙(θ − θ_i)), with g the gradient at θ̂."""
    settings = method("fedala", weights_lr=rate, percent=100)
    federation = SmallFederation(method=settings, batch_size=1000).run(1)
    client, context = clients_of(federation)[1], federation.contexts[1]
    own, shared = client.model, federation.global_model()
    head, before = federation.federation.layout.part(["output"]), torch.linspace(0, 1, len(client.adapted))
    client.weights = before
    network = federation.federation.network()
    network.vector.copy_(head.replaced(shared, torch.lerp(head.of(own), head.of(shared), before)))
    x, y = context.data.train
    torch.autograd.backward(torch.nn.functional.cross_entropy(network.module(x), y))
    client.receive(context, federation.download(1, 1))
    expected = (before - rate * head.of(network.gradient * (shared - own))).clamp(0, 1)
    assert client.weights is not None
    torch.testing.assert_close(client.weights, expected, rtol=0, atol=1e-5)
    assert bool((expected - before).abs().max() > 1e-3)
    assert bool((expected[before > 0.5] == 0).any()) == (rate == 300)
    mixed = torch.lerp(head.of(own), head.of(shared), client.weights)
    assert torch.equal(client.personalised(), head.replaced(shared, mixed))


def test_the_first_time_takes_ten_epochs_and_later_ones_take_one() -> None:
    federation = SmallFederation(method=method("fedala", percent=100), batch_size=1000).run(1)
    client, context = clients_of(federation)[0], federation.contexts[0]
    own, download = client.model, federation.download(0, 1)
    client.receive(context, download)
    at_first = client.weights
    client.model, client.weights = own, torch.ones(len(client.adapted))
    for _ in range(10):
        assert not torch.equal(client.weights, at_first) if at_first is not None else False
        client.receive(context, download)
        client.model = own
    assert at_first is not None
    assert torch.equal(client.weights, at_first)


def test_the_part_of_the_data_is_of_whole_batches_and_another_each_round() -> None:
    federation = SmallFederation(method="fedala", batch_size=4)
    parts = [
        [client._part(federation.contexts[i], r).data.train for i, client in enumerate(clients_of(federation))]
        for r in (1, 2)
    ]
    assert [len(part.y) for part in parts[0]] == [16, 20, 24, 28]  # of 17, 22, 28 and 34
    for first, second, context in zip(*parts, federation.contexts, strict=True):
        assert len(first.x.unique(dim=0)) == len(first.x)
        assert {tuple(row) for row in first.x.tolist()} <= {tuple(row) for row in context.data.train.x.tolist()}
        assert not torch.equal(first.x.sort(dim=0).values, second.x.sort(dim=0).values)


def test_who_has_not_trained_takes_over_the_global_model() -> None:
    federation = SmallFederation(method="fedala").run(2)
    late = federation.experiment.method.client(1, federation.federation)
    late.receive(federation.contexts[1], federation.download(1, 2))
    assert torch.equal(late.personalised(), federation.global_model())
    assert not torch.equal(clients_of(federation)[1].personalised(), federation.global_model())


def test_learning_the_weights_leaves_the_statistics_of_batch_normalisation_alone() -> None:
    federation = SmallFederation(method="fedala", model=wide, batch_size=6).run(1)
    client, context = clients_of(federation)[0], federation.contexts[0]
    before = context.network.buffers()
    client.receive(context, federation.download(0, 1))
    assert client.weights is not None
    assert all(torch.equal(value, before[name]) for name, value in context.network.buffers().items())


def test_weights_stay_in_their_range_with_their_client_and_take_part_in_what_is_trained() -> None:
    federation = SmallFederation(method=method("fedala", weights_lr=50.0)).run(3)
    weights = [client.weights for client in clients_of(federation) if client.weights is not None]
    assert len(weights) == 4
    assert all(0 <= float(w.min()) < float(w.max()) <= 1 for w in weights)
    assert [list(client.upload()) for client in federation.clients] == [["model"]] * 4
    assert not torch.equal(federation.models(), SmallFederation(method="fedavg-local").run(3).models())


class Nested(nn.Module):
    """A parameter of its own before and between modules that have some."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.block = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 5))


def test_a_layer_is_a_module_with_parameters_of_its_own() -> None:
    layout = Network(Nested()).layout
    assert [len(layout.last_layers(count)) for count in (1, 2, 3, 9)] == [25, 25 + 12, len(layout), len(layout)]
    vector = torch.arange(float(len(layout)))
    assert torch.equal(layout.last_layers(1).of(vector), vector[-25:])
