"""A module as one flat vector.

All trainable parameters of a module become views into one contiguous tensor, and their gradients views into
another. So mixing models is a matrix-vector product, an upload is a copy, and methods never walk modules.
What is not trainable stays beside the vector, at the client, and is never mixed or sent: buffers (a mixture of
BatchNorm variances could be negative) and frozen parameters (equal everywhere already).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from orchard.tasks.classification import Classification
from orchard.tasks.task import Task

if TYPE_CHECKING:
    from orchard.privacy.gradients import PerSample
    from orchard.privacy.private_round import PrivateRound

Model = tuple[Tensor, Mapping[str, Tensor]]
"""A model's vector, and the buffers of the client it belongs to."""

ROW_ALIGNMENT = 16
"""Rows of a matrix of models start at multiples of this many elements (64 bytes in float32), so that a
product with it takes the same vectorised path, and gives the same bits, for every row and every run."""
BLOCK = 1 << 14
"""Parameters converted to float64 at a time."""


@dataclass(frozen=True)
class Part:
    """Some slices of a vector, as one vector."""

    slices: tuple[slice, ...]

    def __len__(self) -> int:
        return sum(piece.stop - piece.start for piece in self.slices)

    def of(self, vector: Tensor) -> Tensor:
        """Return this part of a vector, as a vector of its own."""
        return torch.cat([vector[piece] for piece in self.slices]) if self.slices else vector[:0]

    def replaced(self, vector: Tensor, values: Tensor) -> Tensor:
        """Return a copy of a vector in which this part has other values."""
        copy, start = vector.clone(), 0
        for piece in self.slices:
            length = piece.stop - piece.start
            copy[piece] = values[start : start + length]
            start += length
        return copy

    def clear(self, vector: Tensor) -> None:
        """Set this part of a vector to 0, in place."""
        for piece in self.slices:
            vector[piece] = 0


@dataclass(frozen=True)
class Layout:
    """Where each parameter lies in a model's vector: name → slice, in order."""

    slices: Mapping[str, slice]

    def __len__(self) -> int:
        return max((piece.stop for piece in self.slices.values()), default=0)

    def part(self, prefixes: Sequence[str]) -> Part:
        """Return the parameters of some layers, named by the prefixes of their parameters' names."""
        for prefix in prefixes:
            if not any(_is_under(name, prefix) for name in self.slices):
                raise ValueError(f"{prefix!r}: no such layer; the parameters are {', '.join(self.slices)}")
        return Part(tuple(s for name, s in self.slices.items() if any(_is_under(name, p) for p in prefixes)))

    def rest(self, part: Part) -> Part:
        """Return the parameters that are not in a part."""
        taken = {piece.start for piece in part.slices}
        return Part(tuple(piece for piece in self.slices.values() if piece.start not in taken))

    def last_layers(self, count: int) -> Part:
        """Return the parameters of the last modules that have parameters of their own; of all, if there are fewer."""
        layers = list(dict.fromkeys(name.rpartition(".")[0] for name in self.slices))[-count:]
        return Part(tuple(s for name, s in self.slices.items() if name.rpartition(".")[0] in layers))

    def last_layer(self) -> str:
        """Return the name of the last layer that has parameters."""
        return list(self.slices)[-1].rpartition(".")[0]


def _is_under(name: str, prefix: str) -> bool:
    return not prefix or name == prefix or name.startswith(f"{prefix}.")


class Network:
    """A module whose trainable parameters and gradients live in two flat tensors, and the task that it is for."""

    SPOILS = "the network changes its input in place, which is a client's data; write x = x - m, not x -= m"

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu", task: Task | None = None) -> None:
        self.module, self.task = module.to(device), task or Classification(())
        parameters = check_vectorisable(self.module)
        size = sum(p.numel() for p in parameters.values())
        self.vector = torch.zeros(size, dtype=next(iter(parameters.values())).dtype, device=device)
        self.gradient = torch.zeros_like(self.vector)
        slices: dict[str, slice] = {}
        start = 0
        for name, p in parameters.items():
            piece = slices[name] = slice(start, start + p.numel())
            start = piece.stop
            view = _shaped_like(p, self.vector[piece])
            view.copy_(p.detach())
            p.data = view
            p.grad = _shaped_like(p, self.gradient[piece])
        self.layout = Layout(slices)
        self.private: PrivateRound | None = None
        """The client's round under privacy, through which its gradients then go."""
        self.per_sample: PerSample | None = None
        """How gradients of single samples are found; None before they are first asked for."""

    def check_whole(self) -> None:
        """Raise if the module has other parameters or gradients by now than those in the two tensors."""
        now = dict(self.module.named_parameters())
        size, start = self.vector.element_size(), (self.vector.data_ptr(), self.gradient.data_ptr())
        for name, piece in self.layout.slices.items():
            p = now.pop(name, None)
            theirs = None if p is None or p.grad is None else (p.data_ptr(), p.grad.data_ptr())
            if theirs != tuple(place + piece.start * size for place in start):
                raise ValueError(
                    f"{name} is not what is trained any more: the network replaces its parameters, or drops their "
                    "gradients (zero_grad); leave both to Orchard, and change values in place only"
                )
        if added := [name for name, p in now.items() if p.requires_grad]:
            raise ValueError(f"{added[0]} was added or unfrozen later; make all parameters at once")

    def buffers(self) -> dict[str, Tensor]:
        """Copy the buffers, which belong to a client and not to its model."""
        return {name: buffer.clone() for name, buffer in self.module.named_buffers()}

    def load_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Take over a client's buffers."""
        for name, buffer in self.module.named_buffers():
            buffer.copy_(buffers[name])

    @contextmanager
    def preserved_buffers(self) -> Iterator[None]:
        """Restore the buffers afterwards."""
        buffers = self.buffers()
        try:
            yield
        finally:
            self.load_buffers(buffers)

    def release(self) -> nn.Module:
        """Turn the module back into an ordinary one, in evaluation mode; this network cannot be used after that."""
        for p in self.module.parameters():
            p.data = p.data.clone()
            p.grad = None
        return self.module.eval()


def check_vectorisable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable parameters by name; raise if there is none or if they differ in type."""
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not parameters:
        raise ValueError("the model has no trainable parameter")
    dtypes = {p.dtype for p in parameters.values()}
    if len(dtypes) > 1:
        raise ValueError(f"the model mixes parameter types: {sorted(map(str, dtypes))}")
    if not (dtype := dtypes.pop()).is_floating_point:
        raise ValueError(f"its parameters are {dtype}; only real floating-point numbers can be trained and mixed")
    return parameters


def _shaped_like(parameter: Tensor, flat: Tensor) -> Tensor:
    """View a flat piece in a parameter's shape and memory format (channels last stays channels last)."""
    if parameter.dim() == 4:
        n, c, h, w = parameter.shape
        if parameter.stride() == (h * w * c, 1, w * c, c):
            return flat.view(n, h, w, c).permute(0, 3, 1, 2)
    return flat.view(parameter.shape)


def lay_out_channels_last(module: nn.Module) -> None:
    """Lay out convolutions with channels last.

    Unlike `Module.to(memory_format=...)` this also marks those with one input channel, for which both orders
    are the same in memory: the strides of the first convolution decide the layout of all that follow.
    """
    for p in module.parameters():
        if p.dim() == 4:
            n, c, h, w = p.shape
            p.data = p.new_empty(n, h, w, c).permute(0, 3, 1, 2).copy_(p.detach())


def empty_matrix(rows: int, like: Tensor) -> Tensor:
    """Return an uninitialised matrix of models, one aligned row for each."""
    size = like.numel()
    stride = -(-size // ROW_ALIGNMENT) * ROW_ALIGNMENT
    return torch.empty((rows, stride), dtype=like.dtype, device=like.device)[:, :size]


def stack(rows: Sequence[Tensor | None], like: Tensor) -> Tensor:
    """Copy models into the rows of one matrix; the row of an absent one is zero."""
    return fill(empty_matrix(len(rows), like), rows)


def fill(matrix: Tensor, rows: Sequence[Tensor | None]) -> Tensor:
    """Copy models into the rows of a matrix; the row of an absent one is zero."""
    for mine, row in zip(matrix, rows, strict=True):
        mine.zero_() if row is None else mine.copy_(row)
    return matrix


def mixture(weights: Tensor, models: Sequence[Tensor]) -> Tensor:
    """Return Σ_j ξ_j·w_j, in float64."""
    return torch.cat([weights @ block for block in float64_blocks(models)])


def float64_blocks(models: Sequence[Tensor], origins: Sequence[Tensor] | None = None) -> Iterator[Tensor]:
    """Yield all models, or what they are beyond their origins, side by side in float64, block by block.

    So a block stays in the processor's cache, and no other copy of the models is there whole.
    """
    starts = None if origins is None else _pieces(origins)
    for blocks in _pieces(models):
        moves = blocks if starts is None else [a - b for a, b in zip(blocks, next(starts), strict=True)]
        yield torch.stack(list(moves)).double()


def _pieces(models: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(torch.split(model, BLOCK) for model in models), strict=True)


def products(models: Sequence[Tensor], origins: Sequence[Tensor] | None = None) -> Tensor:
    """Return the scalar product of every pair of models, or of what they are beyond their origins, in float64."""
    total = torch.zeros(len(models), len(models), dtype=torch.float64)
    for block in float64_blocks(models, origins):
        total += block @ block.T
    return total


def cosines(models: Sequence[Tensor] | Tensor) -> Tensor:
    """Return the cosine of every pair of models, in float64."""
    pairs = products(list(models))
    lengths = pairs.diagonal().sqrt()
    return pairs / (lengths[:, None] * lengths)
