"""Loading MNIST from its official files against reading and scaling the arrays by hand with NumPy.

Needs the four files in `mnist/` below $ORCHARD_DATA; without them it measures nothing.
"""

import gzip
from pathlib import Path

import numpy as np
import torch

from measuring import Figure, interleaved, ratios
from orchard.data.datasets import load_dataset
from orchard.data.download import data_folder
from orchard.experiment import Experiment

REPEATS = 5


def by_hand(folder: Path) -> None:
    for part in ("train", "t10k"):
        with gzip.open(folder / f"{part}-images-idx3-ubyte.gz") as file:
            images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
        with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz") as file:
            np.frombuffer(file.read(), np.uint8, offset=8).astype(np.int64)
        (images.astype(np.float32) / 255 - 0.5) / 0.5


def measure() -> list[Figure]:
    folder = data_folder(None) / "mnist"
    if not folder.is_dir():
        return []
    torch.set_num_threads(1)
    experiment = Experiment(dataset="mnist")
    times = interleaved({"orchard": lambda: load_dataset(experiment), "hand": lambda: by_hand(folder)}, REPEATS)
    return [Figure("loading MNIST / reading and scaling it by hand", ratios(times, "orchard", "hand"))]
