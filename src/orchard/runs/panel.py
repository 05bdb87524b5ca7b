"""A panel of federations that differ in kind, for those who do not know which kind theirs is.

Of every method and federation: the mean client test accuracy at the round that validation chooses, and the regret, by
which the best other method is ahead of it there. A method that is good everywhere has a small largest regret.

On small federations the choice of a round is itself uncertain: a few dozen validation samples choose it. So the mean
over the last rounds stands beside it, which nobody chooses.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from orchard.data.catalogue import CATALOGUE
from orchard.data.download import is_at_hand
from orchard.errors import UserError
from orchard.experiment import RunOptions, load_experiment
from orchard.runs.comparison import Spread
from orchard.runs.grid import Grid, Measured, Watcher, parse_contender, run_grid
from orchard.runs.loop import Stop
from orchard.text import nearest
from orchard.whole import write_output

SMALL: Mapping[str, Any] = {"model": "small-cnn", "rounds": 25, "epochs": 2, "batch_size": 32, "lr": 0.02}
DIGITS: Mapping[str, Any] = {**SMALL, "dataset": "digits", "clients": 8, "batch_size": 16}

FEDERATIONS: Mapping[str, Mapping[str, Any]] = {
    "digits-writers": {**DIGITS, "partition": "writers", "clients": 14},
    "digits-dirichlet": {**DIGITS, "partition": {"name": "dirichlet", "alpha": 0.5}},
    "digits-conventions": {**DIGITS, "partition": "iid", "shift": "labels"},
    "digits-scanners": {**DIGITS, "partition": "iid", "shift": "invert"},
    "heart-complete": {"dataset": "heart-disease-complete"},
    "heart-all": {"dataset": "heart-disease"},
    "mnist-practical": {**SMALL, "dataset": "mnist", "partition": "practical", "fraction": 0.05},
    "mnist-pathological": {**SMALL, "dataset": "mnist", "partition": "pathological", "fraction": 0.05},
    "bloodmnist-practical": {**SMALL, "dataset": "bloodmnist", "partition": "practical", "fraction": 0.2},
}
"""Each takes seconds to a few minutes per run; the digits need no files."""
LAST_ROUNDS = 5


@dataclass(frozen=True)
class PanelCell:
    """A method on one federation; accuracies are means over clients at the round that validation chooses."""

    accuracy: Spread
    balanced_accuracy: Spread | None
    """None if no client's is defined."""
    regret: float
    """The best other method's mean accuracy minus this one's; below 0 if this one is best."""
    settled: Spread
    """The mean accuracy over the last rounds."""
    settled_regret: float
    worse_than_alone: int | None
    """How many clients do worse than by training alone, by more than the noise of their test sets; the means over
    seeds count. None if that was not run."""
    clients: int
    auroc: Spread | None = None
    """None if no client's is defined, or if it was measured before this was kept."""


@dataclass(frozen=True)
class Panel:
    """A cell for every method and federation."""

    cells: Mapping[str, Mapping[str, PanelCell]]
    """By method, then by federation."""
    left_out: Mapping[str, str]
    """Federations that could not be run, and why."""
    seeds: Sequence[int]

    def regrets(self, method: str, *, settled: bool = False) -> list[float]:
        """Return a method's regret on every federation."""
        return [cell.settled_regret if settled else cell.regret for cell in self.cells[method].values()]

    def worse_than_alone(self, method: str) -> int | None:
        """Return how many clients of all federations clearly do worse than alone; None if that was not run."""
        known = [cell.worse_than_alone for cell in self.cells[method].values()]
        return None if None in known else sum(filter(None, known))

    def is_complete(self, method: str) -> bool:
        """Return whether a method was measured on every federation."""
        return len(self.cells[method]) == len(self.federations())

    def ranking(self) -> list[str]:
        """Return the methods, that with the smallest mean regret first, and last those not measured everywhere."""
        return sorted(self.cells, key=lambda method: (not self.is_complete(method), mean(self.regrets(method))))

    def federations(self) -> list[str]:
        """Return the federations that were run."""
        return list(dict.fromkeys(name for cells in self.cells.values() for name in cells))

    def updated(self, newer: "Panel") -> "Panel":
        """Return this panel with the cells of a newer one, and all regrets anew."""
        if list(newer.seeds) != list(self.seeds):
            raise UserError(f"the panel that is kept has the seeds {list(self.seeds)}; measure with the same")
        cells = {method: {**self.cells.get(method, {}), **newer.cells.get(method, {})} for method in _both(self, newer)}
        regretted = {method: {name: _with_regrets(cells, method, name) for name in cells[method]} for method in cells}
        return Panel(regretted, self.left_out, self.seeds)

    def write(self, path: Path) -> None:
        """Write a panel as JSON."""
        write_output(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Panel":
        """Read a panel back."""
        return TypeAdapter(cls).validate_json(path.read_bytes())


def _both(older: Panel, newer: Panel) -> list[str]:
    return list(dict.fromkeys([*older.cells, *newer.cells]))


def _with_regrets(cells: Mapping[str, Mapping[str, PanelCell]], method: str, federation: str) -> PanelCell:
    """Return a cell with its regrets over all other methods."""
    theirs = {other: cells[other][federation] for other in cells if federation in cells[other]}
    return replace(
        theirs[method],
        regret=_regret({other: [cell.accuracy.mean] for other, cell in theirs.items()}, method),
        settled_regret=_regret({other: [cell.settled.mean] for other, cell in theirs.items()}, method),
    )


def run_panel(
    methods: Sequence[str],
    seeds: Sequence[int],
    federations: Sequence[str],
    options: RunOptions,
    root: Path,
    watcher: Watcher,
    stop: Stop | None = None,
) -> Panel:
    """Run every method with every seed on every federation, or reuse finished runs; return the panel."""
    methods = list(dict.fromkeys(methods))
    if len(methods) < 2:
        raise UserError("--methods: a panel compares at least two methods")
    left_out = {name: reason for name in federations if (reason := _not_at_hand(name, options.data_dir))}
    cells: dict[str, dict[str, PanelCell]] = {method: {} for method in methods}
    for name in federations:
        if name not in left_out:
            base = load_experiment(overrides=FEDERATIONS[name])
            contenders = [parse_contender(method, base) for method in methods]
            measured = run_grid(Grid(base, options, seeds, root, stage=name), contenders, watcher, stop)
            runs = {method: [measured[method, seed] for seed in seeds] for method in methods}
            for method, cell in _cells(runs).items():
                cells[method][name] = cell
    if len(left_out) == len(federations):
        raise UserError("--federations: the data of none of these are at hand: " + "; ".join(left_out.values()))
    return Panel(cells, left_out, seeds)


def check_federations(names: Sequence[str]) -> list[str]:
    """Return the federations that are named, all if none is; raise if there is no such one."""
    for name in names:
        if name not in FEDERATIONS:
            raise UserError(f"--federations: there is no {name!r}; {nearest(name, list(FEDERATIONS))}")
    return list(dict.fromkeys(names)) or list(FEDERATIONS)


def _not_at_hand(federation: str, data_dir: Path | None) -> str:
    dataset = FEDERATIONS[federation]["dataset"]
    return "" if is_at_hand(CATALOGUE[dataset], data_dir) else f"{federation}: the files of {dataset} are not there"


def _cells(runs: Mapping[str, Sequence[Measured]]) -> dict[str, PanelCell]:
    """Compare the runs of all methods on one federation."""
    accuracy = {m: [run.figures.validation_selected.score for run in theirs] for m, theirs in runs.items()}
    settled = {m: [mean(run.curve[-LAST_ROUNDS:]) for run in theirs] for m, theirs in runs.items()}
    cells = {}
    for method, theirs in runs.items():
        chosen = [run.figures.validation_selected.measures for run in theirs]
        cells[method] = PanelCell(
            accuracy=Spread.of(accuracy[method]),
            balanced_accuracy=_spread([measures["balanced_accuracy"] for measures in chosen]),
            regret=_regret(accuracy, method),
            settled=Spread.of(settled[method]),
            settled_regret=_regret(settled, method),
            worse_than_alone=_worse(theirs, runs["separate"]) if "separate" in runs else None,
            clients=theirs[0].result.federation.clients,
            auroc=_spread([measures["auroc"] for measures in chosen]),
        )
    return cells


def _spread(values: Sequence[float | None]) -> Spread | None:
    defined = [value for value in values if value is not None]
    return Spread.of(defined) if defined else None


def _regret(values: Mapping[str, Sequence[float]], method: str) -> float:
    return max(mean(theirs) for other, theirs in values.items() if other != method) - mean(values[method])


def _worse(runs: Sequence[Measured], alone: Sequence[Measured]) -> int:
    """Count the clients whose mean accuracy is two standard errors of a share of their test cases below alone's."""
    cases = np.array(runs[0].result.distribution.samples["test"])
    mine, theirs = (np.mean([_by_client(run) for run in some], axis=0) for some in (runs, alone))
    share = (theirs * cases + 1) / (cases + 2)  # never 0 or 1, which would leave no room for chance
    return int((mine < theirs - 2 * np.sqrt(share * (1 - share) / cases)).sum())


def _by_client(run: Measured) -> NDArray[np.float64]:
    """Return each client's test accuracy at the round that validation chooses."""
    return np.array(run.result.scores("test", run.moment)[run.figures.validation_selected.round])
