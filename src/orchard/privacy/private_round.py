"""A client's round under privacy: the only way to its data, which counts what is asked and adds the noise."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from torch import Tensor

from orchard.data.clients import ClientData
from orchard.data.samples import Samples
from orchard.errors import UserError
from orchard.method import Queries
from orchard.privacy.accounting import Account
from orchard.privacy.gradients import clipped_sum
from orchard.privacy.noise import Noise
from orchard.privacy.settings import Privacy
from orchard.tasks.task import Task

if TYPE_CHECKING:
    from orchard.core.vector import Network

Batch = tuple[Tensor, Tensor]
LOSS_LIMIT = 2.0
"""A sample's loss counts at most so many times the loss of a guess that knows nothing."""


class PrivateRound:
    """Gives batches, their gradients and mean losses with noise, and nothing beyond what the round may ask."""

    def __init__(self, privacy: Privacy, account: Account, queries: Queries, noise: Noise, data: ClientData) -> None:
        self.privacy, self.account, self._noise, self._data = privacy, account, noise, data
        self.left = queries
        """What may still be asked."""
        self._draws, self._loss, self._samples = 0, 0.0, 0
        self._parts: list[_Part] = []
        """The batch, or its halves, that gradients may be asked of."""

    @property
    def expected(self) -> float:
        """The expected number of samples in a batch, by which gradients are divided."""
        return self.account.rate * self.account.samples

    def withheld(self) -> ClientData:
        """Return the client's data with their numbers of samples and nothing else."""
        parts = {part: _withheld(getattr(self._data, part)) for part in ("train", "validation", "test")}
        return ClientData(self._data.name, **parts, preparation=None)

    def batches(self, count: int) -> Iterator[Batch]:
        """Yield batches, each a Poisson sample: every record is in it with the same probability, by itself.

        Whoever gets one can ask for its gradients, and see neither its samples nor how many there are.
        """
        x, y = self._data.train
        for _ in range(count):
            self._spend(batches=1)
            drawn = torch.from_numpy(self._generator().random(len(y)) < self.account.rate).nonzero()[:, 0].to(y.device)
            part = _Part(x.index_select(0, drawn), y.index_select(0, drawn), 1.0, self.account.total.gradients)
            self._parts = [part]
            yield part.seen
        self._parts = []

    def halves(self, x: Tensor, y: Tensor) -> tuple[Batch, Batch]:
        """Divide a batch: a coin for each sample says in which half it is. A gradient of each half costs one."""
        whole = self._part(x, y)
        heads = torch.from_numpy(self._generator().random(len(whole.y)) < 0.5).to(whole.y.device)
        first, second = (_Part(whole.x[in_it], whole.y[in_it], 0.5, whole.left) for in_it in (heads, ~heads))
        self._parts = [first, second]
        return first.seen, second.seen

    def gradient(self, network: "Network", x: Tensor, y: Tensor) -> Tensor:
        """Fill the network's gradient with the clipped, noised mean; return 0, since the loss would have no noise."""
        part = self._part(x, y)
        if not part.left:
            self._refuse(f"{self.account.total.gradients} gradients of a batch")
        part.left -= 1
        sigma, clip = self.account.multiplier, self.privacy.clip
        losses = clipped_sum(network, part.x, part.y, clip).losses
        # In double precision, then rounded: what is added in single precision would show in the last bits.
        noise = self._generator().standard_normal(len(network.gradient))
        noised = network.gradient.cpu().double() + torch.from_numpy(noise) * (sigma * clip)
        network.gradient.copy_((noised / (part.share * self.expected)).to(network.gradient))
        self._loss += float(torch.where(losses.isfinite(), losses, 0).double().sum())
        self._samples += len(losses)
        return network.gradient.new_zeros(())

    @property
    def mean_loss(self) -> float:
        """The mean loss of all samples of the round's batches, for people who may see the data; it has no noise."""
        return self._loss / max(1, self._samples)

    def loss(self, task: Task, outputs: Tensor, y: Tensor, part: str) -> float:
        """Return the mean of all samples' losses in a part, each clipped to [0, limit], with noise."""
        self._spend(**{f"{part}_losses": 1})
        multiplier, limit = getattr(self.account, f"{part}_loss_multiplier"), LOSS_LIMIT * blind_loss(task)
        losses = sample_losses(task, outputs, y)
        total = torch.where(losses.isnan(), limit, losses.clamp(0, limit)).double().sum().item()
        return float(total + multiplier * limit * self._generator().standard_normal()) / len(losses)

    def samples(self, part: str) -> Samples:
        """Return the samples of a part, for losses only."""
        samples: Samples = getattr(self._data, part)
        return samples

    def _generator(self) -> Any:
        self._draws += 1
        return self._noise.generator(self._draws)

    def _part(self, x: Tensor, y: Tensor) -> "_Part":
        for part in self._parts:
            if part.seen[0] is x and part.seen[1] is y:
                return part
        raise UserError(
            "[privacy]: a gradient is asked of samples that are no batch of run_epochs; take batches as they come"
        )

    def _spend(self, **asked: int) -> None:
        for what, number in asked.items():
            left = getattr(self.left, what) - number
            if left < 0:
                self._refuse(what.replace("_", " "))
            self.left = replace(self.left, **{what: left})

    def _refuse(self, what: str) -> NoReturn:
        raise UserError(f"[privacy]: the method asks more {what} in a round than its queries() says; nothing is spent")


def sample_losses(task: Task, outputs: Tensor, y: Tensor) -> Tensor:
    """Return the loss of each sample."""
    each = torch.func.vmap(lambda output, target: task.loss(output[None], target[None]))
    losses: Tensor = each(outputs, y)
    return losses


def blind_loss(task: Task) -> float:
    """Return the loss of a guess that knows neither samples nor targets: with all outputs 0."""
    if task.name == "regression":
        return 1.0  # of standardised numbers
    return math.log(2 if task.name == "multilabel" else len(task.classes))


class _Withheld:
    """Stands for samples that a method may not see: of a part it tells the number, which is public, of a batch not."""

    def __init__(self, samples: int | None = None) -> None:
        self._samples = samples

    def __len__(self) -> int:
        if self._samples is None:
            _refuse_to_show()
        return self._samples

    def __getattr__(self, name: str) -> NoReturn:
        _refuse_to_show()

    def __getitem__(self, index: object) -> NoReturn:
        _refuse_to_show()

    @classmethod
    def __torch_function__(cls, *call: object) -> NoReturn:
        _refuse_to_show()


def _refuse_to_show() -> NoReturn:
    raise UserError(
        "[privacy]: a method sees its data through run_epochs, local_sgd, gradient and context.loss only; "
        "this one reads samples itself"
    )


class _Part:
    """A batch or a half of one: its samples, and what a method gets in their place."""

    def __init__(self, x: Tensor, y: Tensor, share: float, left: int) -> None:
        self.x, self.y, self.share = x, y, share
        self.left = left
        """How many gradients of it may still be asked."""
        self.seen = cast("Batch", (_Withheld(), _Withheld()))


def _withheld(samples: Samples) -> Samples:
    nothing = cast("Tensor", _Withheld(len(samples.y)))
    return Samples(nothing, nothing)
