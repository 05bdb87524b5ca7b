"""Load a dataset by name or path: published ones here, the user's own in `own.py`."""

from pathlib import Path

import numpy as np
import torch

from orchard.data.catalogue import CATALOGUE, Entry
from orchard.data.download import check_folder, chosen_folder, data_folder, obtain
from orchard.data.heart import read_heart_disease
from orchard.data.own import own_arrays, own_images
from orchard.data.readers import Part, read_cifar10, read_idx, read_npz
from orchard.data.samples import (
    Dataset,
    Samples,
    as_samples,
    joined,
    resized,
    split_by_stratum,
    split_rows,
)
from orchard.errors import UserError
from orchard.experiment import Experiment
from orchard.tasks.registry import task_named
from orchard.tasks.task import Task
from orchard.text import nearest

FORMS = (0, 130, 256, 386, 516, 646, 776, 906, 1029, 1157, 1287, 1415, 1545, 1667)
"""Where the forms begin that the embedded digits were written on: 14, by 13 people. Their labels follow one prescribed
order, by which they were found."""
DIGITS = Path(__file__).with_name("digits.npz")
"""The embedded data, part of the package."""


def load_dataset(experiment: Experiment, data_dir: Path | None = None) -> Dataset:
    """Load the dataset that an experiment names."""
    name, path = experiment.dataset, Path(experiment.dataset)
    entry = CATALOGUE.get(name)
    if experiment.images is not None and (entry is not None or not path.is_dir()):
        raise UserError(f"images: is for folders of DICOM and NIfTI files, which {name!r} is not; leave it out")
    if entry is not None:
        return _published(entry, experiment, data_dir)
    if path.is_dir():
        return own_images(path, experiment)
    if path.suffix.lower() == ".npz":
        return own_arrays(path, experiment)
    if path.exists():
        raise UserError(f"dataset = {name!r}: is neither an .npz file nor a folder of images; use one of these")
    raise UserError(f"dataset = {name!r}: no such path, nor a known dataset; {nearest(name, list(CATALOGUE))}")


def published_files(entry: Entry, experiment: Experiment, data_dir: Path | None) -> list[Path]:
    """Return the files of a published dataset, downloaded if they are not there."""
    if entry.format == "embedded":
        return [DIGITS]
    folder = data_folder(data_dir)
    check_folder(chosen_folder(data_dir))
    larger = [side for side in entry.files if side >= experiment.size]
    size = min(larger) if larger else max(entry.files)  # shrinking loses less than enlarging
    return [obtain(source, folder) for source in entry.files[size]]


def _published(entry: Entry, experiment: Experiment, data_dir: Path | None) -> Dataset:
    paths = published_files(entry, experiment, data_dir)
    if entry.format == "embedded":
        return _digits(experiment)
    if entry.format == "heart-disease":
        return read_heart_disease(paths, "all" if experiment.dataset == "heart-disease" else "complete")
    if entry.format == "medmnist":
        return _medmnist(paths[0], entry, experiment)
    if entry.format == "cifar":
        places = [[str(paths[0])] * 2] * 2
        stored = read_cifar10(paths[0])
    else:
        places = [[str(path) for path in paths[k : k + 2]] for k in (0, 2)]
        stored = _idx_part(*paths[:2]), _idx_part(*paths[2:])
    train, test = (_checked(part, entry, experiment, *where) for part, where in zip(stored, places, strict=True))
    return Dataset(train, test, _task(entry, experiment))


def _idx_part(images: Path, labels: Path) -> Part:
    return Part(read_idx(images, 3), read_idx(labels, 1))


def _digits(experiment: Experiment) -> Dataset:
    """Load the embedded digits: 1,797 hand-written ones, 8×8 pixels of 17 shades; 20 % are for testing."""
    arrays = read_npz(DIGITS)
    x = resized(torch.from_numpy(arrays["images"]).float().div_(16).sub_(0.5).div_(0.5).unsqueeze(1), experiment.size)
    everything = Samples(x, torch.from_numpy(arrays["labels"]).long())
    forms = np.searchsorted(FORMS, np.arange(len(x)), side="right") - 1
    writers = np.array([f"writer {form:02d}" for form in forms])
    first, second = split_rows(arrays["labels"])
    whose = writers[first], writers[second]
    task = _task(CATALOGUE["digits"], experiment)
    return Dataset(everything.take(first), everything.take(second), task, whose)


def _medmnist(path: Path, entry: Entry, experiment: Experiment) -> Dataset:
    """Merge all parts and split them 80/20, as the paper did, or keep the official test set."""
    arrays = read_npz(path)
    parts = {}
    for part in ("train", "val", "test"):
        keys = f"{part}_images", f"{part}_labels"
        missing = [key for key in keys if key not in arrays]
        if missing:
            raise UserError(f"{path}: has no '{missing[0]}'; it holds {sorted(arrays)}")
        stored = Part(*(arrays[key] for key in keys))
        parts[part] = _checked(stored, entry, experiment, *(f"{path}: {key}" for key in keys))
    task = _task(entry, experiment)
    if experiment.split == "official":
        return Dataset(joined([parts["train"], parts["val"]], str(path)), parts["test"], task)
    return Dataset(*split_by_stratum(joined(list(parts.values()), str(path)), task), task)


def _task(entry: Entry, experiment: Experiment) -> Task:
    """Return the task of a published dataset; raise if the experiment asks for one that its labels are not for."""
    name = experiment.task or entry.tasks[0]
    if name not in entry.tasks:
        raise UserError(f"task = {name!r}: {experiment.dataset} is for {' or '.join(entry.tasks)}")
    return task_named(name, ("grade",) if name == "regression" else entry.classes)


def _checked(part: Part, entry: Entry, experiment: Experiment, place: str, labels_place: str) -> Samples:
    """Return samples; raise if images or labels are not as the catalogue says."""
    images, labels = part
    channels = {3: 1, 4: images.shape[-1]}.get(images.ndim)
    if images.dtype != "uint8" or channels != entry.channels or not images.size:
        what = "grey images" if entry.channels == 1 else "colour images"
        raise UserError(f"{place}: expected {what} of unsigned bytes, got {images.dtype} of shape {images.shape}")
    task = _task(entry, experiment)
    samples = as_samples(images, labels, experiment.size, type(task), place, labels_place)
    task.check(samples.y, labels_place)
    return samples
