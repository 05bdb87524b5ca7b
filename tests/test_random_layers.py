"""What layers draw depends on their seed alone, and clients whose layers draw still train side by side."""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import orchard
from helpers import Dropping, small_arrays, small_experiment
from orchard.models import random_layers
from orchard.random_layers import RandomLayers
from orchard.vector import Network

ONES = torch.ones(2, 50)


def dropping() -> tuple[Network, RandomLayers]:
    network = Network(nn.Sequential(nn.Linear(50, 50), nn.Dropout(0.5)))
    layers = random_layers(network, (50,))
    assert layers
    return network, layers


def drawn(layers: RandomLayers, network: Network, seed: int) -> list[Tensor]:
    """What three passes give: through the whole module, through one of its layers, through the whole again."""
    module: Any = network.module
    with layers.seeded(seed):
        return [module(ONES).detach(), module[1](ONES), module(ONES).detach()]


def test_draws_depend_on_the_seed_alone_whichever_module_is_called() -> None:
    network, layers = dropping()
    first, again, other = (drawn(layers, network, seed) for seed in (3, 3, 4))
    assert all(map(torch.equal, first, again))
    assert not any(map(torch.equal, first, other))
    assert not torch.equal(first[0], first[2]), "a training's draws go on from pass to pass"


def test_draws_can_be_repeated() -> None:
    network, layers = dropping()
    with layers.seeded(3):
        with layers.repeated():
            once = network.module(ONES)
        assert torch.equal(network.module(ONES), once)
        assert not torch.equal(network.module(ONES), once)


def test_the_process_draws_as_if_nobody_had() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    orchard.run(small_experiment(model=Dropping), small_arrays())
    assert torch.equal(torch.rand(3), expected)


def test_a_pass_that_fails_leaves_the_generators_to_others() -> None:
    network, layers = dropping()
    with layers.seeded(3), pytest.raises(RuntimeError):
        network.module(torch.ones(2, 51))
    other, others = dropping()
    results: list[Tensor] = []
    thread = threading.Thread(target=lambda: results.extend(drawn(others, other, 3)))
    thread.start()
    thread.join(60)
    assert results


class Recomputing(Dropping):
    """Keeps no activations, and runs its layers once more in the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return scores


@pytest.mark.parametrize("method", ["apple", "apfl"])
def test_layers_that_run_again_in_the_backward_pass_draw_the_same_again(method: str) -> None:
    stored, recomputed = (
        orchard.run(small_experiment(model=model, method=method, workers=2), small_arrays())
        for model in (Dropping, Recomputing)
    )
    for (mine, _), (theirs, _) in zip(recomputed.models, stored.models, strict=True):
        assert torch.equal(mine, theirs)


MEETING = threading.Barrier(2, timeout=60)


class Meeting(torch.autograd.Function):
    """Waits, in the backward pass, until somebody else is in one too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if len(gradient) > 2:  # not where the network is only tried out
            MEETING.wait()
        return gradient


class DroppingTogether(Dropping):
    def forward(self, x: Tensor) -> Tensor:
        met: Tensor = Meeting.apply(super().forward(x))  # type: ignore[no-untyped-call]
        return met


def test_clients_are_in_the_backward_pass_at_the_same_time() -> None:
    arrays = [small_arrays(1)[0]] * 2  # as many steps each
    orchard.run(small_experiment(model=DroppingTogether, clients=2, workers=2, method="separate"), arrays)
