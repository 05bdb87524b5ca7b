"""How well a model does on a client's data: in evaluation mode, in large batches."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from orchard.core.vector import Network
from orchard.data.samples import Samples
from orchard.tasks.task import Measures

if TYPE_CHECKING:
    from orchard.core.training import ClientContext

EVALUATION_BATCH = 256
"""Larger batches are slower: their activations are reallocated every time."""
LARGEST_BATCH = 2**24
"""Numbers in a batch at most, so that volumes fit into memory: their batches are smaller."""
FIRST_BATCH = 32
"""Smaller batches take longer per image: 1.1 times as long with 32, 1.25 times with 16."""


@dataclass(frozen=True)
class Scores:
    """How well one model does on a client's validation and test data."""

    validation: Measures
    test: Measures
    loss: float | None = field(default=None, compare=False)
    """The mean loss on the validation data; it never leaves the client."""

    def as_plain(self) -> dict[str, Measures]:
        """Return the measures as plain values."""
        return {"validation": dict(self.validation), "test": dict(self.test)}

    @classmethod
    def from_plain(cls, values: Mapping[str, Measures]) -> Self:
        """Read plain values back."""
        return cls(dict(values["validation"]), dict(values["test"]))


def evaluate(context: "ClientContext", model: Tensor) -> Scores:
    """Measure a model on the client's validation and test data."""
    network, validation, test = context.network, context.data.validation, context.data.test
    outputs = outputs_of(network, model, validation.x)
    loss = network.task.loss(outputs, validation.y).item()
    measured = network.task.measure(outputs, validation.y)
    return Scores(measured, network.task.measure(outputs_of(network, model, test.x), test.y), loss)


@torch.inference_mode()
def mean_loss(network: Network, model: Tensor, samples: Samples, limit: float = math.inf) -> float:
    """Return the mean loss of a model on samples, or infinity if it is above a limit.

    No sample's loss is negative, so once the sum is above the limit it stays there: the first few samples are often
    enough to tell. Hence small batches first.
    """
    network.vector.copy_(model)
    network.module.eval()
    largest = evaluation_batch(samples.x.shape)
    total, start, size = 0.0, 0, min(FIRST_BATCH, largest)
    while start < len(samples.y):
        batch = slice(start, start + size)
        total += network.task.loss(_outputs(network, samples.x[batch]), samples.y[batch], "sum").item()
        if total / len(samples.y) > limit:
            return math.inf
        start, size = start + size, min(2 * size, largest)
    return total / len(samples.y)


@torch.inference_mode()
def outputs_of(network: Network, model: Tensor, x: Tensor) -> Tensor:
    """Run samples through a model in evaluation mode, in large batches."""
    network.vector.copy_(model)
    network.module.eval()
    return torch.cat([_outputs(network, batch) for batch in torch.split(x, evaluation_batch(x.shape))])


def _outputs(network: Network, x: Tensor) -> Tensor:
    """Run a batch, which is a view of the client's own data; raise if the network has written into it."""
    before = x._version
    outputs: Tensor = network.module(x)
    if x._version != before:
        raise ValueError(network.SPOILS)
    return outputs


def evaluation_batch(shape: torch.Size) -> int:
    """Return how many samples to evaluate at once; `shape` is that of all samples."""
    return min(EVALUATION_BATCH, max(1, LARGEST_BATCH // max(1, shape[1:].numel())))
