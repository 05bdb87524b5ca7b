"""One site's own data: an `.npz`, a folder of images or a table, which is not divided further."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from orchard.data.clients import FederatedData
from orchard.data.division import client_of_samples, one_client, prepared, scaled
from orchard.data.folders import folder_kind
from orchard.data.known_scale import with_known_scale
from orchard.data.own import part_keys, samples_of_parts
from orchard.data.own_images import part_folders, read_folders
from orchard.data.readers import read_npz
from orchard.data.samples import Samples, split_by_stratum, split_rows
from orchard.data.stored import digest_of_path
from orchard.data.tables.datasets import table_samples
from orchard.data.tables.encoding import Schema, make_schema
from orchard.data.tables.reading import read_table
from orchard.data.tables.scaling import Moments, Scaling
from orchard.errors import UserError
from orchard.experiment import Experiment
from orchard.tasks.task import Task


def site_data(
    path: Path, name: str, index: int, task: Task, experiment: Experiment, schema: Schema | None = None
) -> FederatedData:
    """Load a site's data; if they have no test part, 20 % become it; if no validation part, 15 % of the rest.

    A table's columns are those of `schema`, or else what the experiment says of them.
    """
    return replace(_site_data(path, name, index, task, experiment, schema), stored=digest_of_path(path))


def _site_data(
    path: Path, name: str, index: int, task: Task, experiment: Experiment, schema: Schema | None
) -> FederatedData:
    if experiment.table is not None:
        frame = read_table(path)
        schema = schema or make_schema(frame, experiment.table, str(path))
        parts: Mapping[str, Samples] = {"train": table_samples(frame, schema, task, experiment.table, str(path))}
    else:
        parts = _images(path, task, experiment) if path.is_dir() else _arrays(path, task, experiment)
    task = with_known_scale(task, experiment.scale, schema)
    train, test = (parts["train"], parts["test"]) if "test" in parts else _divided(parts["train"], task, experiment)
    client = client_of_samples(name, index, experiment, task, train, parts.get("val"), test)
    if schema is None or experiment.table is None:
        return one_client(client, task)
    if experiment.scale is not None:
        return one_client(scaled(client, schema, Scaling.known(experiment.scale, schema)), task)
    if experiment.table.scaling == "shared":
        return replace(one_client(client, task), unscaled=schema)
    return one_client(prepared(client, schema, Moments.of(client.train.x.numpy(), schema)), task)


def _divided(samples: Samples, task: Task, experiment: Experiment) -> tuple[Samples, Samples]:
    """Return training and test part; under privacy by chance alone, else one label would decide where others go."""
    if experiment.privacy is None:
        return split_by_stratum(samples, task)
    first, second = split_rows(np.zeros(len(samples.y), np.int64))
    return samples.take(first), samples.take(second)


def _arrays(path: Path, task: Task, experiment: Experiment) -> Mapping[str, Samples]:
    arrays = read_npz(path)
    parts = samples_of_parts(arrays, part_keys(arrays, str(path)), experiment, type(task), str(path))
    for part in parts.values():
        task.check(part.y, str(path))  # before anything is split by classes that there may not be
    return parts


def _images(folder: Path, task: Task, experiment: Experiment) -> Mapping[str, Samples]:
    if folder_kind(folder, experiment.volumes) == "clients":
        raise UserError(f"{folder}: holds the folders of several clients; use the folder of this site only")
    homes = part_folders(folder, experiment.volumes)
    return dict(zip(homes, read_folders(list(homes.values()), experiment, task)[0], strict=True))
