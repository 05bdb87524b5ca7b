"""Reproduce a table of the paper: run what it needs, and compare the results with the published ones."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from orchard.errors import UserError
from orchard.experiment import RunOptions
from orchard.paper.protocol import (
    OWN,
    Scale,
    SplitName,
    Table,
    base_experiment,
    check_copy,
    contenders,
    published,
    row_labels,
)
from orchard.paper.tuning import tuned
from orchard.report.views import Relationships, plain
from orchard.runs.comparison import Spread
from orchard.runs.files import to_json
from orchard.runs.grid import Contender, Grid, Measured, Watcher, run_grid
from orchard.runs.loop import Stop
from orchard.text import nearest
from orchard.whole import write_output

MADE_WITH = ("orchard", "results_version", "git_commit", "python", "torch", "numpy", "system", "cpu", "cores", "device")
RELATIONSHIPS_KEPT = 3000
"""Numbers of a run's relationships: with twelve clients those of 20 rounds."""


@dataclass(frozen=True)
class Run:
    """A method's result with one seed: mean client test accuracies, as shares, and the run's time."""

    seed: int
    bmcta: float
    last: float
    validation_selected: float
    seconds: float
    curve: list[float]
    """The mean client test accuracy by round."""
    results_version: int | None = None
    """Of the code that ran it; code from before there were versions has none."""
    loss: list[float | None] = field(default_factory=list)
    """The training loss by round; empty for runs from before this and what follows were kept."""
    clients: list[float | None] = field(default_factory=list)
    """Each client's test accuracy at the best round."""
    relationships: Relationships | None = None
    """Of APPLE, after some of the rounds."""


@dataclass(frozen=True)
class Cell:
    """One cell of the paper's table, a method on a dataset and split: the published value and our runs."""

    label: str
    published: float | None
    parameters: Mapping[str, Any]
    runs: list[Run]

    def over_seeds(self, figure: str) -> Spread:
        """Return the spread of one of the runs' figures over seeds."""
        return Spread.of([getattr(run, figure) for run in self.runs])

    @property
    def bmcta(self) -> Spread:
        """Our BMCTA over seeds."""
        return self.over_seeds("bmcta")

    @property
    def difference(self) -> float | None:
        """Our mean BMCTA minus the published one."""
        return None if self.published is None else self.bmcta.mean - self.published


@dataclass(frozen=True)
class Reproduction:
    """One of the paper's tables, measured on one dataset and split."""

    table: Table
    dataset: str
    partition: str
    scale: Scale
    tuned: bool
    seeds: list[int]
    cells: list[Cell]
    shared: Mapping[str, Any]
    """The settings that all runs share."""
    environment: Mapping[str, Sequence[Any]]
    """The software and hardware of the runs; several values where runs differ."""
    copy_of: str | None = None
    """The paper's dataset that the folder holds a copy of."""

    @property
    def name(self) -> str:
        """The name of its files, without a suffix."""
        seeds = "" if self.seeds == [42] else f"-seeds-{'-'.join(map(str, self.seeds))}"
        return f"{self.table}-{self.dataset}-{self.partition}-{self.scale}{seeds}{'-tuned' if self.tuned else ''}"

    @property
    def command(self) -> str:
        """The command that measures it again."""
        dataset = f"{self.dataset} --copy-of {self.copy_of}" if self.copy_of else self.dataset
        what = f"{self.table} --dataset {dataset} --partition {self.partition} --scale {self.scale}"
        seeds = "" if self.seeds == [42] else f" --seeds {','.join(map(str, self.seeds))}"
        return f"orchard reproduce {what}{seeds}{' --tune' if self.tuned else ''} --results results"

    @property
    def missing(self) -> list[str]:
        """The rows of the table that are not measured yet."""
        measured = {cell.label for cell in self.cells}
        return [label for label in row_labels(self.table, self.shared["clients"]) if label not in measured]

    @property
    def is_whole(self) -> bool:
        """Whether all rows of the paper's table are measured."""
        return set(self.missing) <= set(OWN)

    @property
    def relationships(self) -> Relationships | None:
        """APPLE's relationships, of the first seed that has kept them."""
        known = (run.relationships for cell in self.cells if cell.label == "apple" for run in cell.runs)
        return next(filter(None, known), None)

    @property
    def older(self) -> list[str]:
        """The rows that an older version of the code has measured than others."""
        versions = {cell.label: min(run.results_version or 0 for run in cell.runs) for cell in self.cells}
        return [label for label, version in versions.items() if version < max(versions.values())]

    def merged(self, before: Self) -> Self:
        """Return this with the rows and seeds that were measured before and are not measured again."""
        cells = {cell.label: cell for cell in before.cells}
        for cell in self.cells:
            again = {run.seed for run in cell.runs}
            kept = [run for run in cells[cell.label].runs if run.seed not in again] if cell.label in cells else []
            cells[cell.label] = replace(cell, runs=sorted([*kept, *cell.runs], key=lambda run: run.seed))
        labels = row_labels(self.table, self.shared["clients"])
        made = {
            name: list(dict.fromkeys([*before.environment.get(name, []), *self.environment.get(name, [])]))
            for name in {**before.environment, **self.environment}
        }
        return replace(self, cells=[cells[label] for label in labels if label in cells], environment=made)

    def write(self, folder: Path) -> Path:
        """Write it into the table's JSON file in a folder, beside what is there; return the file."""
        path = folder / f"{self.name}.json"
        whole = self.merged(type(self).read(path)) if path.exists() else self
        text = to_json(asdict(whole), indent=1, ensure_ascii=False)
        flat = re.sub(r"\[[^][{}]*\]", lambda numbers: " ".join(numbers[0].split()), text)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror or error}") from None
        write_output(path, flat + "\n")
        return path

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file written by `write`."""
        kept = json.loads(path.read_text("utf-8"))
        cells = [Cell(**{**cell, "runs": [_read(run) for run in cell["runs"]]}) for cell in kept.pop("cells")]
        return cls(cells=cells, **kept)


@dataclass(frozen=True)
class Task:
    """A table to reproduce on one dataset and split, and the folder of its runs."""

    table: Table
    dataset: str
    partition: SplitName
    scale: Scale
    seeds: list[int]
    root: Path
    options: RunOptions = field(default_factory=RunOptions)
    tune: bool = False
    rows: Sequence[str] = ()
    """The labels of the rows to run; all rows if empty."""
    copy_of: str | None = None
    """The paper's dataset that a folder holds a copy of."""

    def grid(self) -> tuple[Grid, list[Contender]]:
        """Return what the runs share, and the rows to run; raise if a row does not exist."""
        if self.copy_of is not None:
            check_copy(self.dataset, self.copy_of)
        base = base_experiment(self.dataset, self.partition, self.scale)
        every = {row.label: row for row in contenders(self.table, base, self.copy_of)}
        for label in self.rows:
            if label not in every:
                raise UserError(f"--rows: {self.table} has no {label!r}; {nearest(label, list(every))}")
        return Grid(base, self.options, self.seeds, self.root), [
            row for label, row in every.items() if not self.rows or label in self.rows
        ]


def reproduce(task: Task, watcher: Watcher, stop: Stop | None = None) -> tuple[Reproduction, list[Path]]:
    """Run what is missing; return the results with the published ones, and the runs' folders."""
    grid, rows = task.grid()
    if task.tune:
        rows = tuned(grid, rows, watcher, stop)
    measured = run_grid(grid, rows, watcher, stop)
    return _reproduction(task, grid, rows, measured), list(dict.fromkeys(run.folder.path for run in measured.values()))


def _reproduction(
    task: Task, grid: Grid, rows: Sequence[Contender], measured: Mapping[tuple[str, int], Measured]
) -> Reproduction:
    """Combine the measured with the published results."""
    theirs = published(task.table, task.copy_of or task.dataset, task.partition)
    name = Path(task.dataset).name  # of a folder: where it lies is of no interest
    cells = [
        Cell(
            row.label,
            theirs.get(row.label),
            {**row.settings.model_dump(), **row.changes},
            [_run(seed, measured[row.label, seed]) for seed in task.seeds],
        )
        for row in rows
    ]
    shared = grid.base.model_dump(mode="json", exclude={"method", "seed"}, exclude_none=True) | {"dataset": name}
    abouts = [run.folder.read("environment.json") for run in measured.values()]
    made = _together(leg for about in abouts for leg in (about, *about.get("resumed", [])))
    what = (task.table, name, task.partition, task.scale, task.tune, task.seeds)
    return Reproduction(*what, cells, shared, made, task.copy_of)


def _run(seed: int, run: Measured) -> Run:
    figures, apple = run.figures, run.result.experiment.method.name == "apple"
    return Run(
        seed=seed,
        bmcta=figures.best.score,
        last=figures.last.score,
        validation_selected=figures.validation_selected.score,
        seconds=round(run.result.seconds),
        curve=[round(accuracy, 5) for accuracy in run.curve],
        results_version=run.folder.read("environment.json").get("results_version"),
        loss=plain(run.result.training_loss, 5),
        clients=plain(np.array(figures.clients), 5),
        relationships=Relationships.thinned(run.result.relationships, RELATIONSHIPS_KEPT) if apple else None,
    )


def _read(run: Mapping[str, Any]) -> Run:
    related = run.get("relationships")
    return Run(**{**run, "relationships": Relationships(**related) if related else None})


def _together(environments: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the software and hardware of runs, each value once."""
    every = list(environments)
    return {name: list(dict.fromkeys(one.get(name) for one in every)) for name in MADE_WITH}
