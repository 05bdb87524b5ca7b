"""Give every client its part: of a dataset divided by a partition, or of data that come client by client."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from orchard.data.catalogue import CATALOGUE
from orchard.data.clients import PARTS, ClientData, FederatedData
from orchard.data.datasets import load_dataset, published_files
from orchard.data.folders import comes_by_client, is_table, subfolders
from orchard.data.known_scale import with_known_scale
from orchard.data.own_images import read_folders
from orchard.data.partitions import Column, Given, Indices, Matrix, Natural, assign, keep_fraction, partition_matrix
from orchard.data.samples import Dataset, Samples, split_by_stratum
from orchard.data.shifts import ShiftSettings, groups_of, shift_samples
from orchard.data.stored import digest_of_files, digest_of_path
from orchard.data.tables.datasets import settings_of, table_dataset
from orchard.data.tables.encoding import Schema
from orchard.data.tables.scaling import Moments, Preparation, Scaling, merge
from orchard.errors import UserError
from orchard.experiment import Experiment
from orchard.randomness import generator
from orchard.tasks.task import Task
from orchard.text import readable

TRAINING_SHARE = 0.85
NAMES_SHOWN = 12
"""How many names an error message lists; there may be thousands."""


def federated_data(experiment: Experiment, data_dir: Path | None = None) -> FederatedData:
    """Load the experiment's dataset and give every client its part."""
    path = Path(experiment.dataset)
    tables = experiment.dataset not in CATALOGUE and is_table(path)
    by_client = comes_by_client(experiment.dataset, experiment.volumes)
    if tables:
        if not path.exists():
            raise UserError(f"dataset = {experiment.dataset!r}: there is no such file")
        by_client = settings_of(experiment).site is not None or path.is_dir()
    check_partition(experiment, by_client=by_client)
    if experiment.layout and path.suffix.lower() != ".npz":
        whose = "arrays of your own, in an .npz or handed over in Python"
        raise UserError(f"layout = {experiment.layout!r}: is for {whose}, not for {experiment.dataset}")
    if by_client and not tables:
        data = _client_folders(path, experiment)
    else:
        data = divide(table_dataset(path, experiment) if tables else load_dataset(experiment, data_dir), experiment)
    return shifted(replace(data, stored=_digest(experiment, data_dir)), experiment)


def _digest(experiment: Experiment, data_dir: Path | None) -> str:
    """Return the digest of the files that hold a dataset."""
    entry = CATALOGUE.get(experiment.dataset)
    if entry is None:
        return digest_of_path(Path(experiment.dataset))
    return digest_of_files((file.name, file) for file in published_files(entry, experiment, data_dir))


def check_partition(experiment: Experiment, *, by_client: bool) -> None:
    """Raise if data that come client by client are to be divided, or others are not."""
    if by_client != isinstance(experiment.partition, Given):
        given, divided = "come client by client; use 'given'", "do not come client by client; use another partition"
        raise UserError(f"partition.name = {experiment.partition.name!r}: the data {given if by_client else divided}")


def divide(dataset: Dataset, experiment: Experiment) -> FederatedData:
    """Divide a dataset among the clients; 15 % of each client's training data become its validation part."""
    seed, task = experiment.partition.seed, with_known_scale(dataset.task, experiment.scale, dataset.schema)
    strata, test_strata = (task.strata(samples.y).numpy() for samples in (dataset.train, dataset.test))
    kept = keep_fraction(strata, experiment.fraction, seed)
    names: Sequence[str] = [f"client {i}" for i in range(experiment.clients)]
    matrix = None
    if isinstance(experiment.partition, Column | Natural | Given):
        names, mine, tests = _by_owner(dataset, experiment, kept)
    else:
        matrix = partition_matrix(experiment.partition, len(task.strata_names()), experiment.clients)
        mine = [kept[part] for part in assign(strata[kept], matrix, seed, "train")]
        tests = assign(test_strata, matrix, seed, "test")
    cuts = [_cut(len(part), seed, i) for i, part in enumerate(mine)]
    train = _laid_out(dataset.train, [part[cut[0]] for part, cut in zip(mine, cuts, strict=True)])
    validation = _laid_out(dataset.train, [part[cut[1]] for part, cut in zip(mine, cuts, strict=True)])
    parts = zip(names, train, validation, _laid_out(dataset.test, tests), strict=True)
    clients = [ClientData(*part) for part in parts]
    if dataset.schema is not None and experiment.scale is not None:
        scaling = Scaling.known(experiment.scale, dataset.schema)
        clients = [scaled(client, dataset.schema, scaling) for client in clients]
    elif dataset.schema is not None:
        shared = experiment.table is not None and experiment.table.scaling == "shared"
        clients = standardised(clients, dataset.schema, shared=shared)
    return checked(clients, task, matrix)


def standardised(clients: Sequence[ClientData], schema: Schema, *, shared: bool) -> list[ClientData]:
    """Standardise the numbers of tables by each client's own training part, or by all of them together."""
    moments = [Moments.of(client.train.x.numpy(), schema) for client in clients]
    agreed = [merge(moments)] * len(clients) if shared else moments
    return [prepared(client, schema, found) for client, found in zip(clients, agreed, strict=True)]


def prepared(client: ClientData, schema: Schema, moments: Moments) -> ClientData:
    """Return a client's rows standardised by these moments."""
    return scaled(client, schema, Scaling.of(moments, schema))


def scaled(client: ClientData, schema: Schema, scaling: Scaling) -> ClientData:
    """Return a client's rows standardised; a missing value becomes 0, the mean."""
    changed = client.changed(lambda part: Samples(torch.from_numpy(scaling.apply(part.x.numpy())), part.y))
    return replace(changed, preparation=Preparation(table=schema, scaling=scaling))


def _by_owner(
    dataset: Dataset, experiment: Experiment, kept: Indices
) -> tuple[list[str], list[Indices], list[Indices]]:
    """Return the owners' names from a column, and the indices of each owner's training and test samples."""
    name, published = experiment.partition.name, CATALOGUE.get(experiment.dataset)
    if isinstance(experiment.partition, Natural) and not (published and published.natural_name == name):
        having = " and ".join(repr(key) for key, entry in CATALOGUE.items() if entry.natural_name == name)
        raise UserError(f"partition.name = {name!r}: only {having} come by {name}, not {experiment.dataset}")
    if dataset.owners is None or (isinstance(experiment.partition, Column) and (published or dataset.schema)):
        raise UserError(f"partition.name = 'column': only arrays of your own have columns, not {experiment.dataset}")
    train, test = dataset.owners
    owners = np.unique(np.concatenate([train, test]))
    names = [str(owner) for owner in owners]
    if len(names) != experiment.clients:
        some = ", ".join(names[:NAMES_SHOWN]) + (", …" if len(names) > NAMES_SHOWN else "")
        raise UserError(
            f"clients = {experiment.clients}: but {experiment.dataset} names {len(names)} owners ({some}); "
            f"set clients = {len(names)}"
        )
    return names, [kept[train[kept] == owner] for owner in owners], [np.flatnonzero(test == owner) for owner in owners]


def _client_folders(folder: Path, experiment: Experiment) -> FederatedData:
    """Read a folder of images for each client; 20 % of its images are for testing, 15 % of the rest for validation."""
    homes = subfolders(folder, experiment.volumes)
    if len(homes) != experiment.clients:
        raise UserError(
            f"clients = {experiment.clients}: but {folder} holds the folders of {len(homes)} clients; "
            f"set clients = {len(homes)}"
        )
    parts, task = read_folders(homes, experiment)
    clients = []
    for i, (home, part) in enumerate(zip(homes, parts, strict=True)):
        train, test = split_by_stratum(part, task)
        clients.append(client_of_samples(home.name, i, experiment, task, train, None, test))
    return checked(clients, with_known_scale(task, experiment.scale))


def _cut(size: int, seed: int, client: int) -> tuple[Indices, Indices]:
    order = generator(seed, "validation", client).permutation(size)
    end = int(TRAINING_SHARE * size)
    return order[:end], order[end:]


def _laid_out(samples: Samples, parts: Sequence[Indices]) -> list[Samples]:
    """Reorder the samples once, so that each client's part is a view."""
    order = torch.from_numpy(np.concatenate(parts))
    x, y = samples.x[order], samples.y[order]
    sizes = [len(part) for part in parts]
    return [Samples(*pair) for pair in zip(torch.split(x, sizes), torch.split(y, sizes), strict=True)]


def _cut_off(train: Samples, seed: int, client: int) -> tuple[Samples, Samples]:
    first, rest = _cut(len(train.y), seed, client)
    return train.take(first), train.take(rest)


def checked(clients: Sequence[ClientData], task: Task, matrix: Matrix | None = None) -> FederatedData:
    """Return all clients' data; raise if a part is empty, two names are the same, or samples differ in shape."""
    clients = [replace(client, name=readable(client.name)) for client in clients]
    names = [client.name for client in clients]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"data: two clients have the same name: {twice}; rename one")
    for client in clients:
        for part in PARTS:
            if len(getattr(client, part).y) == 0:
                raise UserError(
                    f"partition: leaves {client.name} without a {part} sample; "
                    f"use fewer clients than {len(clients)}, more of the data, or another partition, such as iid"
                )
    shapes = {tuple(getattr(client, part).x.shape[1:]) for client in clients for part in PARTS}
    if len(shapes) > 1:
        raise UserError(f"data: samples differ in shape: {sorted(shapes)}")
    agreed = task.agreed([task.moments(client.train.y) for client in clients])
    return FederatedData(tuple(clients), agreed, shapes.pop(), matrix)


def shifted(data: FederatedData, experiment: Experiment) -> FederatedData:
    """Return the data with the experiment's shift between groups of clients, if it has one."""
    shift, seed = experiment.shift, experiment.partition.seed
    if shift is None:
        return data
    groups = groups_of(len(data.clients), shift, seed)
    clients = []
    for i, (client, group) in enumerate(zip(data.clients, groups, strict=True)):
        draws = iter([generator(seed, f"shift {part}", i) for part in PARTS])
        clients.append(client.changed(partial(_shifted, shift, group, data.task, draws)))
    return replace(data, clients=tuple(clients), groups=tuple(groups))


def _shifted(
    shift: ShiftSettings, group: int, task: Task, draws: Iterator[np.random.Generator], samples: Samples
) -> Samples:
    return shift_samples(samples, shift, group, task, next(draws))


def client_of_samples(
    name: str, index: int, experiment: Experiment, task: Task, train: Samples, validation: Samples | None, test: Samples
) -> ClientData:
    """Keep `fraction` of the training samples; without a validation part, use 15 % of those for it."""
    train = train.take(keep_fraction(task.strata(train.y).numpy(), experiment.fraction, experiment.partition.seed))
    if validation is None:
        train, validation = _cut_off(train, experiment.partition.seed, index)
    return ClientData(name, train, validation, test)


def one_client(client: ClientData, task: Task) -> FederatedData:
    """Return the data of a single client; raise if its targets do not fit the task."""
    for part in PARTS:
        task.check(getattr(client, part).y, f"{client.name}: {part}")
    return checked([client], task)
