"""Datasets by name or path, prepared: float32, images in [−1, 1] and channels first, labels 0 … C−1."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from orchard.catalogue import CATALOGUE, Entry
from orchard.data.fetch import data_folder, obtain
from orchard.data.folders import alike, class_names, read_class_folders
from orchard.data.readers import Part, read_cifar10, read_idx, read_npz
from orchard.errors import Refusal
from orchard.experiment import Experiment, nearest
from orchard.layout import folder_layout, subfolders
from orchard.randomness import generator

SPLIT_SEED = 42
"""Of the split into training and test data, where a dataset does not come with one: fixed, so that it is the same
in every run."""


LARGEST_LABEL = 9_999
"""No more classes than that are meant; a larger label has gone astray."""
SCALED_BYTES = (np.arange(256, dtype=np.float32) / 255 - np.float32(0.5)) / np.float32(0.5)
"""Every byte's value after scaling: looking them up takes one pass over the images instead of four."""


class Samples(NamedTuple):
    """Inputs and their labels."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Dataset:
    """A prepared dataset with its train/test split."""

    train: Samples
    test: Samples
    classes: tuple[str, ...]
    owners: Mapping[str, tuple[NDArray[Any], NDArray[Any]]] = field(default_factory=dict)
    """Columns that say whose each training and each test sample is."""


def load_dataset(experiment: Experiment) -> Dataset:
    """Load the dataset that an experiment names."""
    name, path = experiment.dataset, Path(experiment.dataset)
    entry = CATALOGUE.get(name)
    if entry is not None:
        return _published(entry, experiment)
    if path.suffix == ".npz":
        return _own_arrays(path)
    if path.is_dir():
        return _own_images(path, experiment.size)
    raise Refusal(f"dataset = {name!r}: no such path, nor a known dataset; {nearest(name, list(CATALOGUE))}")


# --- Published datasets ---


def _published(entry: Entry, experiment: Experiment) -> Dataset:
    if entry.format == "embedded":
        return _digits(experiment.size)
    folder = data_folder(experiment.data_dir)
    larger = [side for side in entry.files if side >= experiment.size]
    size = min(larger) if larger else max(entry.files)  # shrinking loses less than enlarging
    paths = [obtain(source, folder) for source in entry.files[size]]
    if entry.format == "medmnist":
        return _medmnist(paths[0], entry, experiment)
    if entry.format == "cifar":
        train, test = read_cifar10(paths[0])
    else:
        train, test = (Part(read_idx(paths[k], 3), read_idx(paths[k + 1], 1)) for k in (0, 2))
    prepared = [
        _prepared(part, entry.classes, experiment.size, f"{paths[0].parent}: {name}")
        for part, name in ((train, "train"), (test, "test"))
    ]
    return Dataset(prepared[0], prepared[1], entry.classes)


def _digits(size: int) -> Dataset:
    """Load scikit-learn's 1,797 hand-written digits, 8×8 pixels of 17 shades; one fifth is for testing."""
    from sklearn.datasets import load_digits  # slow to import, and needed for nothing else here

    raw = load_digits()
    x = _resized(torch.from_numpy(raw.images).float().div_(16).sub_(0.5).div_(0.5).unsqueeze(1), size)
    everything = Samples(x, torch.from_numpy(raw.target).long())
    return Dataset(*split_by_class(everything), CATALOGUE["digits"].classes)


def _medmnist(path: Path, entry: Entry, experiment: Experiment) -> Dataset:
    """Merge all parts and split them 80/20, as the paper did, or keep the official test set."""
    arrays = read_npz(path)
    parts = {}
    for part in ("train", "val", "test"):
        missing = [key for key in (f"{part}_images", f"{part}_labels") if key not in arrays]
        if missing:
            raise Refusal(f"{path}: has no '{missing[0]}'; it holds {sorted(arrays)}")
        stored = Part(arrays[f"{part}_images"], arrays[f"{part}_labels"])
        parts[part] = _prepared(stored, entry.classes, experiment.size, f"{path}: {part}")
    if experiment.split == "official":
        return Dataset(_joined([parts["train"], parts["val"]], str(path)), parts["test"], entry.classes)
    return Dataset(*split_by_class(_joined(list(parts.values()), str(path))), entry.classes)


# --- One's own data ---


def _own_arrays(path: Path) -> Dataset:
    """Load an `.npz` with MedMNIST's keys or ones like `x_train` and `y_train`."""
    arrays = read_npz(path)
    parts: dict[str, Samples] = {}
    for part in ("train", "val", "test"):
        for x, y in ((f"{part}_images", f"{part}_labels"), (f"x_{part}", f"y_{part}")):
            if x in arrays and y in arrays:
                parts[part] = as_samples(arrays[x], arrays[y], f"{path}: {part}")
    if "train" not in parts:
        raise Refusal(f"{path}: expected 'x_train' and 'y_train', or MedMNIST's keys; it holds {sorted(arrays)}")
    train = _joined([parts[part] for part in ("train", "val") if part in parts], str(path))
    train, test = (train, parts["test"]) if "test" in parts else split_by_class(train)
    shapes = {tuple(samples.x.shape[1:]) for samples in (train, test)}
    if len(shapes) > 1:
        raise Refusal(f"{path}: train and test differ in shape: {sorted(shapes)}")
    classes = numbered_classes(torch.cat([train.y, test.y]))
    owners = {
        key.removesuffix("_train"): (values, arrays[key.removesuffix("_train") + "_test"])
        for key, values in arrays.items()
        if key.endswith("_train") and key[0] not in "xy" and key.removesuffix("_train") + "_test" in arrays
    }
    return Dataset(train, test, classes, owners)


def _own_images(folder: Path, size: int) -> Dataset:
    """Load `train/<class>/…` with `test/<class>/…` beside it, or `<class>/…` split by us."""
    if folder_layout(folder) == "classes":
        classes = class_names([folder])
        part = read_class_folders(folder, classes, size)
        return Dataset(*split_by_class(_prepared(part, classes, size, str(folder))), classes)
    homes = {path.name: path for path in subfolders(folder)}
    strange = homes.keys() - {"train", "val", "test"}
    if strange:
        raise Refusal(f"{folder}: beside 'train' only 'val' and 'test' are expected, not {sorted(strange)}")
    classes = class_names(list(homes.values()))
    stored = alike([read_class_folders(home, classes, size) for home in homes.values()])
    parts = {name: _prepared(part, classes, size, str(homes[name])) for name, part in zip(homes, stored, strict=True)}
    train = _joined([parts[name] for name in ("train", "val") if name in parts], str(folder))
    return Dataset(*((train, parts["test"]) if "test" in parts else split_by_class(train)), classes)


# --- Preparation ---


def split_by_class(samples: Samples) -> tuple[Samples, Samples]:
    """Split 80/20 at random within every class; what does not divide goes to training."""
    labels = samples.y.numpy()
    train, test = [], []
    for k in np.unique(labels):
        order = generator(SPLIT_SEED, "test", int(k)).permutation(np.flatnonzero(labels == k))
        end = -(-4 * len(order) // 5)
        train.append(order[:end])
        test.append(order[end:])
    pieces = (torch.from_numpy(np.sort(np.concatenate(part))) for part in (train, test))
    first, second = (Samples(samples.x[piece], samples.y[piece]) for piece in pieces)
    return first, second


def as_samples(x: NDArray[Any], y: NDArray[Any], place: str) -> Samples:
    """Check arrays. Bytes are images, n×h×w or n×h×w×channels, and are scaled; floats are taken as they are."""
    x, y = np.asarray(x), np.asarray(y)
    if x.ndim < 2 or y.ndim < 1 or len(x) == 0:
        raise Refusal(f"{place}: expected samples and labels, got arrays of shape {x.shape} and {y.shape}")
    if len(x) != len(y):
        raise Refusal(f"{place}: {len(x)} samples but {len(y)} labels")
    labels = y.reshape(-1)
    if len(labels) != len(y) or not np.issubdtype(y.dtype, np.integer):
        raise Refusal(f"{place}: labels must be one whole number each, not {y.dtype} of shape {y.shape}")
    if labels.min() < 0:
        raise Refusal(f"{place}: row {int(labels.argmin())}: label {labels.min()} is below 0")
    if labels.max() > LARGEST_LABEL:
        raise Refusal(f"{place}: row {int(labels.argmax())}: label {labels.max()} is beyond {LARGEST_LABEL}")
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        inputs = scaled(x)
    elif np.issubdtype(x.dtype, np.floating):
        inputs = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
        if not bool(inputs.isfinite().all()):
            row = int((~inputs.flatten(1).isfinite().all(1)).nonzero()[0])
            raise Refusal(f"{place}: row {row}: holds a value that is not finite")
    else:
        raise Refusal(f"{place}: expected images of unsigned bytes or floats, got {x.dtype} of shape {x.shape}")
    return Samples(inputs, torch.from_numpy(labels.astype(np.int64)))


def numbered_classes(labels: Tensor) -> tuple[str, ...]:
    """Return the classes 0 … C−1 that labels imply."""
    return tuple(map(str, range(int(labels.max()) + 1)))


def _prepared(part: Part, classes: Sequence[str], size: int, place: str) -> Samples:
    samples = as_samples(part.images, part.labels, place)
    if int(samples.y.max()) >= len(classes):
        row = int(samples.y.argmax())
        raise Refusal(f"{place}: row {row}: label {int(samples.y[row])}, but there are {len(classes)} classes from 0")
    return Samples(_resized(samples.x, size), samples.y)


def scaled(images: NDArray[np.uint8]) -> Tensor:
    """Turn bytes, n×h×w (grey) or n×h×w×c, into floats in [−1, 1], n×c×h×w."""
    pixels = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.take(SCALED_BYTES, pixels))


def _resized(x: Tensor, size: int) -> Tensor:
    if x.shape[-2:] == (size, size):
        return x
    return functional.interpolate(x, size=(size, size), mode="bilinear", align_corners=False)


def _joined(parts: Sequence[Samples], place: str) -> Samples:
    shapes = {tuple(part.x.shape[1:]) for part in parts}
    if len(shapes) > 1:
        raise Refusal(f"{place}: its parts differ in the shape of samples: {sorted(shapes)}")
    return Samples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
