"""The sum of clipped gradients: by hand, against autograd, and what one record can change in it."""

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from helpers import Dropping, classes
from orchard.core.federation import Federation
from orchard.core.models import MODELS
from orchard.core.training import gradient
from orchard.core.vector import Network
from orchard.errors import UserError
from orchard.experiment import Experiment
from orchard.privacy.gradients import PerSample, clipped_sum, way_for
from orchard.privacy.models import check_private
from orchard.tasks.multilabel import Multilabel
from orchard.tasks.regression import Regression
from orchard.tasks.segmentation import Segmentation
from orchard.tasks.task import Task

DRAW = torch.Generator().manual_seed(0)


def silent(layer: nn.Module) -> nn.Module:
    """Return a layer whose weights are 0, as many networks begin."""
    nn.init.zeros_(layer.weight)  # type: ignore[arg-type]
    return layer


def network_of(module: nn.Module, task: Task | None = None) -> Network:
    return Network(module, task=task or classes(3))


def one_by_one(network: Network, x: Tensor, y: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Return the clipped sum and the norms, by one backward pass for each sample."""
    total, norms = torch.zeros_like(network.gradient), []
    for i in range(len(y)):
        gradient(network, x[i : i + 1], y[i : i + 1])
        norm = float(torch.linalg.vector_norm(network.gradient))
        norms.append(norm)
        total += network.gradient * min(1.0, clip / norm)
    return total, torch.tensor(norms)


def test_two_clipped_gradients_by_hand() -> None:
    """f(x) = w·x with squared error has the gradient 2(w·x − y)·(x, 1): (6, 8, 0) for x = (3, 4), and so on."""
    module = nn.Linear(2, 1)
    task = Regression(("t",), (0.0,), (1.0,))
    network = network_of(module, task)
    network.vector.zero_()
    x, y = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[-1.0], [-0.25]])
    # Residuals 1 and 1/4: gradients 2·(3, 4, 1) of norm 2·√26, and (0, 0, 1/2) of norm 1/2.
    found = clipped_sum(network, x, y, 1.0)
    assert found.norms.tolist() == pytest.approx([2 * math.sqrt(26), 0.5])
    assert found.losses.tolist() == pytest.approx([1.0, 0.0625])
    long = [a / math.sqrt(26) for a in (3, 4, 1)]
    torch.testing.assert_close(network.gradient, torch.tensor([long[0], long[1], long[2] + 0.5]), rtol=1e-4, atol=0)


class Shared(nn.Module):
    """One layer, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.output = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.output(torch.tanh(self.layer(torch.tanh(self.layer(x)))))
        return scores


class Centred(nn.Module):
    """Samples are mixed on their way: each loses the batch's mean."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.output(x - x.mean(0))
        return scores


class Own(nn.Module):
    """A parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.output = nn.Parameter(torch.ones(6)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.output(self.scale * x)
        return scores


class Standardised(nn.Conv1d):
    """A convolution that makes something else of its weights."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv1d(x, self.weight - self.weight.mean((1, 2), keepdim=True), self.bias)


class Tied(nn.Module):
    """Two layers with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.output = nn.Linear(6, 6), nn.Linear(6, 6), silent(nn.Linear(6, 3))
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.output(torch.tanh(self.second(torch.tanh(self.first(x)))))
        return scores


class Elsewhere(nn.Module):
    """Weights that are also used outside of their layer, behind a layer that lets nothing through at first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.output = nn.Linear(6, 6), silent(nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.linear(torch.tanh(self.layer(input=x)), self.layer.weight)
        scores: Tensor = self.output(torch.tanh(hidden))
        return scores


class Sequence(nn.Module):
    """A linear layer on every place of a signal."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.output = nn.Linear(5, 4), nn.Linear(4, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.output(torch.relu(self.each(x)).mean(1))
        return scores


def old_weight_norm(layer: nn.Module) -> nn.Module:
    """Return a layer with a hook that makes its weight anew before each pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer)


def convolution(dimensions: int) -> nn.Module:
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    layers = [kind(2, 4, 3, stride=2, padding=1), nn.ReLU(), kind(4, 4, 2, dilation=2, bias=False)]
    return nn.Sequential(*layers, nn.GroupNorm(2, 4), nn.Flatten(), nn.LazyLinear(3))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    "mlp": (lambda: MODELS["mlp"](shape=(6,), classes=3), (6,), True),
    "cnn": (lambda: MODELS["cnn"](shape=(1, 16, 16), classes=3), (1, 16, 16), True),
    "sequence": (Sequence, (7, 5), True),
    "signals": (lambda: convolution(1), (2, 11), True),
    "images": (lambda: convolution(2), (2, 9, 10), True),
    "volumes": (lambda: convolution(3), (2, 7, 8, 9), True),
    "groups": (lambda: nn.Sequential(nn.Conv1d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(36, 3)), (2, 11), False),
    "shared": (Shared, (6,), False),
    "own parameter": (Own, (6,), False),
    "subclass": (lambda: nn.Sequential(Standardised(2, 4, 3), nn.Flatten(), nn.Linear(36, 3)), (2, 11), False),
    "weight norm": (
        lambda: nn.Sequential(weight_norm(nn.Conv1d(2, 4, 3)), nn.Flatten(), nn.Linear(36, 3)),
        (2, 11),
        False,
    ),
    "older weight norm": (lambda: nn.Sequential(old_weight_norm(nn.Linear(6, 4)), nn.Linear(4, 3)), (6,), False),
    "tied": (Tied, (6,), False),
    "weights used elsewhere": (Elsewhere, (6,), False),
    "in place": (lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(inplace=True), nn.Linear(9, 3)), (6,), False),
    "layer norm": (lambda: nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 3)), (6,), False),
}


@pytest.mark.parametrize("name", CASES)
def test_every_layer_gives_what_one_backward_pass_for_each_sample_gives(name: str) -> None:
    factory, shape, layerwise = CASES[name]
    torch.manual_seed(0)
    module = factory()
    module(torch.zeros(2, *shape))
    network = network_of(module)
    x, y = torch.randn(9, *shape, generator=DRAW), torch.randint(3, (9,), generator=DRAW)
    assert way_for(network, shape).layerwise == layerwise
    for ways in (None, PerSample(layerwise=False, chunk=4)):
        network.per_sample = ways
        _, norms = one_by_one(network, x, y, 1.0)
        for clip in (float(norms.median()), 1e6):  # one that half of them reach, and one that none does
            expected, _ = one_by_one(network, x, y, clip)
            found = clipped_sum(network, x, y, clip)
            torch.testing.assert_close(found.norms, norms, rtol=1e-3, atol=1e-5)
            torch.testing.assert_close(network.gradient, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("task", "model", "shape", "y"),
    [
        (Multilabel(("a", "b", "c")), "mlp", (6,), torch.randint(2, (5, 3), generator=DRAW)),
        (Regression(("a", "b"), (1.0, 2.0), (3.0, 0.5)), "mlp", (6,), torch.randn(5, 2, generator=DRAW)),
        (Segmentation(("0", "1", "2")), "unet", (1, 8, 8), torch.randint(3, (5, 8, 8), generator=DRAW)),
    ],
    ids=["multilabel", "regression", "segmentation"],
)
def test_every_task_has_its_samples_losses(task: Task, model: str, shape: tuple[int, ...], y: Tensor) -> None:
    torch.manual_seed(0)
    network = network_of(MODELS[model](shape=shape, classes=len(task.classes)), task)
    x = torch.randn(5, *shape, generator=DRAW)
    expected, norms = one_by_one(network, x, y, 0.1)
    each = torch.stack([task.loss(network.module(x[i : i + 1]), y[i : i + 1]) for i in range(5)])
    found = clipped_sum(network, x, y, 0.1)
    torch.testing.assert_close(found.norms, norms, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(found.losses, each.detach(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(network.gradient, expected, rtol=1e-3, atol=1e-5)


def test_without_a_limit_it_is_the_batchs_gradient() -> None:
    federation = Federation(Experiment(dataset="digits", clients=2), (60, 60), (1, 28, 28), classes(10))
    network = federation.network()
    x, y = torch.randn(300, 1, 28, 28, generator=DRAW), torch.randint(10, (300,), generator=DRAW)
    gradient(network, x, y)
    plain = network.gradient.clone()
    losses = clipped_sum(network, x, y, 1e9).losses  # in several chunks
    torch.testing.assert_close(network.gradient / 300, plain, rtol=1e-3, atol=1e-6)
    assert losses.mean().item() == pytest.approx(network.task.loss(network.module(x), y).item(), rel=1e-5)


def test_a_network_that_mixes_samples_is_differentiated_one_by_one() -> None:
    """Each sample is then a batch of its own, from which its mean leaves nothing."""
    network = network_of(Centred())
    assert not way_for(network, (6,)).layerwise
    clipped_sum(network, torch.randn(4, 6), torch.tensor([0, 1, 2, 0]), 1e9)
    weight = network.layout.part(["output.weight"])
    assert not bool(weight.of(network.gradient).any())


class Gated(nn.Module):
    """Lets samples look at each other through a gate that is shut at first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gate, self.output = nn.Linear(6, 6), silent(nn.Linear(6, 6, bias=False)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.layer(x))
        seen = self.gate(hidden)
        scores: Tensor = self.output(hidden + seen * seen.mean(0))
        return scores


def test_what_is_shut_at_first_is_seen_all_the_same() -> None:
    """Once the gate is open one record would change the gradients of all others in its batch."""
    network = network_of(Gated())
    before = network.vector.clone()
    assert not way_for(network, (6,)).layerwise
    assert torch.equal(network.vector, before)


def test_a_short_gradient_at_the_outputs_of_a_layer_with_long_inputs_is_not_taken_for_none() -> None:
    """Its square is 0 in single precision, but times an input of 1e19 it is longer than a small clip."""
    network = network_of(nn.Linear(6, 500, bias=False), Regression(tuple("t" * 500), (0.0,) * 500, (1.0,) * 500))
    network.vector.zero_()
    x, y = torch.full((1, 6), 5e18), torch.full((1, 500), 5e-21)
    network.per_sample = PerSample(layerwise=True, chunk=1)
    clipped_sum(network, x, y, 1e-3)
    assert float(network.gradient.double().norm()) <= 1e-3


def test_a_network_that_draws_is_differentiated_one_by_one() -> None:
    network = network_of(Dropping().train())
    before = torch.get_rng_state()
    assert not way_for(network, (6,)).layerwise
    assert torch.equal(before, torch.get_rng_state())


@given(
    values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=6, max_size=6),
    clip=st.floats(1e-3, 1e3),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_one_record_never_changes_the_sum_by_more_than_clip(values: list[float], clip: float, seed: int) -> None:
    """In double precision, so that what is seen is the method and not the rounding of sums."""
    torch.manual_seed(seed)
    network = network_of(MODELS["mlp"](shape=(6,), classes=3).double())
    x = torch.cat([torch.randn(4, 6, dtype=torch.float64), torch.tensor([values], dtype=torch.float64)])
    y = torch.tensor([0, 1, 2, 0, seed % 3])
    for layerwise in (True, False):
        network.per_sample = PerSample(layerwise, 128)
        clipped_sum(network, x, y, clip)
        with_it = network.gradient.clone()
        clipped_sum(network, x[:4], y[:4], clip)
        assert float((with_it - network.gradient).norm()) <= clip


def test_in_single_precision_a_clipped_gradient_is_no_longer_than_clip() -> None:
    federation = Federation(Experiment(dataset="digits", clients=2), (60, 60), (1, 28, 28), classes(10))
    network = federation.network()
    for scale in (1.0, 1e3, 1e6):
        clipped_sum(network, scale * torch.randn(1, 1, 28, 28, generator=DRAW), torch.tensor([3]), 1.0)
        length = float(torch.linalg.vector_norm(network.gradient.double()))
        assert 0.9999 < length <= 1


@pytest.mark.parametrize("layerwise", [True, False])
@pytest.mark.parametrize("broken", [math.nan, math.inf, 3e38])
def test_a_gradient_that_is_not_finite_counts_as_nothing(layerwise: bool, broken: float) -> None:
    network = network_of(MODELS["mlp"](shape=(6,), classes=3))
    network.per_sample = PerSample(layerwise, 128)
    x, y = torch.randn(5, 6), torch.tensor([0, 1, 2, 0, 1])
    x[2] = broken
    clipped_sum(network, x, y, 1.0)
    found = network.gradient.clone()
    keep = torch.tensor([0, 1, 3, 4])
    clipped_sum(network, x[keep], y[keep], 1.0)
    torch.testing.assert_close(found, network.gradient)


def test_an_empty_batch_has_no_gradient() -> None:
    network = network_of(MODELS["mlp"](shape=(6,), classes=3))
    network.gradient.fill_(7)
    found = clipped_sum(network, torch.zeros(0, 6), torch.zeros(0, dtype=torch.long), 1.0)
    assert not bool(network.gradient.any())
    assert found.norms.shape == found.losses.shape == (0,)


def test_frozen_parameters_have_no_gradient() -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    module[0].weight.requires_grad_(False)
    module[1].bias.requires_grad_(False)
    network = network_of(module)
    x, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
    expected, _ = one_by_one(network, x, y, 0.1)
    clipped_sum(network, x, y, 0.1)
    torch.testing.assert_close(network.gradient, expected)
    assert network.per_sample is not None
    assert network.per_sample.layerwise


def test_memory_is_bounded_by_chunks() -> None:
    federation = Federation(Experiment(dataset="digits", clients=2), (60, 60), (1, 28, 28), classes(10))
    network = federation.network()
    way = way_for(network, (1, 28, 28))
    assert way.layerwise
    assert 16 < way.chunk <= 128
    large = network_of(nn.Sequential(nn.Linear(6, 1_000_000), nn.LayerNorm(1_000_000), nn.Linear(1_000_000, 3)))
    assert way_for(large, (6,)) == PerSample(layerwise=False, chunk=1)


class Remembering(nn.Module):
    """Keeps a mean of what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(6, 3)
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen = self.seen + x.mean(0).detach()
        scores: Tensor = self.output(x)
        return scores


class RememberingInUse(Remembering):
    """Keeps a mean of what it is evaluated on, for training."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            self.seen = self.seen + x.mean(0).detach()
        scores: Tensor = self.output(x - self.seen if self.training else x)
        return scores


class RememberingElsewhere(nn.Module):
    """Keeps a mean of what it has trained on where nobody looks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.output, self.last = nn.Linear(6, 3), torch.zeros(6)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.last = x.mean(0).detach()
        scores: Tensor = self.output(x if self.training else x - self.last)
        return scores


class Deciding(nn.Module):
    """Its path depends on the values of a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.output(x if bool((x.sum() > 0).item()) else -x)
        return scores


class CentredInUse(nn.Module):
    """Mixes samples in evaluation only."""

    def forward(self, x: Tensor) -> Tensor:
        return x if self.training else x - x.mean(0)


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), "'1' is BatchNorm, .* take GroupNorm"),
        (Remembering(), "changes the model's buffer 'seen', which would have no noise"),
        (RememberingInUse(), "changes the model's buffer 'seen', which would have no noise"),
        (RememberingElsewhere(), "depends on which it saw before"),
        (Deciding(), "the model cannot be differentiated sample by sample"),
        (Centred(), "depends on which others are in its batch"),
        (nn.Sequential(CentredInUse(), nn.Linear(6, 3)), "depends on which others are in its batch"),
        (Gated(), "depends on which others are in its batch"),
    ],
)
def test_a_network_that_cannot_be_private_is_refused(module: nn.Module, why: str) -> None:
    with pytest.raises(UserError, match=why):
        check_private(network_of(module), (6,))


@pytest.mark.parametrize("name", MODELS)
def test_every_network_of_the_catalogue_can_be_private(name: str) -> None:
    check_private(network_of(MODELS[name](shape=(1, 16, 16), classes=3)), (1, 16, 16))


def test_noise_has_the_deviation_that_the_account_counts_on() -> None:
    from orchard.privacy.noise import Noise

    values = np.concatenate([Noise.of_seed(7, 0).generator(k).standard_normal(50_000) for k in range(4)])
    assert abs(values.mean()) < 0.01
    assert values.std() == pytest.approx(1, abs=0.01)
    assert (np.abs(values) > 2).mean() == pytest.approx(0.0455, abs=0.003)
