"""Loading MNIST from its official files against reading and scaling the arrays by hand with NumPy.

Needs the four files in `mnist/` below $ORCHARD_DATA; without them it says so and measures nothing.
"""

import gzip
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from orchard.data import load_dataset
from orchard.data.fetch import data_folder
from orchard.experiment import Experiment

REPEATS = 5


def by_hand(folder: Path) -> float:
    total = 0.0
    for part in ("train", "t10k"):
        with gzip.open(folder / f"{part}-images-idx3-ubyte.gz") as file:
            images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
        with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz") as file:
            labels = np.frombuffer(file.read(), np.uint8, offset=8).astype(np.int64)
        scaled = (images.astype(np.float32) / 255 - 0.5) / 0.5
        total += float(scaled[-1].sum()) + float(labels.sum())
    return total


def main() -> None:
    folder = data_folder(None) / "mnist"
    if not folder.is_dir():
        print(f"loading MNIST: not measured, its files are not in {folder}")
        return
    torch.set_num_threads(1)
    ratios = []
    for repeat in range(REPEATS + 1):
        began = time.process_time()
        by_hand(folder)
        between = time.process_time()
        load_dataset(Experiment(dataset="mnist"))
        if repeat:
            ratios.append((time.process_time() - between) / (between - began))
    low, median, high = min(ratios), statistics.median(ratios), max(ratios)
    print(f"loading MNIST   {median:7.2f} × reading and scaling it by hand    ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
