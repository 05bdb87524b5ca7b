"""List the runs in a folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from orchard.errors import UserError
from orchard.runs.folder import RunFolder, State
from orchard.runs.result import mean_over_clients


@dataclass(frozen=True)
class RunSummary:
    """One run in the list."""

    folder: str
    state: State
    method: str
    data: str
    done: int
    planned: int
    best: str
    """Best mean client test score so far, as text."""
    started: datetime
    waiting: str
    """What it waits for; an empty string if that is nothing."""


def found_runs(paths: Sequence[Path]) -> list[Path]:
    """Return the runs that are named, and those in folders of runs that are named."""
    runs = []
    for path in paths:
        inside = sorted(file.parent for file in path.glob("*/experiment.toml"))
        runs += [path] if (path / "experiment.toml").is_file() or not inside else inside
    if len(runs) == 1 and runs[0].is_dir() and not (runs[0] / "experiment.toml").is_file():
        raise UserError(
            f"{runs[0]}: is neither the folder of a run (it has no experiment.toml) nor a folder of runs; "
            "name a run, several, or the folder that they are in"
        )
    return runs


def run_summaries(root: Path) -> tuple[list[RunSummary], list[str]]:
    """Return the runs in a folder, the oldest first, and the problems of those that cannot be read."""
    runs, damaged = [], []
    for file in sorted(root.glob("*/experiment.toml")):
        try:
            runs.append(_listed(RunFolder(file.parent)))
        except UserError as refusal:
            damaged.append(str(refusal))
        except (OSError, KeyError, ValueError, TypeError) as error:
            damaged.append(f"{file.parent}: cannot be read: {error!r}")
    return sorted(runs, key=lambda entry: entry.started), damaged


def _listed(folder: RunFolder) -> RunSummary:
    experiment, rounds = folder.experiment(), folder.rounds()
    result = folder.result() if rounds else None
    means = mean_over_clients(result.scores()) if result else np.full(1, np.nan)
    best = "-"
    if result and not np.isnan(means).all():
        score = result.task.measures[result.task.score]
        best = score.text(float(np.nanmax(means)), 2)
        best = best if score.title == "accuracy" else f"{score.title} {best}"
    about = folder.read("environment.json")
    state, waiting = folder.state(), folder.waiting_for()
    if not about and state == "running":  # on sites that are not all there yet
        written = datetime.fromtimestamp((folder.path / "experiment.toml").stat().st_mtime, UTC)
        about = {"started": written.isoformat()}
    if not about:
        raise UserError(f"{folder.path}: was stopped before it began")
    return RunSummary(
        folder.path.name,
        state,
        experiment.method.name,
        f"{Path(experiment.dataset).name}, {experiment.partition.name}",
        len(rounds),
        experiment.rounds,
        best,
        datetime.fromisoformat(about["started"]),
        waiting,
    )
