"""Each client's data as arrays, handed over in Python."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from orchard.data.clients import FederatedData
from orchard.data.division import checked, client_of_samples, shifted
from orchard.data.known_scale import with_known_scale
from orchard.data.samples import Samples, as_samples, decoded, find_task, split_by_stratum
from orchard.data.stored import digest_of_arrays
from orchard.errors import UserError
from orchard.experiment import Experiment
from orchard.tasks.task import Task


@dataclass(frozen=True)
class ClientArrays:
    """One client's data as arrays.

    Unsigned bytes are images, n×h×w or n×h×w×channels; they are scaled to [−1, 1] and resized to the experiment's
    `size`. Floats keep their values and their size. The experiment's `layout` says what the axes are, where that is not
    obvious; channels are moved in front. Without a test part, 20 % of every class are set aside for it; without a
    validation part, 15 % of the training part.
    """

    x_train: NDArray[Any]
    y_train: NDArray[Any]
    x_test: NDArray[Any] | None = None
    y_test: NDArray[Any] | None = None
    x_validation: NDArray[Any] | None = None
    y_validation: NDArray[Any] | None = None
    name: str | None = None


_ARRAYS = [field for field in fields(ClientArrays) if field.name != "name"]


def from_arrays(arrays: Sequence[ClientArrays], experiment: Experiment) -> FederatedData:
    """Return the data of all clients, made from their arrays."""
    if len(arrays) != experiment.clients:
        raise UserError(
            f"clients = {experiment.clients}: but data of {len(arrays)} clients were given; set clients = {len(arrays)}"
        )
    kind = find_task(experiment.task, [np.asarray(given.y_train) for given in arrays], "y_train")
    parts = [samples_of_arrays(given, i, experiment, kind) for i, given in enumerate(arrays)]
    everything = decoded([part for client in parts for part in client if part], kind)
    task, rest = kind.numbered(torch.cat([part.y for part in everything])), iter(everything)
    names = [given.name or f"client {i}" for i, given in enumerate(arrays)]
    clients = []
    for i, (_, validating, testing) in enumerate(parts):
        train, validation, test = next(rest), validating and next(rest), testing and next(rest)
        first, last = (train, test) if test else split_by_stratum(train, task)
        clients.append(client_of_samples(names[i], i, experiment, task, first, validation, last))
    stored = " ".join(digest_of_arrays({f.name: getattr(given, f.name) for f in _ARRAYS}) for given in arrays)
    agreed = checked(clients, with_known_scale(task, experiment.scale))
    return shifted(replace(agreed, stored=stored), experiment)


def samples_of_arrays(
    given: ClientArrays, index: int, experiment: Experiment, task: type[Task]
) -> tuple[Samples, Samples | None, Samples | None]:
    """Return one client's training, validation and test samples, made from its arrays; None for a part it lacks."""
    name = given.name or f"client {index}"

    def samples(x: NDArray[Any] | None, y: NDArray[Any] | None, part: str) -> Samples | None:
        if (x is None) != (y is None):
            raise UserError(f"{name}: {part}: samples and {task.targets_are} must be given together")
        if x is None or y is None:
            return None
        return as_samples(x, y, experiment.size, task, f"{name}: {part}", layout=experiment.layout)

    train = samples(given.x_train, given.y_train, "train")
    if train is None:
        raise UserError(f"{name}: train: has no samples")
    validation = samples(given.x_validation, given.y_validation, "validation")
    return train, validation, samples(given.x_test, given.y_test, "test")
