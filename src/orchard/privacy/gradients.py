"""The sum of a batch's gradients, each clipped to the norm C before it is added: g_i·min(1, C/‖g_i‖).

Two ways to the same. Where all parameters belong to linear layers, convolutions and group normalisation, a sample's
gradient follows from a layer's inputs and from the gradient at its outputs: one forward and one backward pass for all
samples, and no gradient of a single sample is ever laid out in the large linear layers. Any other network is
differentiated sample by sample by `torch.func`, as a batch of one, which takes three to four times as long.

A sample whose gradient is not finite counts as 0. Memory is bounded by chunks of samples.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from orchard.core.vector import Network

NUMBERS = 2**23
"""Numbers in the gradients of a chunk's samples, at most, unless those of a single sample are more."""
MOST = 128
"""Samples in a chunk, at most."""
ROUNDING = 1e-5
"""So much less than C a clipped gradient has, so that rounding never makes it more."""
TRIED = 3
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

Objective = Callable[[Tensor, Tensor], Tensor]
"""Takes outputs and targets, returns the sum of all samples' losses."""


@dataclass(frozen=True)
class PerSample:
    """How the gradients of single samples of a network are found: layer by layer or one by one, so many at a time."""

    layerwise: bool
    chunk: int


class Clipped(NamedTuple):
    """What each sample had before its gradient was clipped."""

    norms: Tensor
    losses: Tensor


def clipped_sum(network: "Network", x: Tensor, y: Tensor, clip: float) -> Clipped:
    """Fill the network's gradient with the sum of the samples' clipped gradients."""
    if network.per_sample is None:
        network.per_sample = way_for(network, x.shape[1:])
    return _clipped_sum(network, x, y, clip, lambda out, y: network.task.loss(out, y, "sum"), network.per_sample)


def _clipped_sum(
    network: "Network", x: Tensor, y: Tensor, clip: float, objective: Objective, way: PerSample
) -> Clipped:
    network.gradient.zero_()
    add = _add_layerwise if way.layerwise else _add_one_by_one
    pieces = zip(torch.split(x, way.chunk), torch.split(y, way.chunk), strict=True)
    found = [add(network, a, b, clip, objective) for a, b in pieces if len(b)]
    nothing = x.new_zeros(0)
    return Clipped(*(torch.cat(each) for each in zip((nothing, nothing), *found, strict=True)))


def _factors(norms: Tensor, clip: float) -> Tensor:
    """Return by how much each gradient is multiplied: 0 if it is not finite."""
    factors = ((1 - ROUNDING) * clip / norms.clamp(min=torch.finfo(norms.dtype).tiny)).clamp(max=1)
    return torch.where(norms.isfinite(), factors, 0)


# --- Sample by sample ---


def _add_one_by_one(network: "Network", x: Tensor, y: Tensor, clip: float, objective: Objective) -> Clipped:
    """Add the clipped gradients of some samples, each differentiated as a batch of one."""
    trained = {name: p.detach() for name, p in network.module.named_parameters() if p.requires_grad}

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return objective(torch.func.functional_call(network.module, parameters, (x[None],)), y[None])

    one = torch.func.grad_and_value(loss)
    each, losses = torch.func.vmap(one, in_dims=(None, 0, 0), randomness="different")(trained, x, y)
    norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in each.values()]).norm(dim=0)
    factors = _factors(norms, clip)
    for name, g in each.items():
        found = torch.tensordot(factors, torch.where(_like(factors > 0, g), g, 0), 1)
        _grad(network.module.get_parameter(name)).add_(found)
    return Clipped(norms, losses)


def _like(flags: Tensor, g: Tensor) -> Tensor:
    return flags.reshape(-1, *[1] * (g.dim() - 1))


def _grad(parameter: Tensor) -> Tensor:
    """Return where a parameter's gradient is collected: in the network's vector."""
    return cast("Tensor", parameter.grad)


# --- Layer by layer ---


def _add_layerwise(network: "Network", x: Tensor, y: Tensor, clip: float, objective: Objective) -> Clipped:
    """Add the clipped gradients of some samples, from inputs and outputs of each layer."""
    with _recorded(network.module) as layers, torch.enable_grad():
        outputs = network.module(x)
        total = objective(outputs, y)
    found = torch.autograd.grad(total, [outputs for _, outputs in layers.values()])
    losses = torch.func.vmap(lambda one, y: objective(one[None], y[None]))(outputs.detach(), y)
    parts = [
        _PARTS[type(layer)](layer, a.detach(), b) for (layer, (a, _)), b in zip(layers.items(), found, strict=True)
    ]
    norms = torch.stack([part.squares for part in parts]).sum(0).sqrt()
    factors = _factors(norms, clip)
    for part in parts:
        part.add(factors)
    return Clipped(norms, losses)


class _Explicit:
    """The gradients of a layer's parameters, one for each sample."""

    def __init__(self, layer: nn.Module, *gradients: Tensor) -> None:
        given = (p for p in (layer.weight, layer.bias) if isinstance(p, nn.Parameter))
        self.each = [(p, g.flatten(1)) for p, g in zip(given, gradients, strict=False) if p.requires_grad]
        self.squares = torch.stack([g.square().sum(1) for _, g in self.each]).sum(0)

    def add(self, factors: Tensor) -> None:
        for p, g in self.each:
            _grad(p).add_((factors @ torch.where((factors > 0)[:, None], g, 0)).view(p.shape))


class _Outer:
    """The gradients b_i·a_iᵀ of a linear layer, whose norms are ‖a_i‖·‖b_i‖: they are never laid out."""

    def __init__(self, layer: nn.Linear, a: Tensor, b: Tensor) -> None:
        self.a, self.b, self.layer = a, b, layer
        length = _lengths(b)
        weight = (length * _lengths(a)).square() if layer.weight.requires_grad else torch.zeros_like(length)
        bias = layer.bias is not None and layer.bias.requires_grad
        self.squares = weight + length.square() if bias else weight

    def add(self, factors: Tensor) -> None:
        there = (factors > 0)[:, None]
        b = torch.where(there, self.b * factors[:, None], 0)
        if self.layer.weight.requires_grad:
            _grad(self.layer.weight).addmm_(b.t(), torch.where(there, self.a, 0))
        if self.layer.bias is not None and self.layer.bias.requires_grad:
            _grad(self.layer.bias).add_(b.sum(0))


def _lengths(rows: Tensor) -> Tensor:
    """Return the length of each row, also of one whose squares are too small: times a long row it may be long."""
    largest = rows.abs().amax(1, keepdim=True)
    scale = torch.where(largest > 0, largest, 1)
    lengths: Tensor = torch.linalg.vector_norm(rows / scale, dim=1) * scale[:, 0]
    return lengths


Part = _Explicit | _Outer


def _linear(layer: Any, a: Tensor, b: Tensor) -> Part:
    if a.dim() == 2:
        return _Outer(layer, a, b)
    a, b = a.flatten(1, -2), b.flatten(1, -2)
    return _Explicit(layer, torch.bmm(b.transpose(1, 2), a), b.sum(1))


def _convolution(layer: Any, a: Tensor, b: Tensor) -> Part:
    b = b.flatten(2)
    return _Explicit(layer, torch.bmm(b, _patches(layer, a)), b.sum(2))


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
    return _Explicit(layer, (b * normalised).flatten(2).sum(2), b.flatten(2).sum(2))


_PARTS: Mapping[type[nn.Module], Callable[[Any, Tensor, Tensor], Part]] = {
    nn.Linear: _linear,
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    nn.GroupNorm: _group_norm,
}


@contextmanager
def _recorded(module: nn.Module) -> Iterator[dict[nn.Module, tuple[Tensor, Tensor]]]:
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


# --- Which way ---


def way_for(network: "Network", shape: tuple[int, ...]) -> PerSample:
    """Return how a network's gradients are found: layer by layer if that gives what one by one gives.

    A layer that is used twice, parameters that are used elsewhere, or samples that are mixed on their way would show.
    """
    with in_general(network) as numbers:
        x = torch.randn((TRIED, *shape), generator=numbers).to(network.vector)
        with torch.no_grad():
            outputs = network.module(x)
        v = torch.randn(outputs.shape, generator=numbers).to(outputs)
        size = math.prod(shape)
        one_by_one = PerSample(layerwise=False, chunk=_chunk(size + len(network.gradient)))
        (norms, _), g = _clipped_sum(network, x, v, 1.0, _product, one_by_one), network.gradient.clone()
        if not _all_known(network.module):
            return one_by_one
        with _recorded(network.module) as layers, torch.no_grad():
            network.module(x)
        size += sum(_numbers(layer, a, b) for layer, (a, b) in layers.items())
        layerwise = PerSample(layerwise=True, chunk=_chunk(size))
        try:
            (others, _), h = _clipped_sum(network, x, v, 1.0, _product, layerwise), network.gradient
        except RuntimeError:
            return one_by_one
    same = torch.allclose(norms, others, rtol=1e-3) and torch.allclose(g, h, rtol=1e-3, atol=1e-5)
    return layerwise if same else one_by_one


@contextmanager
def in_general(network: "Network") -> Iterator[torch.Generator]:
    """Give the network random parameters for a while, and a generator of random samples.

    What is special at first, e.g. a layer of zeros, would hide what it lets through as soon as it is trained.
    """
    numbers, before = torch.Generator().manual_seed(0), network.vector.clone()
    with torch.random.fork_rng(devices=[]):
        try:
            for p in (p.detach() for p in network.module.parameters() if p.requires_grad):
                width = p[0].numel() if p.dim() > 1 else 100
                p.add_(torch.randn(p.shape, generator=numbers).to(p) / math.sqrt(width))
            yield numbers
        finally:
            network.vector.copy_(before)


def _chunk(numbers: int) -> int:
    return max(1, min(MOST, NUMBERS // numbers))


def _numbers(layer: Any, a: Tensor, b: Tensor) -> int:
    """Return how many numbers a layer takes for one sample."""
    if isinstance(layer, nn.Linear) and a.dim() == 2:
        return a[0].numel() + b[0].numel()
    patches = b[0, 0].numel() * layer.weight[0].numel() if isinstance(layer, CONVOLUTIONS) else a[0].numel()
    return int(b[0].numel() + layer.weight.numel() + patches)


def _product(outputs: Tensor, v: Tensor) -> Tensor:
    return (outputs * v).sum()


def _all_known(module: nn.Module) -> bool:
    """Tell whether all layers are known, and have their parameters to themselves."""
    layers = _trained_layers(module)
    own = [id(p) for layer in layers for p in layer.parameters(recurse=False)]
    return all(map(_is_known, layers)) and len(set(own)) == len(own)


def _is_known(layer: nn.Module) -> bool:
    """Tell whether a layer is exactly one of those below: a subclass, or a hook, may make something else of weights."""
    own = {name for name, _ in layer.named_parameters(recurse=False)}
    if type(layer) not in _PARTS or not own <= {"weight", "bias"} or "weight" not in own:
        return False
    if isinstance(layer, CONVOLUTIONS):
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return True
