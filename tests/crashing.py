"""Runs in processes of their own, which die."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import orchard
from helpers import small_arrays, small_experiment
from orchard.results import Result

DISK = frozenset({"open", "os.rename", "os.remove", "os.mkdir", "os.truncate", "shutil.rmtree"})


def small_run_in(folder: Path, changes: dict[str, Any], *, die_at: int | None = None) -> None:
    """Run, or resume, a small experiment; die without a word at the n-th operation on the disk."""
    torch.set_num_threads(1)
    if die_at is not None:
        _die_at_disk_operation(die_at, folder)
    if (folder / "experiment.toml").exists():
        orchard.resume(folder, small_arrays())
    else:
        orchard.run(small_experiment(out=folder, **changes), small_arrays())


def _die_at_disk_operation(number: int, folder: Path) -> None:
    countdown: Iterator[int] = iter(range(number, -1, -1))

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in DISK and str(arguments[0]).startswith(str(folder)) and next(countdown, 0) == 0:
            os._exit(137)

    sys.addaudithook(watch)


def what_it_gave(result: Result) -> tuple[list[object], torch.Tensor]:
    """Return all figures but times, and all weights and buffers."""
    figures: list[object] = [{**entry.as_json(), "seconds": None, "time": None} for entry in result.rounds]
    tensors = [tensor.flatten().double() for vector, buffers in result.models for tensor in (vector, *buffers.values())]
    return figures, torch.cat(tensors)


def same(one: Result, other: Result) -> bool:
    """Tell whether two runs gave the same, bit for bit."""
    mine, theirs = what_it_gave(one), what_it_gave(other)
    return mine[0] == theirs[0] and torch.equal(mine[1], theirs[1])
