"""List the runs in a folder, and say what tells them apart."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from orchard.errors import UserError
from orchard.experiment import Experiment
from orchard.runs.figures import mean_over_clients
from orchard.runs.folder import RunFolder, State
from orchard.runs.grid import method_label
from orchard.settings import flat


@dataclass(frozen=True)
class RunSummary:
    """One run in the list."""

    folder: str
    state: State
    method: str
    """Its name and parameters, and the settings that tell the run from others of the same method and data."""
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
    runs, damaged = list[tuple[RunSummary, Experiment]](), list[str]()
    for file in sorted(root.glob("*/experiment.toml")):
        try:
            experiment = RunFolder(file.parent).experiment()
            runs.append((_listed(RunFolder(file.parent), experiment), experiment))
        except UserError as refusal:
            damaged.append(str(refusal))
        except (OSError, KeyError, ValueError, TypeError) as error:
            damaged.append(f"{file.parent}: cannot be read: {error!r}")
    return sorted(_told_apart(runs), key=lambda entry: entry.started), damaged


def differing(one: Experiment, others: Iterable[Experiment], but: str) -> list[str]:
    """Return the settings, but for the method's and another, by which an experiment differs, e.g. ``lr=0.1``."""
    mine, theirs = flat(one.identity()), [flat(other.identity()) for other in others]
    return [
        f"{key}={value}"
        for key, value in mine.items()
        if key != but and not key.startswith("method.") and any(their.get(key) != value for their in theirs)
    ]


def _told_apart(runs: Sequence[tuple[RunSummary, Experiment]]) -> Iterator[RunSummary]:
    alike = defaultdict[tuple[str, str], list[Experiment]](list)
    for entry, experiment in runs:
        alike[entry.method, entry.data].append(experiment)
    for entry, experiment in runs:
        others = alike[entry.method, entry.data]
        yield replace(entry, method=", ".join([entry.method, *differing(experiment, others, but="rounds")]))


def _listed(folder: RunFolder, experiment: Experiment) -> RunSummary:
    rounds = folder.rounds()
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
        method_label(experiment.method),
        f"{Path(experiment.dataset).name}, {experiment.partition.name}",
        len(rounds),
        experiment.rounds,
        best,
        datetime.fromisoformat(about["started"]),
        waiting,
    )
