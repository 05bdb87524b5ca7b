"""Datasets by name, prepared: float32 in [−1, 1], channels first, with labels 0 … C−1."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from orchard.data.idx import read_idx
from orchard.errors import Refusal
from orchard.experiment import Experiment, nearest

SPLIT_SEED = 42


class Samples(NamedTuple):
    """Inputs and their labels."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Dataset:
    """A prepared dataset with its own train/test split."""

    train: Samples
    test: Samples
    classes: tuple[str, ...]


def load_dataset(experiment: Experiment) -> Dataset:
    """Load the dataset that an experiment names."""
    loader = DATASETS.get(experiment.dataset)
    if loader is None:
        raise Refusal(f"dataset = {experiment.dataset!r}: unknown; {nearest(experiment.dataset, list(DATASETS))}")
    return loader(experiment)


def scaled(images: NDArray[np.uint8]) -> Tensor:
    """Turn bytes, n×h×w (grey) or n×h×w×c, into floats in [−1, 1], n×c×h×w."""
    pixels = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(pixels, dtype=np.float32)).div_(255).sub_(0.5).div_(0.5)


def _digits(_: Experiment) -> Dataset:
    """Load scikit-learn's 1,797 hand-written digits, enlarged from 8×8 to 28×28; one fifth is for testing."""
    # Slow to import, and needed for nothing else here.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    raw = load_digits()
    x = torch.from_numpy(raw.images).float().div_(16).unsqueeze(1)
    x = functional.interpolate(x, size=(28, 28), mode="bilinear", align_corners=False).sub_(0.5).div_(0.5)
    y = torch.from_numpy(raw.target).long()
    train, test = train_test_split(np.arange(len(y)), test_size=0.2, stratify=raw.target, random_state=SPLIT_SEED)
    return Dataset(Samples(x[train], y[train]), Samples(x[test], y[test]), tuple("0123456789"))


def _mnist(experiment: Experiment) -> Dataset:
    """Load MNIST from its four official files."""
    folder = _data_folder(experiment) / "mnist"
    parts = []
    for part in ("train", "t10k"):
        images = read_idx(folder / f"{part}-images-idx3-ubyte.gz", dimensions=3)
        labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz", dimensions=1)
        if len(images) != len(labels):
            raise Refusal(f"{folder}: {part} has {len(images)} images but {len(labels)} labels")
        if labels.max(initial=0) > 9:
            raise Refusal(f"{folder}: {part} has a label {labels.max()}; MNIST's are 0 to 9")
        parts.append(Samples(scaled(images), torch.from_numpy(labels.astype(np.int64))))
    return Dataset(parts[0], parts[1], tuple("0123456789"))


def _data_folder(experiment: Experiment) -> Path:
    folder = experiment.data_dir or os.environ.get("ORCHARD_DATA")
    if not folder:
        raise Refusal(f"dataset = {experiment.dataset!r}: say where its files are, with --data-dir or ORCHARD_DATA")
    return Path(folder)


DATASETS: Mapping[str, Callable[[Experiment], Dataset]] = {"digits": _digits, "mnist": _mnist}
