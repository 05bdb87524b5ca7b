"""A module as a vector: exact in both directions, for any kind of module."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from orchard.models import CNN
from orchard.vector import Network, empty_matrix, lay_out_channels_last, shared_matrix


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


def test_rows_of_one_matrix_are_shared_and_others_copied() -> None:
    network = Network(nn.Linear(6, 3))  # 21 parameters
    matrix = empty_matrix(3, network.vector)
    matrix.copy_(torch.arange(63.0).view(3, 21))
    rows = list(matrix)
    shared = network.matrix([rows[0], None, rows[2]])
    assert shared.data_ptr() == matrix.data_ptr()
    assert torch.equal(shared, matrix)
    for mixed in ([rows[1], None, rows[2]], [rows[0].clone(), None, rows[2]], [rows[0], None], [None]):
        assert shared_matrix(mixed) is None
        copied = network.matrix(mixed)
        assert copied.data_ptr() != matrix.data_ptr()
        assert copied.stride() == (32, 1)
        expected = [torch.zeros(21) if row is None else row for row in mixed]
        assert torch.equal(copied, torch.stack(expected))


def test_copied_rows_go_into_the_same_memory_each_time() -> None:
    network = Network(nn.Linear(6, 3))
    first = network.matrix([torch.ones(21), torch.ones(21)])
    again = network.matrix([None, torch.full((21,), 2.0)])
    assert again.data_ptr() == first.data_ptr()
    assert again.tolist() == [[0.0] * 21, [2.0] * 21]
