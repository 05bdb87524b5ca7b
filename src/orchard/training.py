"""Local training and evaluation: the loop over epochs and batches, written once for every method."""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from orchard.data import ClientData, Samples
from orchard.experiment import MOMENTUM, Experiment
from orchard.measures import Measures, measure
from orchard.models import seeded_layers
from orchard.randomness import derived_seed, generator
from orchard.vector import Network

EVALUATION_BATCH = 256
"""Larger ones are slower: their activations are handed to and fro between process and system."""
FIRST_BATCH = 32
"""Smaller ones take longer an image: 1.1 times as long with 32, 1.25 times with 16."""

Step = Callable[[Tensor, Tensor], Tensor]
"""Takes a batch, updates whatever is trained, returns the loss."""


@dataclass(frozen=True)
class Scores:
    """How well one model does on a client's validation and test data."""

    validation: Measures
    test: Measures
    loss: float | None = field(default=None, compare=False)
    """The mean cross-entropy on the validation data; it stays where it was measured."""


@dataclass(frozen=True)
class Site:
    """What a client has at hand where its data are: the data, and a network to run models through."""

    client: int
    experiment: Experiment
    data: ClientData
    network: Network
    random_layers: bool = False
    """Whether the network draws random numbers while training, as dropout does."""


class NotFinite(Exception):
    """Training ran away: a loss, a gradient or a relationship is not finite."""


def train(site: Site, round: int, step: Step, epochs: int | None = None) -> float:
    """Run the local epochs of a round, batch by batch; return the mean loss over all samples seen."""
    site.network.module.train()
    total = 0.0
    epochs = site.experiment.epochs if epochs is None else epochs
    seed = derived_seed(site.experiment.seed, "layers", site.client, round)
    with seeded_layers(seed) if site.random_layers else nullcontext():
        for epoch in range(epochs):
            losses, sizes = [], []
            for x, y in _batches(site, round, epoch):
                losses.append(step(x, y))
                sizes.append(len(y))
            # Looked at once an epoch, since a look waits for the device.
            values = torch.stack(losses).cpu().double()
            if not bool(values.isfinite().all()):
                first = int((~values.isfinite()).nonzero()[0])
                raise NotFinite(f"the loss or a gradient is not finite at step {first} of epoch {epoch}")
            total += float(values @ torch.tensor(sizes, dtype=torch.float64))
    return total / max(1, epochs * len(site.data.train.y))


def gradient(network: Network, x: Tensor, y: Tensor) -> Tensor:
    """Fill the network's gradient with that of the batch-mean cross-entropy; return the loss.

    What is returned is not finite if any part of the gradient is not, so that `train` notices at the right step.
    """
    network.gradient.zero_()
    loss = functional.cross_entropy(network.module(x), y)
    torch.autograd.backward(loss)
    return loss.detach() + 0 * network.gradient.sum()


def descend(
    site: Site,
    round: int,
    start: Tensor,
    *,
    epochs: int | None = None,
    centre: Tensor | None = None,
    strength: float = 0.0,
) -> tuple[Tensor, float]:
    """Train a copy of a model by momentum SGD on the local data; return it and its mean training loss.

    With a centre, the gradient is increased by strength·(w − centre), inside the momentum.
    """
    network = site.network
    w = network.vector.copy_(start)
    sgd = MomentumSGD(w, site.experiment.learning_rate(round))

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = gradient(network, x, y)
        if centre is not None:
            network.gradient.add_(w - centre, alpha=strength)
        sgd.step(network.gradient)
        return loss

    loss = train(site, round, step, epochs)
    check_finite("model", w)
    return w.clone(), loss


class MomentumSGD:
    """A fresh optimiser of one tensor: v ← βv + gradient, x ← x − lr·v.

    `torch.optim.SGD` does the same on a tensor of this size in twice the time.
    """

    def __init__(self, x: Tensor, lr: float) -> None:
        self.x, self.lr = x, lr
        self.velocity = torch.zeros_like(x)

    def step(self, gradient: Tensor) -> None:
        """Take one step."""
        self.velocity.mul_(MOMENTUM).add_(gradient)
        self.x.add_(self.velocity, alpha=-self.lr)


def check_finite(name: str, values: Tensor) -> None:
    """Refuse to go on with, or to upload, anything that is not finite."""
    if not bool(values.isfinite().all()):
        raise NotFinite(f"the {name} is not finite after the last step")


def evaluate(site: Site, model: Tensor) -> Scores:
    """Measure a model on the client's validation and test data."""
    validation, test = site.data.validation, site.data.test
    scores = class_scores(site.network, model, validation.x)
    loss = functional.cross_entropy(scores, validation.y).item()
    return Scores(measure(scores, validation.y), measure(class_scores(site.network, model, test.x), test.y), loss)


@torch.inference_mode()
def mean_loss(network: Network, model: Tensor, samples: Samples, limit: float = math.inf) -> float:
    """Return the mean cross-entropy of a model on samples, or infinity if it is above a limit.

    No sample's loss is negative, so a model that is over the limit is so for good: the first few samples are often
    enough to tell. Hence small batches first.
    """
    network.vector.copy_(model)
    network.module.eval()
    total, start, size = 0.0, 0, FIRST_BATCH
    while start < len(samples.y):
        batch = slice(start, start + size)
        scores = network.module(samples.x[batch])
        total += functional.cross_entropy(scores, samples.y[batch], reduction="sum").item()
        if total / len(samples.y) > limit:
            return math.inf
        start, size = start + size, min(2 * size, EVALUATION_BATCH)
    return total / len(samples.y)


@torch.inference_mode()
def class_scores(network: Network, model: Tensor, x: Tensor) -> Tensor:
    """Run samples through a model in evaluation mode, in large batches."""
    network.vector.copy_(model)
    network.module.eval()
    return torch.cat([network.module(batch) for batch in torch.split(x, EVALUATION_BATCH)])


def _batches(site: Site, round: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield an epoch's batches; their order depends on (seed, client, round, epoch) and nothing else."""
    x, y = site.data.train
    draw = generator(site.experiment.seed, "batches", site.client, round, epoch)
    order = torch.from_numpy(draw.permutation(len(y))).to(y.device)
    for chosen in torch.split(order, site.experiment.batch_size):
        yield x.index_select(0, chosen), y.index_select(0, chosen)
