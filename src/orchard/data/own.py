"""The user's own data: arrays in an `.npz`, or images in folders."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from orchard.data.folders import folder_kind, subfolders
from orchard.data.image_folders import alike, class_names, read_class_folders
from orchard.data.partitions import Column
from orchard.data.readers import read_npz
from orchard.data.samples import (
    Dataset,
    Samples,
    as_samples,
    check_same_shape,
    find_task,
    image_samples,
    joined,
    split_by_stratum,
    split_rows,
)
from orchard.errors import UserError
from orchard.experiment import Experiment
from orchard.tasks.classification import Classification
from orchard.tasks.task import Task

Arrays = Mapping[str, NDArray[Any]]
Keys = Mapping[str, tuple[str, str]]
"""For each part, the names of its arrays of samples and labels."""

PARTS = ("train", "val", "test")
OWNER_KINDS = "Uiu"
"""NumPy's letters for text and whole numbers."""


def own_arrays(path: Path, experiment: Experiment) -> Dataset:
    """Load an `.npz` with MedMNIST's keys or keys like `x_train` and `y_train`; `val` is added to `train`."""
    arrays = read_npz(path)
    keys = part_keys(arrays, path)
    kind = find_task(experiment.task, [arrays[y] for _, y in keys.values()], str(path))
    parts = samples_of_parts(arrays, keys, experiment.size, kind, path)
    training = [part for part in ("train", "val") if part in parts]
    train = joined([parts[part] for part in training], str(path))
    task = kind.numbered(torch.cat([samples.y for samples in parts.values()]))
    column = experiment.partition.key if isinstance(experiment.partition, Column) else None
    owners = _owners(arrays, keys, column, path) if column is not None else {}
    whose = np.concatenate([owners[part] for part in training]) if owners else None
    if "test" in parts:
        return Dataset(train, parts["test"], task, None if whose is None else (whose, owners["test"]))
    first, second = split_rows(task.strata(train.y).numpy())
    split = None if whose is None else (whose[first], whose[second])
    return Dataset(train.take(first), train.take(second), task, split)


def samples_of_parts(arrays: Arrays, keys: Keys, size: int, task: type[Task], path: Path) -> dict[str, Samples]:
    """Return the samples of each part; raise if they differ in shape."""
    parts = {
        part: as_samples(arrays[x], arrays[y], size, task, f"{path}: {x}", f"{path}: {y}")
        for part, (x, y) in keys.items()
    }
    check_same_shape(list(parts.values()), str(path))
    return parts


def part_keys(arrays: Arrays, path: Path) -> Keys:
    """Return, for each part, the names of its arrays of samples and labels."""
    found: dict[str, tuple[str, str]] = {}
    for part in PARTS:
        for pair in ((f"{part}_images", f"{part}_labels"), (f"x_{part}", f"y_{part}")):
            there = [key for key in pair if key in arrays]
            if len(there) == 1:
                missing = pair[1 - pair.index(there[0])]
                raise UserError(f"{path}: has '{there[0]}' but no '{missing}'; it holds {sorted(arrays)}")
            if there:
                found[part] = pair
    if not found and "x" in arrays and "y" in arrays:
        return {"train": ("x", "y")}
    if "train" not in found:
        expected = "'x' and 'y', 'x_train' and 'y_train', or MedMNIST's keys"
        raise UserError(f"{path}: expected {expected}; it holds {sorted(arrays)}")
    return found


def _owners(arrays: Arrays, keys: Keys, key: str, path: Path) -> dict[str, NDArray[Any]]:
    """Return, for each part, the column with each sample's owner."""
    taken = {name for pair in keys.values() for name in pair}
    columns: dict[str, NDArray[Any]] = {}
    for part, (x, _) in keys.items():
        whole = [key] if x == "x" else []  # one array for all samples
        names = [n for n in (f"{key}_{part}", f"{part}_{key}", *whole) if n in arrays and n not in taken]
        if not names:
            others = sorted(arrays.keys() - taken)
            raise UserError(
                f"{path}: partition.key = {key!r}: has no '{key}_{part}'; "
                f"apart from samples and labels it holds: {', '.join(others) or 'nothing'}"
            )
        column = arrays[names[0]].reshape(-1)
        if len(column) != len(arrays[x]):
            raise UserError(f"{path}: {names[0]}: names {len(column)} owners, but {x} holds {len(arrays[x])} samples")
        if column.dtype.kind not in OWNER_KINDS:
            raise UserError(f"{path}: {names[0]}: owners are text or whole numbers, not {column.dtype}")
        columns[part] = column
    if len({column.dtype.kind for column in columns.values()}) > 1:
        types = ", ".join(f"{column.dtype} for {part}" for part, column in columns.items())
        raise UserError(f"{path}: partition.key = {key!r}: owners differ in type: {types}; save them all as one type")
    return columns


def own_images(folder: Path, size: int) -> Dataset:
    """Load `train/<class>/…` and `test/<class>/…`; without a test part, split the data 80/20."""
    if folder_kind(folder) == "classes":
        task = Classification(class_names([folder]))
        everything = image_samples(read_class_folders(folder, task.classes, size), size)
        return Dataset(*split_by_stratum(everything, task), task)
    homes = {path.name: path for path in subfolders(folder)}
    strange = homes.keys() - set(PARTS)
    if strange:
        raise UserError(f"{folder}: expected only 'train', 'val' and 'test', not {sorted(strange)}")
    task = Classification(class_names(list(homes.values())))
    stored = alike([read_class_folders(home, task.classes, size) for home in homes.values()])
    parts = {name: image_samples(part, size) for name, part in zip(homes, stored, strict=True)}
    train = joined([parts[name] for name in ("train", "val") if name in parts], str(folder))
    return Dataset(*((train, parts["test"]) if "test" in parts else split_by_stratum(train, task)), task)
