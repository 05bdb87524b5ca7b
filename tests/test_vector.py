"""A module as a vector: exact in both directions, for any kind of module."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from orchard.core.models import CNN
from orchard.core.vector import Layout, Network, Part, lay_out_channels_last, products


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.output = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = x + torch.relu(self.second(x))
        scores: Tensor = self.output(x.mean((2, 3)))
        return scores


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 4), nn.Linear(4, 4)
        self.decode.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.decode(torch.tanh(self.encode(x)))
        return scores


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = nn.Linear(5, 4), nn.Linear(4, 2)
        self.backbone.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.backbone(x))
        return scores


Factory = Callable[[], nn.Module]

CASES: list[tuple[Factory, tuple[int, ...], int]] = [
    (lambda: CNN((1, 28, 28), 10), (1, 28, 28), 431_080),
    (lambda: CNN((3, 28, 28), 9), (3, 28, 28), 431_579),
    (Residual, (2, 6, 6), 8 * 2 * 9 + 8 + 8 + 8 + 8 * 8 * 9 + 8 + 8 * 3 + 3),
    (Tied, (4,), 4 * 4 + 4 + 4),
    (Frozen, (5,), 4 * 2 + 2),
    (lambda: nn.Linear(7, 3), (7,), 24),
]


@pytest.mark.parametrize(("factory", "shape", "size"), CASES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_state_dict_survives_exactly(factory: Factory, shape: tuple[int, ...], size: int, channels_last: bool) -> None:
    module, other = factory(), factory()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    if channels_last:
        lay_out_channels_last(module)
        lay_out_channels_last(other)
    network, twin = Network(module), Network(other)
    assert network.vector.shape == network.gradient.shape == (size,)
    assert network.vector.is_contiguous()
    after = network.module.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    twin.module.load_state_dict(before)
    assert torch.equal(twin.vector, network.vector)
    x = torch.randn(2, *shape)
    assert torch.equal(twin.module.eval()(x), network.module.eval()(x))


@pytest.mark.parametrize(("factory", "shape", "size"), CASES)
def test_gradients_land_in_the_vector(factory: Factory, shape: tuple[int, ...], size: int) -> None:
    module, plain = factory(), factory()
    plain.load_state_dict(module.state_dict())
    lay_out_channels_last(module)
    network = Network(module)
    x = torch.randn(5, *shape)
    network.module(x).square().sum().backward()
    plain(x).square().sum().backward()
    named = dict(plain.named_parameters())
    seen = 0
    for name, p in network.module.named_parameters():
        if p.requires_grad:
            assert p.grad is not None
            torch.testing.assert_close(p.grad, named[name].grad)
            assert p.grad.untyped_storage().data_ptr() == network.gradient.untyped_storage().data_ptr()
            assert p.untyped_storage().data_ptr() == network.vector.untyped_storage().data_ptr()
            seen += p.numel()
    assert seen == size


def test_channels_last_is_kept_even_for_one_input_channel() -> None:
    module = CNN((1, 28, 28), 10)
    lay_out_channels_last(module)
    Network(module)
    assert module.conv1.weight.stride() == (25, 1, 5, 1)
    assert module.conv2.weight.is_contiguous(memory_format=torch.channels_last)
    features = module.conv1(torch.zeros(2, 1, 28, 28))
    assert features.is_contiguous(memory_format=torch.channels_last)


def test_changing_the_vector_changes_the_module() -> None:
    module = nn.Linear(3, 2)
    Network(module).vector.copy_(torch.arange(8.0))
    assert module.weight.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert module.bias.tolist() == [6, 7]


def test_tied_parameters_stay_tied_and_count_once() -> None:
    module = Tied()
    Network(module)
    assert module.encode.weight is module.decode.weight


def test_frozen_parameters_stay_local() -> None:
    module = Frozen()
    before = module.backbone.weight.clone()
    Network(module).vector.zero_()
    assert torch.equal(module.backbone.weight, before)
    assert module.backbone.weight.grad is None


def test_buffers_stay_beside_the_vector() -> None:
    network = Network(Residual())
    mine = network.buffers()
    network.module.train()(torch.randn(4, 2, 6, 6))
    theirs = network.buffers()
    assert not torch.equal(mine["norm.running_mean"], theirs["norm.running_mean"])
    network.load_buffers(mine)
    assert all(torch.equal(value, network.buffers()[name]) for name, value in mine.items())


def test_a_released_module_shares_nothing() -> None:
    module = nn.Linear(3, 2)
    network = Network(module)
    released = network.release()
    before = module.weight.clone()
    network.vector.zero_()
    assert released is module
    assert torch.equal(module.weight, before)
    assert not module.training


def test_what_cannot_be_a_vector_is_refused() -> None:
    with pytest.raises(ValueError, match="no trainable parameter"):
        Network(nn.ReLU())
    with pytest.raises(ValueError, match="mixes parameter types"):
        Network(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))


# --- Layout and parts ---


def test_the_layout_says_where_each_parameter_lies() -> None:
    network = Network(Residual())
    layout = network.layout
    named = dict(network.module.named_parameters())
    assert list(layout.slices) == list(named)
    assert len(layout) == len(network.vector)
    for name, piece in layout.slices.items():
        assert torch.equal(network.vector[piece], named[name].detach().flatten())
    assert [s.start for s in layout.slices.values()] == [0, *(s.stop for s in layout.slices.values())][:-1]


def test_a_tied_parameter_lies_where_its_first_name_says_and_a_frozen_one_nowhere() -> None:
    assert list(Network(Tied()).layout.slices) == ["encode.weight", "encode.bias", "decode.bias"]
    assert list(Network(Frozen()).layout.slices) == ["head.weight", "head.bias"]


def named_in(layout: Layout, part: Part) -> list[str]:
    return [name for name, piece in layout.slices.items() if piece in part.slices]


@pytest.mark.parametrize(
    ("prefixes", "names"),
    [
        (["output"], ["output.weight", "output.bias"]),
        (["second", "first.bias"], ["first.bias", "second.weight", "second.bias"]),
        (["norm", "norm.bias"], ["norm.weight", "norm.bias"]),
        ([], []),
    ],
)
def test_a_part_is_what_the_prefixes_name_in_the_order_of_the_vector(prefixes: list[str], names: list[str]) -> None:
    layout = Network(Residual()).layout
    assert named_in(layout, layout.part(prefixes)) == names


def test_an_empty_prefix_is_the_whole_and_part_of_a_word_is_nothing() -> None:
    network = Network(nn.Sequential(*(nn.Linear(1, 1) for _ in range(11))))
    layout = network.layout
    assert torch.equal(layout.part([""]).of(network.vector), network.vector)
    assert named_in(layout, layout.part(["1"])) == ["1.weight", "1.bias"]  # not 10.weight


def test_a_part_and_the_rest_are_the_whole() -> None:
    network = Network(Residual())
    layout, vector = network.layout, network.vector.clone()
    part = layout.part(["first", "output"])
    rest = layout.rest(part)
    assert named_in(layout, rest) == ["norm.weight", "norm.bias", "second.weight", "second.bias"]
    assert len(part) + len(rest) == len(layout)
    assert (len(part), len(rest)) == (len(part.of(vector)), len(rest.of(vector)))
    assert torch.equal(part.of(vector), torch.cat([vector[: 8 * 2 * 9 + 8], vector[-(8 * 3 + 3) :]]))
    built = rest.replaced(part.replaced(torch.zeros_like(vector), part.of(vector)), rest.of(vector))
    assert torch.equal(built, vector)
    assert layout.rest(rest) == part


def test_a_part_is_replaced_in_a_copy_and_taken_out_as_one() -> None:
    network = Network(Residual())
    part, vector = network.layout.part(["second"]), network.vector.clone()
    values = torch.randn(len(part))
    other = part.replaced(vector, values)
    assert torch.equal(part.of(other), values)
    assert torch.equal(vector, network.vector), "the old one stays as it was"
    rest = network.layout.rest(part)
    assert torch.equal(rest.of(other), rest.of(vector))
    part.of(other).zero_()
    assert torch.equal(part.of(other), values)


def test_nothing_is_a_part_too() -> None:
    network = Network(nn.Linear(3, 2))
    nothing = network.layout.part([])
    assert len(nothing) == len(nothing.of(network.vector)) == 0
    assert torch.equal(nothing.replaced(network.vector, torch.empty(0)), network.vector)
    assert torch.equal(network.layout.rest(nothing).of(network.vector), network.vector)


@pytest.mark.parametrize(
    ("module", "last"), [(Residual(), "output"), (CNN((1, 28, 28), 10), "output"), (nn.Sequential(Tied()), "0.decode")]
)
def test_the_last_layer(module: nn.Module, last: str) -> None:
    layout = Network(module).layout
    assert layout.last_layer() == last
    assert layout.part([last]).slices[-1].stop == len(layout)


@pytest.mark.parametrize("prefix", ["outputs", "out", "output.", "output.weights", "relu"])
def test_a_layer_that_is_not_there_is_refused_with_those_that_are(prefix: str) -> None:
    layout = Network(CNN((1, 28, 28), 10)).layout
    with pytest.raises(ValueError, match=rf"^'{re.escape(prefix)}': no such layer; the parameters are ") as refusal:
        layout.part(["conv1", prefix])
    assert all(name in str(refusal.value) for name in layout.slices)


def test_products_of_moves_are_those_of_the_differences() -> None:
    draw = torch.Generator().manual_seed(0)
    models, origins = torch.randn(2, 3, 40_000, generator=draw).unbind()
    assert torch.equal(products(list(models), list(origins)), products(list(models - origins)))
    assert not torch.equal(products(list(models), list(origins)), products(list(models)))
