"""The sum of a batch's gradients, each clipped to the norm C before it is added: g_i·min(1, C/‖g_i‖).

Two ways to the same. Where all parameters belong to linear layers, convolutions and group normalisation, a sample's
gradient follows from a layer's inputs and from the gradient at its outputs: one forward and one backward pass for all
samples, and no gradient of a single sample is ever laid out in the large linear layers. Any other network is
differentiated sample by sample by `torch.func`, as a batch of one, which takes three to four times as long.

A sample whose gradient is not finite counts as 0. Memory is bounded by chunks of samples.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from orchard.privacy.layers import PARTS, all_known, collected, numbers_in, recorded

if TYPE_CHECKING:
    from orchard.core.vector import Network

NUMBERS = 2**23
"""Numbers in the gradients of a chunk's samples, at most, unless those of a single sample are more."""
MOST = 128
"""Samples in a chunk, at most."""
ROUNDING = 1e-5
"""So much less than C a clipped gradient has, so that rounding never makes it more."""
TRIED = 3

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
        collected(network.module.get_parameter(name)).add_(found)
    return Clipped(norms, losses)


def _like(flags: Tensor, g: Tensor) -> Tensor:
    return flags.reshape(-1, *[1] * (g.dim() - 1))


# --- Layer by layer ---


def _add_layerwise(network: "Network", x: Tensor, y: Tensor, clip: float, objective: Objective) -> Clipped:
    """Add the clipped gradients of some samples, from inputs and outputs of each layer."""
    with recorded(network.module) as layers, torch.enable_grad():
        outputs = network.module(x)
        total = objective(outputs, y)
    found = torch.autograd.grad(total, [outputs for _, outputs in layers.values()])
    losses = torch.func.vmap(lambda one, y: objective(one[None], y[None]))(outputs.detach(), y)
    parts = [PARTS[type(layer)](layer, a.detach(), b) for (layer, (a, _)), b in zip(layers.items(), found, strict=True)]
    norms = torch.stack([part.squares for part in parts]).sum(0).sqrt()
    factors = _factors(norms, clip)
    for part in parts:
        part.add(factors)
    return Clipped(norms, losses)


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
        if not all_known(network.module):
            return one_by_one
        with recorded(network.module) as layers, torch.no_grad():
            network.module(x)
        size += sum(numbers_in(layer, a, b) for layer, (a, b) in layers.items())
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


def _product(outputs: Tensor, v: Tensor) -> Tensor:
    return (outputs * v).sum()
