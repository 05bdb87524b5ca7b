"""What each client holds: a dataset dealt out by a partition, or arrays given client by client."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orchard.data.datasets import Dataset, Samples, scaled
from orchard.data.partition import Indices, Matrix, assign, keep_fraction, partition_matrix
from orchard.errors import Refusal
from orchard.experiment import Experiment
from orchard.randomness import generator

TRAINING_SHARE = 0.85


@dataclass(frozen=True)
class ClientData:
    """One client's data; the tensors are views into memory that all clients share."""

    name: str
    train: Samples
    validation: Samples
    test: Samples


@dataclass(frozen=True)
class FederatedData:
    """The data of all clients; the matrix of shares where they were dealt out by us."""

    clients: tuple[ClientData, ...]
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    matrix: Matrix | None = None

    def class_counts(self) -> dict[str, list[list[int]]]:
        """Count the samples of each client (outer) in each class (inner), part by part."""
        size = len(self.classes)
        return {
            part: [torch.bincount(getattr(c, part).y, minlength=size).tolist() for c in self.clients]
            for part in ("train", "validation", "test")
        }


def deal(dataset: Dataset, experiment: Experiment) -> FederatedData:
    """Deal a dataset out to the clients, and cut 15 % of each one's training data off for validation."""
    seed = experiment.partition.seed
    matrix = partition_matrix(experiment.partition, len(dataset.classes), experiment.clients)
    labels = dataset.train.y.numpy()
    kept = keep_fraction(labels, experiment.fraction, seed)
    mine = [kept[part] for part in assign(labels[kept], matrix, seed, "train")]
    cuts = [_cut(len(part), seed, i) for i, part in enumerate(mine)]
    train = _laid_out(dataset.train, [part[cut[0]] for part, cut in zip(mine, cuts, strict=True)])
    validation = _laid_out(dataset.train, [part[cut[1]] for part, cut in zip(mine, cuts, strict=True)])
    test = _laid_out(dataset.test, assign(dataset.test.y.numpy(), matrix, seed, "test"))
    names = [f"client {i}" for i in range(experiment.clients)]
    clients = tuple(ClientData(*parts) for parts in zip(names, train, validation, test, strict=True))
    _refuse_empty(clients)
    return FederatedData(clients, dataset.classes, tuple(dataset.train.x.shape[1:]), matrix)


def _cut(size: int, seed: int, client: int) -> tuple[Indices, Indices]:
    order = generator(seed, "validation", client).permutation(size)
    end = int(TRAINING_SHARE * size)
    return order[:end], order[end:]


def _laid_out(samples: Samples, parts: Sequence[Indices]) -> list[Samples]:
    """Reorder samples once so that every client's part is a slice, i.e. a view."""
    order = torch.from_numpy(np.concatenate(parts))
    x, y = samples.x[order], samples.y[order]
    sizes = [len(part) for part in parts]
    return [Samples(*pair) for pair in zip(torch.split(x, sizes), torch.split(y, sizes), strict=True)]


def _refuse_empty(clients: Sequence[ClientData]) -> None:
    for client in clients:
        for part in ("train", "validation", "test"):
            if len(getattr(client, part).y) == 0:
                raise Refusal(
                    f"partition: leaves {client.name} without a {part} sample; "
                    "use fewer clients, more of the data, or another partition or partition.seed"
                )


@dataclass(frozen=True)
class ClientArrays:
    """One client's data as arrays.

    Unsigned bytes are images, n×h×w or n×h×w×channels, and are scaled to [−1, 1]; floats are taken as they
    are. Without a validation part, 15 % of the training part is cut off for it.
    """

    x_train: NDArray[Any]
    y_train: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]
    x_validation: NDArray[Any] | None = None
    y_validation: NDArray[Any] | None = None
    name: str | None = None


def from_arrays(arrays: Sequence[ClientArrays], experiment: Experiment) -> FederatedData:
    """Take the data of each client as it is given."""
    clients = []
    for i, given in enumerate(arrays):
        name = given.name or f"client {i}"
        train = _samples(given.x_train, given.y_train, f"{name}: train")
        if given.x_validation is not None and given.y_validation is not None:
            validation = _samples(given.x_validation, given.y_validation, f"{name}: validation")
        else:
            first, rest = _cut(len(train.y), experiment.partition.seed, i)
            validation = Samples(train.x[rest], train.y[rest])
            train = Samples(train.x[first], train.y[first])
        test = _samples(given.x_test, given.y_test, f"{name}: test")
        clients.append(ClientData(name, train, validation, test))
    if len(clients) != experiment.clients:
        raise Refusal(f"clients = {experiment.clients}: but data of {len(clients)} clients were given")
    _refuse_empty(clients)
    shapes = {tuple(part.x.shape[1:]) for c in clients for part in (c.train, c.validation, c.test)}
    if len(shapes) > 1:
        raise Refusal(f"data: samples differ in shape: {sorted(shapes)}")
    top = max(int(part.y.max()) for c in clients for part in (c.train, c.validation, c.test))
    return FederatedData(tuple(clients), tuple(map(str, range(top + 1))), shapes.pop())


def _samples(x: NDArray[Any], y: NDArray[Any], place: str) -> Samples:
    x, y = np.asarray(x), np.asarray(y).reshape(-1)
    if len(x) != len(y):
        raise Refusal(f"{place}: {len(x)} samples but {len(y)} labels")
    if not np.issubdtype(y.dtype, np.integer) or (len(y) and y.min() < 0):
        raise Refusal(f"{place}: labels must be integers from 0")
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        inputs: Tensor = scaled(x)
    elif np.issubdtype(x.dtype, np.floating):
        inputs = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    else:
        raise Refusal(f"{place}: expected images of unsigned bytes or floats, got {x.dtype} of shape {x.shape}")
    if not bool(inputs.isfinite().all()):
        raise Refusal(f"{place}: sample {int((~inputs.flatten(1).isfinite().all(1)).nonzero()[0])} is not finite")
    return Samples(inputs, torch.from_numpy(y.astype(np.int64)))
