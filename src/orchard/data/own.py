"""The user's own data: arrays in an `.npz`, or images in folders."""

from pathlib import Path

import numpy as np
import torch

from orchard.data.own_images import part_folders, read_folders
from orchard.data.owners import PARTS, Arrays, Keys, owners_of
from orchard.data.partitions import column_key
from orchard.data.readers import read_npz
from orchard.data.samples import (
    Dataset,
    Samples,
    as_samples,
    check_same_shape,
    decoded,
    find_task,
    joined,
    split_by_stratum,
    split_rows,
)
from orchard.errors import UserError
from orchard.experiment import Experiment
from orchard.tasks.task import Task


def own_arrays(path: Path, experiment: Experiment) -> Dataset:
    """Load an `.npz`."""
    return dataset_of_arrays(read_npz(path), experiment, str(path))


def dataset_of_arrays(arrays: Arrays, experiment: Experiment, place: str) -> Dataset:
    """Return arrays with MedMNIST's keys or keys like `x_train` and `y_train` as a dataset; `val` joins `train`."""
    keys = part_keys(arrays, place)
    kind = find_task(experiment.task, [arrays[y] for _, y in keys.values()], place)
    parts = samples_of_parts(arrays, keys, experiment, kind, place)
    training = [part for part in ("train", "val") if part in parts]
    train = joined([parts[part] for part in training], place)
    task = kind.numbered(torch.cat([samples.y for samples in parts.values()]))
    column = column_key(experiment.partition)
    owners = owners_of(arrays, keys, column, place) if column is not None else {}
    whose = np.concatenate([owners[part] for part in training]) if owners else None
    if "test" in parts:
        return Dataset(train, parts["test"], task, None if whose is None else (whose, owners["test"]))
    first, second = split_rows(task.strata(train.y).numpy())
    split = None if whose is None else (whose[first], whose[second])
    return Dataset(train.take(first), train.take(second), task, split)


def samples_of_parts(
    arrays: Arrays, keys: Keys, experiment: Experiment, task: type[Task], place: str
) -> dict[str, Samples]:
    """Return the samples of each part; raise if they differ in shape."""
    size, layout = experiment.size, experiment.layout
    parts = {
        part: as_samples(arrays[x], arrays[y], size, task, f"{place}: {x}", f"{place}: {y}", layout)
        for part, (x, y) in keys.items()
    }
    check_same_shape(list(parts.values()), place)
    return dict(zip(parts, decoded(list(parts.values()), task), strict=True))


def part_keys(arrays: Arrays, place: str) -> Keys:
    """Return, for each part, the names of its arrays of samples and labels."""
    found: dict[str, tuple[str, str]] = {}
    for part in PARTS:
        for pair in ((f"{part}_images", f"{part}_labels"), (f"x_{part}", f"y_{part}")):
            there = [key for key in pair if key in arrays]
            if len(there) == 1:
                missing = pair[1 - pair.index(there[0])]
                raise UserError(f"{place}: has '{there[0]}' but no '{missing}'; it holds {sorted(arrays)}")
            if there:
                found[part] = pair
    if not found and "x" in arrays and "y" in arrays:
        return {"train": ("x", "y")}
    if "train" not in found:
        expected = "'x' and 'y', 'x_train' and 'y_train', or MedMNIST's keys"
        raise UserError(f"{place}: expected {expected}; it holds {sorted(arrays)}")
    return found


def own_images(folder: Path, experiment: Experiment) -> Dataset:
    """Load images from folders; without a test part, split the data 80/20."""
    homes = part_folders(folder, experiment.volumes)
    samples, task = read_folders(list(homes.values()), experiment)
    parts = dict(zip(homes, samples, strict=True))
    train = joined([parts[name] for name in ("train", "val") if name in parts], str(folder))
    return Dataset(*((train, parts["test"]) if "test" in parts else split_by_stratum(train, task)), task)
