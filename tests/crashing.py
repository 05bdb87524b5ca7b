"""Runs in processes of their own, which die."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import orchard
import orchard.engines.offload
from helpers import Dropping, method, small_arrays, small_run
from orchard.errors import Stopped
from orchard.methods.registry import BUILT_IN
from orchard.runs.result import Result

DISK = frozenset({"open", "os.rename", "os.remove", "os.mkdir", "os.truncate", "shutil.rmtree"})


def small_run_in(folder: Path, changes: dict[str, Any], *, die_at: int | None = None) -> None:
    """Run, or resume, a small experiment; die without a word at the n-th operation on the disk."""
    torch.set_num_threads(1)
    orchard.engines.offload.WORTH_A_FILE = 1  # small models go there too
    if die_at is not None:
        _die_at_disk_operation(die_at, folder)
    if (folder / "experiment.toml").exists():
        orchard.resume(folder, small_arrays())
    else:
        small_run(out=folder, **changes)


def _die_at_disk_operation(number: int, folder: Path) -> None:
    countdown: Iterator[int] = iter(range(number, -1, -1))

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in DISK and str(arguments[0]).startswith(str(folder)) and next(countdown, 0) == 0:
            os._exit(137)

    sys.addaudithook(watch)


def what_it_gave(result: Result) -> tuple[list[object], torch.Tensor]:
    """Return all figures but times, and all weights and buffers."""
    figures: list[object] = [{**entry.as_json(), "seconds": None, "time": None} for entry in result.rounds]
    tensors = [
        tensor.flatten().double()
        for vector, buffers in result.models
        for tensor in (vector, *(buffers[name] for name in sorted(buffers)))
    ]
    return figures, torch.cat(tensors)


def same(one: Result, other: Result) -> bool:
    """Tell whether two runs gave the same, bit for bit."""
    mine, theirs = what_it_gave(one), what_it_gave(other)
    return mine[0] == theirs[0] and torch.equal(mine[1], theirs[1])


VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in BUILT_IN},
    "apple-budget": {"method": method("apple", budget=1)},
    "fedfomo-budget": {"method": method("fedfomo", budget=2)},
    "cfl-split": {"method": method("cfl", eps1=9.0, eps2=0.0)},
    "fedavg-ft-short": {"method": method("fedavg-ft", tuning_epochs=1)},
    "dropout": {"model": Dropping},
}
_whole: dict[str, Result] = {}


def whole(name: str, **changes: Any) -> Result:
    """The run that nobody interrupts."""
    key = f"{name} {changes}"
    if key not in _whole:
        _whole[key] = small_run(**VARIANTS[name], **changes)
    return _whole[key]


def stopped_after(rounds: int, folder: Path, arrays: Any = None, /, **changes: Any) -> None:
    """Run until somebody asks it to stop."""
    asked = iter([False] * rounds)
    with pytest.raises(Stopped, match=f"stopped after round {rounds} of"):
        small_run(arrays, out=folder, stop=lambda: next(asked, True), **changes)
