"""What saving costs: metrics, models and checkpoints, as a share of a round's time.

Runs APPLE on MNIST's shapes, with a fifth of its samples, which makes saving count five times as much (12 clients of
the practical split's sizes, the paper's CNN, batch 256, 5 epochs). Saving is timed inside the run, so that both are of
the same rounds.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from orchard import training
from orchard.data import ClientArrays
from orchard.experiment import Experiment
from orchard.folder import RunFolder
from orchard.measures import measure
from orchard.runs import run

CLIENTS = 12
SAVING = ("append", "write_checkpoint")


def practical_sizes(total: int) -> list[int]:
    """Sizes like those of MNIST's practical split: unequal by a factor of ten."""
    draw = np.random.default_rng(42)
    shares = np.zeros(CLIENTS)
    for _ in range(10):
        shares += draw.permutation([0.01] * 10 + [0.1, 0.8]) / 10
    return [max(20, int(total * share)) for share in shares]


def random_images(total: int) -> list[ClientArrays]:
    draw = np.random.default_rng(0)
    arrays = []
    for size in practical_sizes(total):
        n = size + size // 6
        x, y = draw.integers(256, size=(n, 28, 28), dtype=np.uint8), draw.integers(10, size=n)
        arrays.append(ClientArrays(x[:size], y[:size], x[size:], y[size:]))
    return arrays


class Clock:
    """Adds up the time spent in some functions."""

    def __init__(self) -> None:
        self.spent = 0.0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.spent += time.perf_counter() - began

        return wrapper


def shares(arrays: list[ClientArrays], rounds: int) -> dict[str, float]:
    saving, measuring = Clock(), Clock()
    originals = {name: getattr(RunFolder, name) for name in SAVING}
    for name, function in originals.items():
        setattr(RunFolder, name, saving.timed(function))
    vars(training)["measure"] = measuring.timed(measure)
    with tempfile.TemporaryDirectory() as folder:
        result = run(Experiment(dataset="arrays", clients=CLIENTS, rounds=rounds, out=Path(folder) / "run"), arrays)
        checkpoints = len(list(Path(folder).glob("run/checkpoints/*.json")))
    seconds = sum(entry.seconds for entry in result.rounds) + saving.spent
    return {
        "round_seconds": seconds / rounds,
        "saving": saving.spent / seconds,
        "measures": measuring.spent / (os.cpu_count() or 1) / seconds,  # the workers compute them side by side
        "checkpoints_kept": checkpoints,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=12_000, help="training samples of all clients together")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = shares(random_images(options.samples), options.rounds)
    if options.json:
        print(json.dumps(found))
        return
    print(f"a round           {found['round_seconds']:.1f} s, {options.samples} samples of MNIST's shape, 12 clients")
    print(f"saving            {found['saving']:.2%} of it: metrics, models and checkpoints")
    print(f"measuring         {found['measures']:.2%} of it: balanced accuracy and AUROC")


if __name__ == "__main__":
    main()
