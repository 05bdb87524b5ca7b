"""What a first upload tells about the samples behind it: their labels, and the samples themselves.

A client with a few samples takes one step; the server knows where it started, so it has a multiple of the gradient.

    labels      B. Zhao, K. Mopuri and H. Bilen, "iDLG", https://arxiv.org/abs/2001.02610. Of the gradient of the last
                layer's bias, p_k − 1[k = y], only the label's part is negative. Over many samples the update of that
                bias grows with the numbers of samples by class.
    samples     J. Geiping, H. Bauermeister, H. Dröge and M. Moeller, "Inverting Gradients", NeurIPS 2020,
                https://arxiv.org/abs/2003.14053. If the first layer is linear with a bias, a single sample is
                ∂L/∂W_k divided by ∂L/∂b_k for any unit k, exactly. Otherwise samples are looked for whose gradient
                points the way that was seen, with little variation between neighbouring pixels; labels are known then.

In these rehearsals the server knows a client's first model, or how it is mixed. Later it may not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from orchard.core.vector import Network
from orchard.data.samples import Samples

ITERATIONS = 400
RATE = 0.1
SMOOTH = 1e-2
"""The weight of the variation between neighbouring pixels."""


@dataclass(frozen=True)
class FirstStep:
    """What the server has of a client's first step."""

    model: Tensor
    """At which the gradient was taken."""
    change: Tensor
    """By how much the upload went down: a multiple of the gradient."""


def last_bias(network: Network) -> slice | None:
    """Return where the last layer's bias lies; None if it has none, or an output that is not one per class."""
    layer = network.layout.last_layer()
    place = network.layout.slices.get(f"{layer}.bias" if layer else "bias")
    classes = len(network.task.classes)
    return place if place is not None and place.stop - place.start == classes else None


def label_of(network: Network, step: FirstStep) -> int | None:
    """Return the label of a single sample; None if the last layer does not tell."""
    place = last_bias(network)
    return None if place is None else int(step.change[place].argmin())


def sample_of(network: Network, step: FirstStep, shape: Sequence[int]) -> Tensor | None:
    """Return the single sample behind a step, if the first layer is linear; None if it is not, or has no bias."""
    first = next(((name, m) for name, m in network.module.named_modules() if list(m.parameters(recurse=False))), None)
    if first is None or not isinstance(first[1], nn.Linear) or first[1].bias is None:
        return None
    if first[1].in_features != math.prod(shape):
        return None
    name = f"{first[0]}." if first[0] else ""
    weight, bias = (step.change[network.layout.slices[f"{name}{part}"]] for part in ("weight", "bias"))
    unit = int(bias.abs().argmax())
    if not bool(bias[unit]):
        return None
    return (weight.reshape(len(bias), -1)[unit] / bias[unit]).reshape(tuple(shape))


def samples_of(network: Network, step: FirstStep, y: Tensor, like: Tensor, iterations: int = ITERATIONS) -> Tensor:
    """Look for samples with these targets whose gradient points the way of a step; `like` gives shape and range."""
    network.vector.copy_(step.model)
    network.gradient.copy_(step.change)
    module = network.module.train()
    parameters = [p for p in module.parameters() if p.requires_grad]
    seen = [p.grad.clone() for p in parameters if p.grad is not None]
    length = torch.sqrt(sum((part.square().sum() for part in seen), torch.zeros(())))
    low, high = float(like.min()), float(like.max())
    x = torch.full_like(like, (low + high) / 2)
    x += (high - low) / 10 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
    x.requires_grad_()
    rate = torch.optim.Adam([x], lr=RATE * (high - low) / 2)
    steps = torch.optim.lr_scheduler.MultiStepLR(rate, [iterations * k // 8 for k in (3, 5, 7)], 0.1)
    for _ in range(iterations):
        gradients = torch.autograd.grad(network.task.loss(module(x), y), parameters, create_graph=True)
        together = sum(((a * b).sum() for a, b in zip(gradients, seen, strict=True)), torch.zeros(()))
        mine = torch.sqrt(sum((part.square().sum() for part in gradients), torch.zeros(())))
        loss = 1 - together / (mine * length + 1e-30) + SMOOTH * _variation(x)
        (slope,) = torch.autograd.grad(loss, [x])
        x.grad = slope.sign()
        rate.step()
        steps.step()
        with torch.no_grad():
            x.clamp_(low, high)
    return x.detach()


def _variation(x: Tensor) -> Tensor:
    """Return the mean difference between neighbours along every axis of images, volumes and signals."""
    axes = range(2, x.dim())
    return sum((x.diff(dim=axis).abs().mean() for axis in axes), torch.zeros(()))


def likeness(found: Tensor, true: Tensor) -> float:
    """Return the peak signal-to-noise ratio in decibels; at most 100, which is all that floats hold."""
    error, span = float(functional.mse_loss(found, true)), float(true.max() - true.min())
    return 100.0 if error <= 1e-10 * span**2 else 10 * math.log10(max(span, 1e-30) ** 2 / error)


def matched(found: Tensor, true: Samples) -> Tensor:
    """Return what was found in the order of the true samples, each as near as possible; the last one gets the rest."""
    left, order = list(range(len(found))), list[int]()
    for one in true.x:
        nearest = min(left, key=lambda k: float(functional.mse_loss(found[k], one)))
        left.remove(nearest)
        order.append(nearest)
    return found[order]
