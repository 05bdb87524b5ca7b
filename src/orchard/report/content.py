"""Everything that a report shows, as plain values; no other file of this package reads run folders."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchard.data.clients import DataDistribution
from orchard.errors import UserError
from orchard.experiment import Experiment, to_toml
from orchard.method import Moment
from orchard.report.command import command_of
from orchard.runs.folder import RunFolder, State
from orchard.runs.result import Figures, Result, RoundFigures
from orchard.text import readable

MATRIX_CELLS = 600_000
"""Limit on matrix entries on one page, all runs together; rounds are left out evenly to stay below it."""


@dataclass(frozen=True)
class Relationships:
    """The directed relationships after some of the rounds; round 0 is before the first."""

    rounds: list[int]
    matrices: list[list[list[float]]]
    """Rounds × clients that are helped × clients that help."""


@dataclass(frozen=True)
class RunView:
    """What is shown of one run of one method; None where there is no figure (yet)."""

    label: str
    method: str
    seed: int
    folder: str
    state: State
    planned: int
    loss: list[float | None]
    """By round, the mean over all training samples of all clients."""
    scores: list[list[float | None]]
    """On the test parts: rounds × clients."""
    best: RoundFigures | None
    last: RoundFigures | None
    validation: RoundFigures | None
    clients: list[float | None]
    """Each client's score in the round with the best mean."""
    gains: list[float | None] | None
    """Each client's gain over training alone; None if no run trained alone."""
    alone: float | None
    """The best mean score of training alone."""
    helpers: list[str | None]
    """Who helps each client most after the last round."""
    relationships: Relationships | None
    traffic: list[float]
    """Bytes that a client has sent and received by the end of each round, on average."""
    bytes_up: float
    """Bytes that a client sends in one round, on average."""
    bytes_down: float
    seconds: float
    command: str | None
    settings: str


@dataclass(frozen=True)
class Content:
    """Some runs on the same data."""

    title: str
    distribution: DataDistribution
    runs: list[RunView]


def content_of(folders: Sequence[RunFolder], *, live: bool = False) -> Content:
    """Read runs; with `live`, a run without any figures yet is allowed."""
    results = [folder.result() for folder in folders]
    for folder, result in zip(folders, results, strict=True):
        if result.distribution != results[0].distribution:
            raise UserError(f"{folder.path}: is on other data than {folders[0].path}; show them one by one")
        if not live and np.isnan(result.scores()).all():
            raise UserError(f"{folder.path}: no round has been measured yet; orchard watch shows it while it goes on")
    entries: list[Entry] = [(folder, result, None) for folder, result in zip(folders, results, strict=True)]
    entries += _given_by_others(entries)
    labels = _labels(entries)
    share = MATRIX_CELLS // len(entries)
    runs = [_shown(label, *entry, share) for label, entry in zip(labels, entries, strict=True)]
    runs = [_beside_alone(run, runs) for run in runs]
    experiment = results[0].experiment
    name = readable(Path(experiment.dataset).name)
    return Content(f"{name}, {experiment.partition.name} split", results[0].distribution, runs)


Entry = tuple[RunFolder, Result, str | None]
"""A run, and the other method whose figures are shown from it; None for the run's own method."""


def _given_by_others(entries: Sequence[Entry]) -> list[Entry]:
    """Return entries for methods that have no run of their own but are reported by another run, as in a comparison."""
    if len(entries) == 1:
        return []
    known = {(result.experiment.method.name, result.experiment.seed) for _, result, _ in entries}
    given: dict[tuple[str, int], Entry] = {}
    for folder, result, _ in entries:
        for name in result.experiment.method.also_reports:
            key = name, result.experiment.seed
            if key not in known:
                given.setdefault(key, (folder, result, name))
    return list(given.values())


def _labels(entries: Sequence[Entry]) -> list[str]:
    """Return a unique name for each entry: its method, then what tells it from the others."""
    experiments = [result.experiment for _, result, _ in entries]
    labels = [
        given or _method_label(experiment) for experiment, (_, _, given) in zip(experiments, entries, strict=True)
    ]
    if len({experiment.seed for experiment in experiments}) > 1:
        labels = [f"{label}, seed {e.seed}" for label, e in zip(labels, experiments, strict=True)]
    unique: list[str] = []
    for label in labels:
        names = (label if k == 1 else f"{label} ({k})" for k in count(1))
        unique.append(next(name for name in names if name not in unique))
    return unique


def _method_label(experiment: Experiment) -> str:
    """Return the method's name and its parameters that are not defaults, in the form that `compare` takes."""
    method = experiment.method
    fields = type(method).model_fields
    changed = [f"{key}={value}" for key, value in method if key != "name" and value != fields[key].default]
    return ":".join([method.name, *changed])


def _shown(label: str, folder: RunFolder, result: Result, given: str | None, cells: int) -> RunView:
    experiment, rounds = result.experiment, result.rounds
    moment: Moment = experiment.method.also_reports[given] if given else experiment.method.moment
    figures = result.figures(moment) if rounds else None
    up, down = (np.array([getattr(r, name) for r in rounds]) for name in ("bytes_up", "bytes_down"))
    mean_traffic = (up + down).mean(axis=1).cumsum().tolist() if rounds else []
    return RunView(
        label=label,
        method=given or experiment.method.name,
        seed=experiment.seed,
        folder=readable(folder.path.resolve().name),
        state=folder.state(),
        planned=experiment.rounds,
        loss=_loss(result),
        scores=_plain(result.scores("test", moment), 5),
        **_selected(figures),
        clients=_plain(np.array(figures.clients), 5) if figures else [None] * result.federation.clients,
        gains=None,
        alone=None,
        helpers=[client.strongest_helper for client in result.clients] if rounds else [],
        relationships=_thinned(result.relationships, cells),
        traffic=mean_traffic,
        bytes_up=float(up.mean()) if rounds else 0.0,
        bytes_down=float(down.mean()) if rounds else 0.0,
        seconds=sum(r.seconds for r in rounds),
        command=command_of(experiment),
        settings=to_toml(experiment),
    )


def _selected(figures: Figures | None) -> dict[str, RoundFigures | None]:
    """Return the best, the last and the validation round; None where some client's figure is missing."""
    chosen = (figures.best, figures.last, figures.validation_selected) if figures else (None, None, None)
    whole = [one if one and not np.isnan(one.score) else None for one in chosen]
    return dict(zip(("best", "last", "validation"), whole, strict=True))


def _loss(result: Result) -> list[float | None]:
    """Return the training loss by round as in the paper: the mean over samples, each with its own client's model."""
    losses = np.array([r.loss for r in result.rounds], dtype=np.float64).reshape(-1, result.federation.clients)
    losses = losses @ np.array(result.federation.samples) / sum(result.federation.samples)
    loss: list[float | None] = _plain(losses, 6)
    return loss


def _thinned(matrices: NDArray[np.float64] | None, cells: int) -> Relationships | None:
    """Return the matrices of as many rounds as fit, with the first and the last."""
    if matrices is None or np.isnan(matrices).any():
        return None
    fitting = max(2, cells // matrices[0].size)
    rounds = np.unique(np.linspace(0, len(matrices) - 1, min(len(matrices), fitting)).round().astype(int))
    return Relationships(rounds.tolist(), np.round(matrices[rounds], 4).tolist())


def _beside_alone(run: RunView, runs: Sequence[RunView]) -> RunView:
    """Return a run compared with training alone, with the same seed if there is such a run."""
    separate_runs = [other for other in runs if other.method == "separate" and other.best]
    if not separate_runs or not run.best or run.method == "separate":
        return run
    alone = next((other for other in separate_runs if other.seed == run.seed), separate_runs[0])
    pairs = zip(run.clients, alone.clients, strict=True)
    gains = [None if mine is None or theirs is None else round(mine - theirs, 5) for mine, theirs in pairs]
    return replace(run, gains=gains, alone=alone.best.score if alone.best else None)


def _plain(array: NDArray[np.float64], digits: int) -> Any:
    """Return an array as lists, with None for NaN."""
    values = np.round(array, digits).astype(object)
    values[np.isnan(array)] = None
    return values.tolist()
