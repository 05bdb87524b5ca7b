"""The layers whose gradients for single samples follow from their inputs and from the gradient at their outputs."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def collected(parameter: Tensor) -> Tensor:
    """Return where a parameter's gradient is collected: in the network's vector."""
    return cast("Tensor", parameter.grad)


class Explicit:
    """The gradients of a layer's parameters, one for each sample."""

    def __init__(self, layer: nn.Module, *gradients: Tensor) -> None:
        given = (p for p in (layer.weight, layer.bias) if isinstance(p, nn.Parameter))
        self.each = [(p, g.flatten(1)) for p, g in zip(given, gradients, strict=False) if p.requires_grad]
        self.squares = torch.stack([g.square().sum(1) for _, g in self.each]).sum(0)

    def add(self, factors: Tensor) -> None:
        """Add them, each times its factor, to what is collected."""
        for p, g in self.each:
            collected(p).add_((factors @ torch.where((factors > 0)[:, None], g, 0)).view(p.shape))


class Outer:
    """The gradients b_i·a_iᵀ of a linear layer, whose norms are ‖a_i‖·‖b_i‖: they are never laid out."""

    def __init__(self, layer: nn.Linear, a: Tensor, b: Tensor) -> None:
        self.a, self.b, self.layer = a, b, layer
        length = _lengths(b)
        weight = (length * _lengths(a)).square() if layer.weight.requires_grad else torch.zeros_like(length)
        bias = layer.bias is not None and layer.bias.requires_grad
        self.squares = weight + length.square() if bias else weight

    def add(self, factors: Tensor) -> None:
        """Add them, each times its factor, to what is collected."""
        there = (factors > 0)[:, None]
        b = torch.where(there, self.b * factors[:, None], 0)
        if self.layer.weight.requires_grad:
            collected(self.layer.weight).addmm_(b.t(), torch.where(there, self.a, 0))
        if self.layer.bias is not None and self.layer.bias.requires_grad:
            collected(self.layer.bias).add_(b.sum(0))


def _lengths(rows: Tensor) -> Tensor:
    """Return the length of each row, also of one whose squares are too small: times a long row it may be long."""
    largest = rows.abs().amax(1, keepdim=True)
    scale = torch.where(largest > 0, largest, 1)
    lengths: Tensor = torch.linalg.vector_norm(rows / scale, dim=1) * scale[:, 0]
    return lengths


Part = Explicit | Outer


def _linear(layer: Any, a: Tensor, b: Tensor) -> Part:
    if a.dim() == 2:
        return Outer(layer, a, b)
    a, b = a.flatten(1, -2), b.flatten(1, -2)
    return Explicit(layer, torch.bmm(b.transpose(1, 2), a), b.sum(1))


def _convolution(layer: Any, a: Tensor, b: Tensor) -> Part:
    b = b.flatten(2)
    return Explicit(layer, torch.bmm(b, _patches(layer, a)), b.sum(2))


def _patches(layer: Any, a: Tensor) -> Tensor:
    """Return what a convolution multiplies its weights with: samples × places × weights of an output."""
    if a.dim() == 4:
        unfolded = functional.unfold(a, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
        return unfolded.transpose(1, 2)
    a = functional.pad(a, [side for padding in reversed(layer.padding) for side in (padding, padding)])
    n, dimensions = len(a), a.dim() - 2
    for d, (size, step, apart) in enumerate(zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)):
        a = a.unfold(2 + d, (size - 1) * apart + 1, step)[..., ::apart]
    places, kernel = range(2, 2 + dimensions), range(2 + dimensions, 2 + 2 * dimensions)
    return a.permute(0, *places, 1, *kernel).reshape(n, math.prod(a.shape[2 : 2 + dimensions]), -1)


def _group_norm(layer: Any, a: Tensor, b: Tensor) -> Part:
    normalised = functional.group_norm(a, layer.num_groups, None, None, layer.eps)
    return Explicit(layer, (b * normalised).flatten(2).sum(2), b.flatten(2).sum(2))


PARTS: Mapping[type[nn.Module], Callable[[Any, Tensor, Tensor], Part]] = {
    nn.Linear: _linear,
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    nn.GroupNorm: _group_norm,
}
"""Makes a layer's part of samples' gradients from its inputs and the gradient at its outputs."""


@contextmanager
def recorded(module: nn.Module) -> Iterator[dict[nn.Module, tuple[Tensor, Tensor]]]:
    """Record the inputs and outputs of all layers with parameters to train."""
    found: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor], outputs: Tensor) -> None:
        found[layer] = (*inputs, *named.values())[0], outputs

    hooks = [layer.register_forward_hook(note, with_kwargs=True) for layer in _trained_layers(module)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _trained_layers(module: nn.Module) -> list[nn.Module]:
    return [m for m in module.modules() if any(p.requires_grad for p in m.parameters(recurse=False))]


# --- Which layers these are ---


def all_known(module: nn.Module) -> bool:
    """Tell whether all layers are known, and have their parameters to themselves."""
    layers = _trained_layers(module)
    own = [id(p) for layer in layers for p in layer.parameters(recurse=False)]
    return all(map(_is_known, layers)) and len(set(own)) == len(own)


def _is_known(layer: nn.Module) -> bool:
    """Tell whether a layer is exactly one of those above: a subclass, or a hook, may make something else of weights."""
    own = {name for name, _ in layer.named_parameters(recurse=False)}
    if type(layer) not in PARTS or not own <= {"weight", "bias"} or "weight" not in own:
        return False
    if isinstance(layer, CONVOLUTIONS):
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return True


def numbers_in(layer: Any, a: Tensor, b: Tensor) -> int:
    """Return how many numbers a layer takes for one sample."""
    if isinstance(layer, nn.Linear) and a.dim() == 2:
        return a[0].numel() + b[0].numel()
    patches = b[0, 0].numel() * layer.weight[0].numel() if isinstance(layer, CONVOLUTIONS) else a[0].numel()
    return int(b[0].numel() + layer.weight.numel() + patches)
