"""A table of the paper re-measured: the runs that it needs, and what they gave beside what was published."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from orchard.checkpoints import write_durably
from orchard.comparison import Spread
from orchard.errors import Refusal
from orchard.experiment import Experiment
from orchard.grid import Contender, Measured, Watcher, run_grid
from orchard.paper.protocol import Scale, SplitName, Table, base_experiment, contenders, published
from orchard.paper.tuning import tuned
from orchard.runs import Stop
from orchard.settings import nearest

MADE_WITH = ("orchard", "code", "git_commit", "python", "torch", "numpy", "system", "cpu", "cores", "device")


@dataclass(frozen=True)
class Run:
    """What a method gave with one seed: mean client test accuracies, as shares, and how long the run took."""

    seed: int
    bmcta: float
    last: float
    validation_selected: float
    seconds: float
    curve: list[float]
    """Round by round."""


@dataclass(frozen=True)
class Cell:
    """One cell of the paper's table, a method on a dataset and split: what is published, and what we measured."""

    label: str
    published: float | None
    parameters: Mapping[str, Any]
    runs: list[Run]

    def over_seeds(self, figure: str) -> Spread:
        """Return one of the runs' figures over seeds."""
        return Spread.of([getattr(run, figure) for run in self.runs])

    @property
    def bmcta(self) -> Spread:
        """Ours."""
        return self.over_seeds("bmcta")

    @property
    def difference(self) -> float | None:
        """Ours less theirs."""
        return None if self.published is None else self.bmcta.mean - self.published


@dataclass(frozen=True)
class Reproduction:
    """One dataset and split of one of the paper's tables."""

    table: Table
    dataset: str
    partition: str
    scale: Scale
    tuned: bool
    seeds: list[int]
    cells: list[Cell]
    shared: Mapping[str, Any]
    """What defines the runs, but for what is each row's own."""
    environment: Mapping[str, Sequence[Any]]
    """What the runs were made with; several values where they differ."""

    @property
    def name(self) -> str:
        """A name for files."""
        seeds = "" if self.seeds == [42] else f"-seeds-{'-'.join(map(str, self.seeds))}"
        return f"{self.table}-{self.dataset}-{self.partition}-{self.scale}{seeds}{'-tuned' if self.tuned else ''}"

    @property
    def command(self) -> str:
        """What measures it again."""
        what = f"{self.table} --dataset {self.dataset} --partition {self.partition} --scale {self.scale}"
        seeds = "" if self.seeds == [42] else f" --seeds {','.join(map(str, self.seeds))}"
        return f"orchard reproduce {what}{seeds}{' --tune' if self.tuned else ''} --results results"

    def write(self, folder: Path) -> Path:
        """Keep all of it in a small file."""
        path = folder / f"{self.name}.json"
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False)
        flat = re.sub(r"\[[^][{}]*\]", lambda numbers: " ".join(numbers[0].split()), text)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_durably(path, flat + "\n")
        except OSError as error:
            raise Refusal(f"{path}: cannot be written: {error.strerror or error}") from None
        return path

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read it back."""
        kept = json.loads(path.read_text("utf-8"))
        cells = [Cell(**{**cell, "runs": [Run(**run) for run in cell["runs"]]}) for cell in kept.pop("cells")]
        return cls(cells=cells, **kept)


@dataclass(frozen=True)
class Task:
    """A table to re-measure on one dataset and split, and where its runs are."""

    table: Table
    dataset: str
    partition: SplitName
    scale: Scale
    seeds: list[int]
    root: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What else the runs share, e.g. where the data are."""
    tune: bool = False
    rows: Sequence[str] = ()
    """Those that are wanted, by their labels; all if none is named."""

    def grid(self) -> tuple[Experiment, list[Contender]]:
        """Return what the runs share and the rows that are wanted, or refuse what there is not."""
        base = base_experiment(self.dataset, self.partition, self.scale, **self.settings)
        every = {row.label: row for row in contenders(self.table, base)}
        for label in self.rows:
            if label not in every:
                raise Refusal(f"--rows: {self.table} has no {label!r}; {nearest(label, list(every))}")
        return base, [row for label, row in every.items() if not self.rows or label in self.rows]


def reproduce(task: Task, watcher: Watcher, stop: Stop | None = None) -> tuple[Reproduction, list[Path]]:
    """Run what the rows need and is not yet there; return them beside what was published, and the runs' folders."""
    base, rows = task.grid()
    if task.tune:
        rows = tuned(base, rows, task.seeds[0], task.root, watcher, stop)
    measured = run_grid(base, rows, task.seeds, task.root, watcher, stop)
    return _reproduction(task, base, rows, measured), list(dict.fromkeys(run.folder.path for run in measured.values()))


def _reproduction(
    task: Task, base: Experiment, rows: Sequence[Contender], measured: Mapping[tuple[str, int], Measured]
) -> Reproduction:
    """Put what was measured beside what was published."""
    theirs = published(task.table, task.dataset, task.partition)
    cells = [
        Cell(
            row.label,
            theirs.get(row.label),
            {**row.settings.model_dump(), **row.changes},
            [_run(seed, measured[row.label, seed]) for seed in task.seeds],
        )
        for row in rows
    ]
    shared = base.model_dump(mode="json", exclude={"method", "out", "data_dir", "seed", "workers"}, exclude_none=True)
    abouts = [run.folder.read("environment.json") for run in measured.values()]
    made = _together(leg for about in abouts for leg in (about, *about.get("resumed", [])))
    what = (task.table, task.dataset, task.partition, task.scale, task.tune, task.seeds)
    return Reproduction(*what, cells, shared, made)


def _run(seed: int, run: Measured) -> Run:
    figures = run.figures
    return Run(
        seed=seed,
        bmcta=figures.best.accuracy,
        last=figures.last.accuracy,
        validation_selected=figures.validation_selected.accuracy,
        seconds=round(run.result.seconds),
        curve=[round(accuracy, 5) for accuracy in run.curve],
    )


def _together(environments: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return what runs were made with, each value once."""
    every = list(environments)
    return {name: list(dict.fromkeys(one.get(name) for one in every)) for name in MADE_WITH}
