"""The paper's network, and anybody else's."""

import threading

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from helpers import classes
from orchard.core.models import CNN, build, draws_randomly
from orchard.core.vector import Network
from orchard.errors import UserError


@pytest.mark.parametrize(
    ("channels", "classes", "parameters"),
    [(1, 10, 431_080), (3, 10, 432_080), (1, 11, 431_581), (3, 9, 431_579)],
)
def test_the_papers_network_has_the_papers_size(channels: int, classes: int, parameters: int) -> None:
    assert sum(p.numel() for p in CNN((channels, 28, 28), classes).parameters()) == parameters


def test_pooling_before_relu_changes_nothing() -> None:
    model = CNN((1, 28, 28), 10).double()
    x = torch.randn(4, 1, 28, 28, dtype=torch.float64)
    scores = model(x)
    gradients = torch.autograd.grad(scores.square().sum(), list(model.parameters()))
    y = functional.max_pool2d(functional.relu(model.conv1(x)), 2)
    y = functional.max_pool2d(functional.relu(model.conv2(y)), 2)
    y = model.output(functional.relu(model.hidden(y.flatten(1))))
    assert torch.equal(scores, y)
    expected = torch.autograd.grad(y.square().sum(), list(model.parameters()))
    for mine, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_initial_values_depend_on_the_seed_alone() -> None:
    torch.manual_seed(0)
    first = Network(build("cnn", (1, 28, 28), classes(10), seed=5)).vector
    state = torch.get_rng_state()
    again = Network(build("cnn", (1, 28, 28), classes(10), seed=5)).vector
    other = Network(build("cnn", (1, 28, 28), classes(10), seed=6)).vector
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)  # nobody else's random numbers were touched


def test_initial_values_do_not_depend_on_other_threads() -> None:
    expected = [Network(build("mlp", (4,), classes(2), seed=s)).vector for s in range(8)]
    got: dict[int, Tensor] = {}

    def make(seed: int) -> None:
        got[seed] = Network(build("mlp", (4,), classes(2), seed=seed)).vector

    threads = [threading.Thread(target=make, args=(s,)) for s in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(got[s], expected[s]) for s in range(8))


class WithView(nn.Module):
    """Flattens with `view`, which works in the ordinary memory order only."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(shape[0], 4, 3)
        self.output = nn.Linear(4 * (shape[1] - 2) * (shape[2] - 2), 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.output(self.conv(x).view(len(x), -1))
        return scores


@pytest.mark.parametrize("channels", [1, 3])
def test_a_model_that_needs_the_ordinary_order_gets_it(channels: int) -> None:
    module = build(WithView, (channels, 8, 8), classes(3), seed=0)
    network = Network(module)
    network.module(torch.zeros(5, channels, 8, 8)).sum().backward()


@pytest.mark.parametrize("wanted", [True, False])
def test_a_model_can_keep_the_ordinary_order(wanted: bool) -> None:
    class Large(nn.Sequential):
        channels_last = wanted

    module = build(lambda: Large(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.LazyLinear(3)), (2, 8, 8), classes(3), seed=0)
    weight = module.get_submodule("0").weight
    assert weight.is_contiguous(memory_format=torch.channels_last) is wanted  # type: ignore[operator]


class FailsInTraining(nn.Linear):
    def __init__(self) -> None:
        super().__init__(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise KeyError("not while training")
        return super().forward(x.flatten(1))


def lazy() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(3))


def test_a_factory_takes_what_it_names() -> None:
    assert build(lazy, (2, 3), classes(3), seed=0)[1].in_features == 6  # type: ignore[index]
    assert build(lambda classes: nn.Linear(4, classes), (4,), classes(7), seed=0).out_features == 7
    assert isinstance(build("orchard.core.models:MLP", (4,), classes(2), seed=0), nn.Module)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("cmn", "model = 'cmn': unknown model; did you mean 'cnn'?"),
        ("no.such:thing", "model = 'no.such:thing': cannot be imported"),
        ("orchard.core.models:Nothing", "model = 'orchard.core.models:Nothing': cannot be imported"),
        ("orchard.core.models:MODELS", "model = 'orchard.core.models:MODELS': is not callable"),
        ("cnn", "needs at least 16 pixels a side, not 1×8×8"),
        (lambda: 3, "returned int, not an nn.Module"),
        (lambda: nn.Linear(5, 5), "does not fit samples of shape (1, 8, 8)"),
        (lambda: nn.Flatten(), "should give outputs of shape (2, 3), gave (2, 64)"),
        (lambda: dict[str, nn.Module]()["nothing"], "does not fit samples of shape (1, 8, 8): 'nothing'"),
        (lambda: FailsInTraining(), "not while training"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3).requires_grad_(False)), "has no trainable parameter"),
        (":x", "model = ':x': cannot be imported"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(model, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError) as refusal:
        build(model, (1, 8, 8), classes(3), seed=0)
    assert message in str(refusal.value)


def test_random_layers_are_noticed() -> None:
    assert not draws_randomly(Network(CNN((1, 28, 28), 10)), (1, 28, 28))
    assert draws_randomly(Network(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))), (4,))
    norm = nn.BatchNorm1d(4)
    assert not draws_randomly(Network(norm), (4,))
    assert norm.num_batches_tracked == 0
