"""What each client holds: its samples, those of all clients, and how they are distributed."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from torch import Tensor

from orchard.data.partitions import Indices, Matrix
from orchard.data.samples import Samples
from orchard.data.tables.encoding import Schema
from orchard.data.tables.scaling import Preparation
from orchard.tasks.registry import task_named
from orchard.tasks.task import Task

PARTS = ("train", "validation", "test")
FINGERPRINT = "2-"
"""With this every fingerprint begins; older ones were of the prepared samples."""


@dataclass(frozen=True)
class ClientData:
    """One client's data; `divide` makes the tensors views into memory that all clients share."""

    name: str
    train: Samples
    validation: Samples
    test: Samples
    preparation: Preparation | None = None
    """How rows of a table became these samples."""

    def parts(self) -> tuple[Samples, Samples, Samples]:
        """Return the training, validation and test samples."""
        return self.train, self.validation, self.test

    def changed(self, change: Callable[[Samples], Samples]) -> Self:
        """Return the data with each part changed."""
        train, validation, test = map(change, self.parts())
        return replace(self, train=train, validation=validation, test=test)

    def to(self, model: Tensor) -> Self:
        """Return the data on a model's device and in its precision; copy only what is not there already."""
        return self.changed(lambda part: Samples(part.x.to(model), part.y.to(model.device)))


@dataclass(frozen=True)
class FederatedData:
    """The data of all clients, and the matrix of shares by which they were divided, if any."""

    clients: tuple[ClientData, ...]
    task: Task
    shape: tuple[int, ...]
    matrix: Matrix | None = None
    groups: tuple[int, ...] | None = None
    """The group of each client, if the data were shifted."""
    unscaled: Schema | None = None
    """How rows of a table became features, if their scaling is still to be agreed upon."""
    stored: str = ""
    """The digest of the data as they are stored; without one, the prepared samples stand for them."""

    def fingerprint(self) -> str:
        """Return a hash of the data as stored, and of all clients' targets: of who holds what."""
        digest = hashlib.sha256(self.stored.encode())
        for client in self.clients:
            for part in PARTS:
                x, y = getattr(client, part)
                digest.update(f"{part} {tuple(x.shape)}".encode())
                digest.update(y.numpy().tobytes())
                if not self.stored:
                    digest.update(x.numpy().tobytes())
        return f"{FINGERPRINT}{digest.hexdigest()[:16]}"

    def class_counts(self) -> dict[str, list[list[int]]]:
        """Count the samples of each client (outer) that hold each class (inner), part by part."""
        return {part: [self.task.counts(getattr(c, part).y) for c in self.clients] for part in PARTS}

    def sizes(self) -> dict[str, list[int]]:
        """Count the samples of each client, part by part."""
        return {part: [len(getattr(c, part).y) for c in self.clients] for part in PARTS}

    def distribution(self) -> "DataDistribution":
        """Return how the data are distributed."""
        return DataDistribution(
            clients=[client.name for client in self.clients],
            classes=list(self.task.classes),
            shape=list(self.shape),
            samples=self.sizes(),
            counts=self.class_counts(),
            partition_matrix=None if self.matrix is None else self.matrix.tolist(),
            groups=None if self.groups is None else list(self.groups),
            task=self.task.name,
            scale=self.task.scale(),
            preparations=self.preparations(),
        )

    def preparations(self) -> list[dict[str, Any]] | None:
        """Return how each client's rows became samples, as plain values; None if the data are no tables."""
        found = [client.preparation.model_dump(mode="json") for client in self.clients if client.preparation]
        return found or None


@dataclass(frozen=True)
class DataDistribution:
    """How the data are distributed: names, shares and counts, but no samples."""

    clients: list[str]
    classes: list[str]
    """What the outputs of the network stand for: classes, findings or quantities."""
    shape: list[int]
    """Of one sample."""
    samples: dict[str, list[int]]
    """How many each client has, in the parts train, validation and test."""
    counts: dict[str, list[list[int]]]
    """How many samples of each client (outer) hold each class (inner), in each part."""
    partition_matrix: list[list[float]] | None = None
    """Each client's share (columns) of each stratum, e.g. class (rows); None if the data were not divided by shares."""
    groups: list[int] | None = None
    """The group of each client, if the data were shifted."""
    task: str = "classification"
    scale: list[list[float]] | None = None
    """Means and deviations of the training targets of all clients, in regression."""
    preparations: list[dict[str, Any]] | None = None
    """How each client's rows became samples, if the data are tables and all in one place."""
    moments: dict[str, Any] | None = None
    """Count, mean and squares of all sites' numbers together, if separate sites standardise by these."""

    def predicted(self) -> Task:
        """Return the task."""
        return task_named(self.task, self.classes, self.scale)

    def totals(self) -> Indices:
        """Count the samples of each client (rows) that hold each class (columns), all parts together."""
        totals: Indices = np.sum([self.counts[part] for part in PARTS], axis=0)
        return totals

    def sizes(self) -> Indices:
        """Count the samples of each client, all parts together."""
        sizes: Indices = np.sum([self.samples[part] for part in PARTS], axis=0)
        return sizes
