"""Local training: the loop over epochs and batches, the gradient and the optimiser, written once for every method."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from orchard.core.evaluation import mean_loss, outputs_of
from orchard.core.models import seeded_layers
from orchard.core.vector import Network, Part, stack
from orchard.data.clients import ClientData
from orchard.experiment import Experiment
from orchard.privacy.accounting import account_of
from orchard.privacy.noise import Noise
from orchard.privacy.private_round import PrivateRound, blind_loss
from orchard.randomness import derived_seed, generator

Step = Callable[[Tensor, Tensor], Tensor]
"""Takes a batch, updates whatever is trained, returns the loss."""
Correction = Callable[[Tensor, Tensor], None]
"""Takes a model and its gradient, and corrects the gradient in place."""


class NotFinite(Exception):
    """Training diverged: a loss, a gradient or a relationship is not finite."""


@dataclass(frozen=True)
class ClientContext:
    """What a client has at hand where its data are: the data, and a network to run models through."""

    client: int
    experiment: Experiment
    data: ClientData
    network: Network
    random_layers: bool = False
    """Whether the network draws random numbers, as dropout does."""
    stacker: Callable[[Sequence[Tensor | None], Tensor], Tensor] = stack
    """How the engine puts models into one matrix."""
    noise: Noise | None = None
    """Where noise comes from under privacy; none: from the experiment's seed, as in simulations."""
    private: PrivateRound | None = None
    """Under privacy, the only way to the data, which are withheld."""

    def guarded(self, round: int) -> "ClientContext":
        """Return what a method may see in a round: everything, or under privacy all but the samples."""
        privacy, samples = self.experiment.privacy, len(self.data.train.y)
        if privacy is None:
            return self
        noise = self.noise or Noise.of_seed(self.experiment.seed, self.client)
        queries = self.experiment.method.queries(self.experiment, samples, round)
        account = account_of(self.experiment, samples)
        private = PrivateRound(privacy, account, queries, noise.of(f"round {round}".encode()), self.data)
        return replace(self, data=private.withheld(), private=private)

    def loss(self, model: Tensor, part: Literal["train", "validation"], limit: float = math.inf) -> float:
        """Return a model's mean loss on a part of the data, infinity if it is above a limit; noised under privacy."""
        if self.private is None:
            return mean_loss(self.network, model, getattr(self.data, part), limit)
        samples = self.private.samples(part)
        return self.private.loss(self.network.task, outputs_of(self.network, model, samples.x), samples.y, part)

    def stack(self, models: Sequence[Tensor | None]) -> Tensor:
        """Return models as the rows of one matrix, to read until the next call; the row of an absent one is finite."""
        return self.stacker(models, self.network.vector)

    def guess_loss(self) -> float:
        """Return the mean loss of a guess by the training targets' frequencies; under privacy of one without any."""
        task = self.network.task
        return task.guess_loss(self.data.train.y) if self.private is None else blind_loss(task)

    def batches(self, round: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield an epoch's batches; their order depends on (seed, client, round, epoch) and nothing else.

        Under privacy they are Poisson samples, new ones each time, of which only `gradient` can be asked.
        """
        if self.private is not None:
            yield from self.private.batches(self.experiment.batches(len(self.data.train.y), 1))
            return
        x, y = self.data.train
        draw = generator(self.experiment.seed, "batches", self.client, round, epoch)
        order = torch.from_numpy(draw.permutation(len(y))).to(y.device)
        for chosen in torch.split(order, self.experiment.batch_size):
            yield x.index_select(0, chosen), y.index_select(0, chosen)


def run_epochs(
    context: ClientContext, round: int, step: Step, epochs: int | None = None, first_epoch: int = 0
) -> float:
    """Run the local epochs of a round, batch by batch; return the mean loss over all samples seen.

    Where a method trains in phases, a later one goes on at `first_epoch`: with batches and draws of its own.
    """
    context.network.module.train()
    total = 0.0
    epochs = context.experiment.epochs if epochs is None else epochs
    phase = (first_epoch,) if first_epoch else ()
    seed = derived_seed(context.experiment.seed, "layers", context.client, round, *phase)
    with seeded_layers(seed) if context.random_layers else nullcontext():
        for epoch in range(first_epoch, first_epoch + epochs):
            losses, sizes = [], []
            for x, y in context.batches(round, epoch):
                losses.append(step(x, y))
                sizes.append(len(y) if context.private is None else 0)  # a batch's size is not public
            # Checked once per epoch, since a look waits for the device.
            values = torch.stack(losses).cpu().double()
            if not bool(values.isfinite().all()):
                first = int((~values.isfinite()).nonzero()[0])
                raise NotFinite(f"the loss or a gradient is not finite at step {first + 1} of epoch {epoch + 1}")
            total += float(values @ torch.tensor(sizes, dtype=torch.float64))
    context.network.check_whole()
    return total / max(1, epochs * len(context.data.train.y))


def gradient(network: Network, x: Tensor, y: Tensor) -> Tensor:
    """Fill the network's gradient with that of the batch's mean loss, in training mode; return the loss.

    The loss is not finite if any part of the gradient is not, so that `run_epochs` notices at the right step.
    Under privacy each sample's gradient is clipped, noise is added, and the loss is 0: a method does not see it.
    """
    network.module.train()
    if network.private is not None:
        return network.private.gradient(network, x, y)
    network.gradient.zero_()
    loss = network.task.loss(network.module(x), y)
    torch.autograd.backward(loss)
    return loss.detach() + 0 * network.gradient.sum()


def local_sgd(
    context: ClientContext,
    round: int,
    start: Tensor,
    *,
    epochs: int | None = None,
    first_epoch: int = 0,
    correction: Correction | None = None,
) -> tuple[Tensor, float]:
    """Train a copy of a model by momentum SGD on the local data; return it and its mean training loss.

    A correction changes each batch's gradient before the momentum, as FedProx's pull does: see `pull` and `fixed`.
    """
    network = context.network
    w = network.vector.copy_(start)
    sgd = MomentumSGD(w, context.experiment, round)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = gradient(network, x, y)
        if correction is not None:
            correction(w, network.gradient)
        sgd.step(network.gradient)
        return loss

    loss = run_epochs(context, round, step, epochs, first_epoch)
    check_finite("model", w)
    return w.clone(), loss


def pull(centre: Tensor, strength: float) -> Correction:
    """Return the gradient of (strength/2)·‖w − centre‖² as a correction."""

    def correction(w: Tensor, gradient: Tensor) -> None:
        gradient.add_(w - centre, alpha=strength)

    return correction


def fixed(part: Part) -> Correction:
    """Return a correction under which a part of the model stays as it is: the gradient there is 0."""

    def correction(w: Tensor, gradient: Tensor) -> None:
        part.clear(gradient)

    return correction


class MomentumSGD:
    """A fresh optimiser of one tensor: v ← βv + gradient, x ← x − η·v, with the round's β and η.

    η is the experiment's learning rate η1 unless another is given; it decays in the same way.
    `torch.optim.SGD` does the same on a tensor of this size in twice the time.
    """

    def __init__(self, x: Tensor, experiment: Experiment, round: int, lr: float | None = None) -> None:
        self.x, self.momentum = x, experiment.local_momentum
        self.lr = experiment.learning_rate(round) if lr is None else lr * experiment.decay(round)
        self.velocity = torch.zeros_like(x)

    def step(self, gradient: Tensor) -> None:
        """Take one step."""
        self.velocity.mul_(self.momentum).add_(gradient)
        self.x.add_(self.velocity, alpha=-self.lr)


def check_finite(name: str, values: Tensor) -> None:
    """Raise if anything is not finite: nobody goes on with it, and it is not uploaded."""
    # A finite sum has finite summands, and is found in one pass; finite summands may have a sum that is not.
    if not bool(values.sum().isfinite()) and not bool(values.isfinite().all()):
        raise NotFinite(f"the {name} is not finite after the last step")
