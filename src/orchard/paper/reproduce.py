"""A table of the paper beside ours: published value, measured value, difference, and which of its claims hold."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from orchard.checkpoints import write_durably
from orchard.comparison import Row, Spread, Watcher, compare, grid_folders
from orchard.environment import environment
from orchard.experiment import Experiment
from orchard.paper.protocol import (
    WITHOUT_PENALTY,
    Scale,
    SplitName,
    Table,
    base_experiment,
    contenders,
    published,
)
from orchard.paper.tuning import tuned
from orchard.runs import Stop

NOT_PERSONALISED = ("separate", "fedavg")


@dataclass(frozen=True)
class Cell:
    """One row of a table: what the paper says and what we measured, as shares; deviations over seeds."""

    label: str
    published: float | None
    bmcta: Spread
    last: Spread
    validation_selected: Spread
    parameters: Mapping[str, Any]

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
    seeds: list[int]
    cells: list[Cell]
    shared: Mapping[str, Any]
    """What defines the runs, but for what is each row's own."""
    environment: Mapping[str, Any]

    @property
    def name(self) -> str:
        """A name for files."""
        return f"{self.table}-{self.dataset}-{self.partition}-{self.scale}"

    def write(self, folder: Path) -> Path:
        """Keep all of it in a small file."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        write_durably(path, json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")
        return path

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read it back."""
        kept = json.loads(path.read_text("utf-8"))
        spreads = ("bmcta", "last", "validation_selected")
        cells = [Cell(**{**cell, **{name: Spread(**cell[name]) for name in spreads}}) for cell in kept.pop("cells")]
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

    def base(self) -> Experiment:
        """Return what the runs share."""
        return base_experiment(self.dataset, self.partition, self.scale, **self.settings)

    def folders(self) -> list[Path]:
        """Return the folders of the runs that are there."""
        base = self.base()
        return grid_folders(base, contenders(self.table, base), self.seeds, self.root)


def reproduce(task: Task, watcher: Watcher, stop: Stop | None = None, *, tune: bool = False) -> Reproduction:
    """Run what a table needs and is not yet there; put it beside what was published."""
    base = task.base()
    rows = contenders(task.table, base)
    if tune:
        rows = tuned(base, rows, task.seeds[0], task.root, watcher, stop)
    comparison = compare(base, rows, task.seeds, task.root, watcher, stop)
    theirs = published(task.table, task.dataset, task.partition)
    own = {row.label: {**row.settings.model_dump(), **row.changes} for row in rows}
    cells = [_cell(row, theirs.get(row.label), own[row.label]) for row in comparison.rows]
    shared = base.model_dump(mode="json", exclude={"method", "out", "data_dir", "seed", "workers"}, exclude_none=True)
    made = {key: value for key, value in environment(base).items() if key not in ("started", "rounds")}
    return Reproduction(task.table, task.dataset, task.partition, task.scale, task.seeds, cells, shared, made)


def _cell(row: Row, theirs: float | None, parameters: Mapping[str, Any]) -> Cell:
    return Cell(row.label, theirs, row.bmcta, row.last, row.validation_selected, parameters)


def claims(found: Reproduction) -> list[str]:
    """Say which of the paper's claims hold in what was measured."""
    ours = {cell.label: cell.bmcta.mean for cell in found.cells}
    return _claims_of_methods(ours) if found.table == "table1" else _claims_of_budgets(ours)


def _claims_of_methods(ours: Mapping[str, float]) -> list[str]:
    apple = max(ours[WITHOUT_PENALTY], ours["apple"])
    others = {label: value for label, value in ours.items() if label not in (WITHOUT_PENALTY, "apple")}
    rival = max(others, key=lambda label: others[label])
    lead = 100 * (apple - others[rival])
    first = f"APPLE first? {_yes(lead > 0)}: {lead:+.2f} points to the best other, {rival}."
    below = [label for label in ours if label not in NOT_PERSONALISED and ours[label] <= ours["fedavg"]]
    listed = f"; not so: {', '.join(below)}" if below else ""
    return [first, f"Every personalised method above FedAvg? {_yes(not below)}{listed}."]


def _claims_of_budgets(ours: Mapping[str, float]) -> list[str]:
    numbers = sorted({int(label.rpartition("-")[2]) for label in ours}, reverse=True)
    lines = []
    for method in ("apple", "fedfomo"):
        change = 100 * (ours[f"{method}-{numbers[-1]}"] - ours[f"{method}-{numbers[0]}"])
        lines.append(f"{method}: M = {numbers[-1]} is {change:+.2f} points from M = {numbers[0]}.")
    below = [str(m) for m in numbers if ours[f"apple-{m}"] <= ours[f"fedfomo-{m}"]]
    listed = f"; not at M = {', '.join(below)}" if below else ""
    return [*lines, f"APPLE above FedFomo at every budget? {_yes(not below)}{listed}."]


def _yes(holds: bool) -> str:
    return "Yes" if holds else "No"


def table_rows(found: Reproduction) -> list[list[str]]:
    """Return the table as people read it, headings first; accuracies in %."""
    rows = [["method", "published", "ours", "difference", "last round", "by validation"]]
    for cell in found.cells:
        theirs = "–" if cell.published is None else f"{100 * cell.published:.2f}"
        apart = "–" if cell.difference is None else f"{100 * cell.difference:+.2f}"
        ours, last, chosen = (str(spread) for spread in (cell.bmcta, cell.last, cell.validation_selected))
        rows.append([cell.label, theirs, ours, apart, last, chosen])
    return rows
