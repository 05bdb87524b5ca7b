"""First steps: every client has a few samples and takes one step; and what real first rounds tell of the classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from torch import Tensor

from orchard.audit.capture import repeat, trained_on, whole_model
from orchard.audit.inversion import FirstStep, label_of, last_bias, likeness, matched, sample_of, samples_of
from orchard.audit.wanted import correlation
from orchard.core.contract import ClientUpdate, Download
from orchard.core.federation import Federation
from orchard.core.vector import Network
from orchard.data.clients import FederatedData
from orchard.data.samples import Samples
from orchard.errors import UserError
from orchard.experiment import Experiment, RunOptions
from orchard.randomness import generator
from orchard.tasks.classification import Classification

TRIALS = 20
"""Single samples whose label is asked for."""
BATCHES = (1, 2, 4)
"""Batches whose samples are looked for."""
PART_ONLY = "only a part of the model travels, or nothing"


@dataclass(frozen=True)
class Labels:
    """How many labels of single samples were told rightly."""

    right: int
    of: int


@dataclass(frozen=True)
class Recovered:
    """The samples of one batch: what they were, and what was made of the step."""

    true: Tensor
    found: Tensor
    exactly: bool
    """Whether they were computed, not searched for."""

    @property
    def likeness(self) -> float:
        """Return the mean peak signal-to-noise ratio, in decibels."""
        return mean(likeness(found, true) for found, true in zip(self.found, self.true, strict=True))


@dataclass
class FirstUploads:
    """Keeps the first upload of every client."""

    federation: Federation | None = None
    models: dict[int, Tensor] | None = None

    def __call__(
        self, federation: Federation, sent: Mapping[int, Download], answers: Mapping[int, ClientUpdate]
    ) -> None:
        """Keep the uploads of the first exchange."""
        if self.models is None:
            self.federation = federation
            found = {i: whole_model(answer.upload, federation.parameters) for i, answer in answers.items()}
            self.models = {i: model for i, model in found.items() if model is not None}


def first_starts(
    experiment: Experiment, data: FederatedData, options: RunOptions
) -> tuple[dict[int, Tensor], list[Tensor]]:
    """Return what every client would upload if it took no step, and its model then: both known before it starts."""
    first = FirstUploads()
    without = {"privacy": None} if "privacy" in type(experiment).model_fields else {}  # no step has no noise
    still = experiment.model_copy(update={"epochs": 0, **without})
    _, models = repeat(still, data, options, first, exchanges=1)
    return first.models or {}, [vector for vector, _ in models]


def first_steps(
    experiment: Experiment, data: FederatedData, batches: Sequence[Samples], options: RunOptions
) -> tuple[Network, list[FirstStep]]:
    """Let every client take one step on a batch; return a network, and what the server has of each."""
    few, first = trained_on(data, batches), FirstUploads()
    single = experiment.model_copy(update={"epochs": 1, "batch_size": max(len(batch.y) for batch in batches)})
    repeat(single, few, options, first, exchanges=1)
    if first.federation is None or not first.models:
        raise UserError(PART_ONLY)
    starts, models = first_starts(single, few, options)
    steps = [FirstStep(models[i].cpu(), (starts[i] - first.models[i]).cpu()) for i in range(len(batches))]
    return Network(first.federation.network().release(), "cpu", data.task), steps


def labels_of_single_samples(experiment: Experiment, data: FederatedData, options: RunOptions, seed: int) -> Labels:
    """Tell the labels of single samples from one step each."""
    _check_classes(data)
    right = tried = attempt = 0
    while tried < TRIALS:
        batches = _batches(data, 1, seed, attempt)
        network, steps = first_steps(experiment, data, batches, options)
        if last_bias(network) is None:
            raise UserError("the last layer has no bias")
        for step, batch in list(zip(steps, batches, strict=True))[: TRIALS - tried]:
            right += label_of(network, step) == int(batch.y)
            tried += 1
        attempt += 1
    return Labels(right, tried)


def class_frequencies(experiment: Experiment, data: FederatedData, options: RunOptions, first: FirstUploads) -> float:
    """Return the correlation of the first round's update of the last bias with the classes, mean over clients."""
    _check_classes(data)
    if first.federation is None or not first.models:
        raise UserError(PART_ONLY)
    place = last_bias(first.federation.network())
    if place is None:
        raise UserError("the last layer has no bias")
    (starts, _), found = first_starts(experiment, data, options), []
    for i, upload in first.models.items():
        counts = upload.new_tensor(data.task.counts(data.clients[i].train.y))
        found.append(correlation(upload[place] - starts[i][place], counts))
    known = [value for value in found if value is not None]
    if not known:
        raise UserError("every client holds all classes alike")
    return mean(known)


def recovered(experiment: Experiment, data: FederatedData, options: RunOptions, seed: int) -> dict[int, Recovered]:
    """Recover the samples of small batches of one client: that with the most."""
    target = max(range(len(data.clients)), key=lambda i: len(data.clients[i].train.y))
    found = {}
    for size in BATCHES:
        batches = _batches(data, size, seed, 0)
        network, steps = first_steps(experiment, data, batches, options)
        batch, step = batches[target], steps[target]
        true = Samples(batch.x.to(network.vector), batch.y)
        exact = sample_of(network, step, data.shape) if len(batch.y) == 1 else None
        if exact is not None:
            found[size] = Recovered(true.x, exact[None], exactly=True)
        else:
            found[size] = Recovered(true.x, matched(samples_of(network, step, true.y, true.x), true), exactly=False)
    return found


def _batches(data: FederatedData, size: int, seed: int, attempt: int) -> list[Samples]:
    """Return a few training samples of each client."""
    return [
        client.train.take(generator(seed, "batch", i, attempt).permutation(len(client.train.y))[:size])
        for i, client in enumerate(data.clients)
    ]


def _check_classes(data: FederatedData) -> None:
    if not isinstance(data.task, Classification):
        raise UserError("samples have no single label")
