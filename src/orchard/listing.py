"""The runs in a folder, at a glance."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from orchard.errors import Refusal
from orchard.folder import RunFolder, State


@dataclass(frozen=True)
class Listed:
    """One run."""

    folder: str
    state: State
    method: str
    data: str
    done: int
    planned: int
    best: float | None
    """Best mean client test accuracy so far."""
    started: datetime


def listed_runs(root: Path) -> list[Listed]:
    """Return the runs whose folders are in a folder, in the order they were started."""
    runs = []
    for file in root.glob("*/environment.json"):
        try:
            runs.append(_listed(RunFolder(file.parent)))
        except (Refusal, KeyError, ValueError, TypeError):  # somebody else's, or damaged
            continue
    return sorted(runs, key=lambda entry: entry.started)


def _listed(folder: RunFolder) -> Listed:
    experiment, rounds = folder.experiment(), folder.rounds()
    best = None
    if rounds:
        accuracy = folder.result().accuracy()
        best = float(np.nanmax(accuracy.mean(axis=1))) if not np.isnan(accuracy).all() else None
    return Listed(
        folder.path.name,
        folder.state(),
        experiment.method.name,
        f"{Path(experiment.dataset).name}, {experiment.partition.name}",
        len(rounds),
        experiment.rounds,
        best,
        datetime.fromisoformat(folder.read("environment.json")["started"]),
    )
