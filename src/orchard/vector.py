"""A module as one flat vector.

All trainable parameters of a module become views into one contiguous tensor, and their gradients views into
another. So mixing models is a matrix-vector product, an upload is a copy, and methods never walk named
parameters. What is not trainable stays beside the vector, local to the client, and is never mixed or sent:
buffers (mixed BatchNorm variances could turn negative) and frozen parameters (equal everywhere already).
"""

import ctypes
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn

ROW_ALIGNMENT = 16
"""Rows of a matrix of models start at multiples of this many elements (64 bytes in float32), so that a
product with it takes the same vectorised path, and gives the same bits, for every row and every run."""


class Network:
    """A module whose trainable parameters and gradients live in two flat tensors."""

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        self.module = module.to(device)
        parameters = check_vectorisable(self.module)
        size = sum(p.numel() for p in parameters)
        self.vector = torch.zeros(size, dtype=parameters[0].dtype, device=device)
        self.gradient = torch.zeros_like(self.vector)
        self._matrix = empty_matrix(0, self.vector)
        start = 0
        for p in parameters:
            part = slice(start, start + p.numel())
            start = part.stop
            view = _shaped_like(p, self.vector[part])
            view.copy_(p.detach())
            p.data = view
            p.grad = _shaped_like(p, self.gradient[part])

    def buffers(self) -> dict[str, Tensor]:
        """Copy the buffers, which belong to a client and not to its model."""
        return {name: buffer.clone() for name, buffer in self.module.named_buffers()}

    def load_buffers(self, buffers: dict[str, Tensor]) -> None:
        """Take over a client's buffers."""
        for name, buffer in self.module.named_buffers():
            buffer.copy_(buffers[name])

    def matrix(self, rows: Sequence[Tensor | None]) -> Tensor:
        """Return models as the rows of one matrix, to use until the next call; an absent one's row is finite.

        Where they already are the rows of one matrix it is returned itself: clients that train with the same cores
        then share them, in memory and in the processor's cache. Others are copied, always into the same memory:
        fresh memory costs more than the copying, since the system hands it out page by page and zeroed.
        """
        shared = shared_matrix(rows)
        if shared is not None:
            return shared
        if len(self._matrix) != len(rows):
            self._matrix = empty_matrix(len(rows), self.vector)
        for mine, row in zip(self._matrix, rows, strict=True):
            mine.zero_() if row is None else mine.copy_(row)
        return self._matrix

    def release(self) -> nn.Module:
        """Give the module back as an ordinary one, in evaluation mode; this network is then of no more use."""
        for p in self.module.parameters():
            p.data = p.data.clone()
            p.grad = None
        return self.module.eval()


def check_vectorisable(module: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters, or refuse a module that has none or mixes their types."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the model has no trainable parameter")
    dtypes = {p.dtype for p in parameters}
    if len(dtypes) > 1:
        raise ValueError(f"the model mixes parameter types: {sorted(map(str, dtypes))}")
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
    """Return an uninitialised matrix of models, one aligned row for each, all shaped like one of them."""
    size = like.numel()
    stride = -(-size // ROW_ALIGNMENT) * ROW_ALIGNMENT
    return torch.empty((rows, stride), dtype=like.dtype, device=like.device)[:, :size]


def give_memory_back() -> None:
    """Return to the system the memory of models that are gone, which the C library keeps for itself."""
    with suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)


def shared_matrix(rows: Sequence[Tensor | None]) -> Tensor | None:
    """Return the matrix whose rows the given ones are, in order, with or without all of them; None if there is none."""
    first = next((row for row in rows if row is not None and row._base is not None), None)
    if first is None:
        return None
    whole, stride = first._base, empty_matrix(0, first).stride(0)
    if whole is None or whole.shape != (len(rows), stride):
        return None
    for j, row in enumerate(rows):
        if row is not None and not (row._base is whole and row.storage_offset() == j * stride):
            return None
    return whole[:, : first.numel()]
