"""What a site tells of its data before training: counts in tens, and means of numbers, with small groups withheld.

Counts are rounded down to tens, so 0 stands for fewer than ten. With exact counts a withheld one could be worked out as
the difference of others. All rows count, whatever parts a run would make of them: no question can choose rows.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from orchard.data.site import site_data
from orchard.data.tables.columns import names_of, numbers_of, other_type
from orchard.data.tables.reading import read_table
from orchard.data.tables.settings import Kind, TableSettings, level_name
from orchard.errors import UserError
from orchard.experiment import Experiment
from orchard.settings import Settings
from orchard.tasks.task import Task

if TYPE_CHECKING:
    from pandas import Series

SMALLEST = 10
"""Groups of fewer are not told apart, and counts are told in so many."""
FEW_VALUES = 3
"""From mean and deviation of so few different values, how often each occurs could be worked out."""
DIGITS = 3
"""How many digits of a deviation are told; the mean's last place is the same."""

Tens = Annotated[int, Field(ge=0, multiple_of=SMALLEST, le=2**40)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Problem = Literal["", "absent", "other type"]


class Numbers(Settings):
    """Mean and deviation of numbers; None where they would tell of fewer than ten rows."""

    count: Tens
    mean: Finite | None
    deviation: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None


class ColumnFigures(Settings):
    """What a site tells of a column of its table."""

    name: str
    problem: Problem = ""
    missing: Tens = 0
    others: Tens = 0
    """Values that are no numbers, or none of the levels."""
    numbers: Numbers | None = None
    levels: dict[str, Tens] | None = None


class Statistics(Settings):
    """What a site tells of its data."""

    model_config = ConfigDict(strict=False)

    samples: Tens
    classes: dict[str, Tens]
    """By class or finding; none in regression."""
    others: Tens = 0
    """Targets that are none of the classes, or no numbers."""
    targets: dict[str, Numbers] = Field(default_factory=dict)
    """In regression, by the target's name."""
    shape: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Of a sample, if the data are no table."""
    columns: tuple[ColumnFigures, ...] = ()


def in_tens(count: int) -> int:
    """Return a count rounded down to tens; 0 stands for fewer than ten."""
    return int(count) // SMALLEST * SMALLEST


def statistics(path: Path, name: str, task: Task, experiment: Experiment) -> Statistics:
    """Return what a site tells of its data; raise if they cannot be read."""
    return _of_table(path, task, experiment.table) if experiment.table else _of_samples(path, name, task, experiment)


def _of_samples(path: Path, name: str, task: Task, experiment: Experiment) -> Statistics:
    """Return the figures of arrays or images, all parts together."""
    data = site_data(path, name, 0, task, experiment.model_copy(update={"fraction": 1.0}))
    y = torch.cat([part.y for part in data.clients[0].parts()])
    targets = {} if task.by_class else {t: numbers_told(y[:, k].double().numpy()) for k, t in enumerate(task.classes)}
    counts = zip(task.classes, task.counts(y), strict=True) if task.by_class else ()
    classes = {label: in_tens(count) for label, count in counts}
    return Statistics(samples=in_tens(len(y)), classes=classes, targets=targets, shape=data.shape)


def _of_table(path: Path, task: Task, settings: TableSettings) -> Statistics:
    frame = read_table(path)
    absent = [name for name in settings.targets if name not in frame.columns]
    if absent:
        raise UserError(f"{path}: there is no column {absent[0]!r} to predict")
    told = [column_told(name, frame.get(name), kind) for name, kind in (settings.columns or {}).items()]
    about = _targets_told({name: frame[name] for name in settings.targets}, task)
    return Statistics(samples=in_tens(len(frame)), columns=tuple(told), **about)


def _targets_told(columns: Mapping[str, "Series[Any]"], task: Task) -> dict[str, Any]:
    """Return the figures of a table's target columns."""
    if task.name == "classification":
        (column,) = columns.values()
        told = column_told("target", column, list(task.classes))
        return {"classes": told.levels or dict.fromkeys(task.classes, 0), "others": told.others}
    found = {name: numbers_of(columns[name])[0] for name in columns}
    others = in_tens(max(int((np.isnan(x) & columns[name].notna()).sum()) for name, x in found.items()))
    if task.by_class:
        return {"classes": {name: in_tens((x == 1).sum()) for name, x in found.items()}, "others": others}
    return {"classes": {}, "targets": {name: numbers_told(x) for name, x in found.items()}, "others": others}


def column_told(name: str, column: "Series[Any] | None", kind: Kind) -> ColumnFigures:
    """Return the figures of one column."""
    if column is None:
        return ColumnFigures(name=name, problem="absent")
    if other_type(column) is not None:
        return ColumnFigures(name=name, problem="other type")
    missing = in_tens(column.isna().sum())
    if kind == "number":
        values, _ = numbers_of(column)
        others = in_tens((np.isnan(values) & column.notna().to_numpy()).sum())
        return ColumnFigures(name=name, missing=missing, others=others, numbers=numbers_told(values))
    positions, found = names_of(column)
    counts = dict(zip(found, np.bincount(positions[positions >= 0], minlength=len(found)).tolist(), strict=True))
    levels = {level: in_tens(counts.pop(level_name(level), 0)) for level in kind}
    return ColumnFigures(name=name, missing=missing, others=in_tens(sum(counts.values())), levels=levels)


def numbers_told(values: NDArray[np.float64]) -> Numbers:
    """Return mean and deviation of the finite values, unless they tell of fewer than ten rows."""
    finite = values[np.isfinite(values)]
    if not _can_be_told(finite):
        return Numbers(count=in_tens(len(finite)), mean=None, deviation=None)
    mean, deviation = float(finite.mean()), float(finite.std())
    place = DIGITS - 1 - math.floor(math.log10(deviation))
    return Numbers(count=in_tens(len(finite)), mean=round(mean, place), deviation=round(deviation, place))


def _can_be_told(values: NDArray[np.float64]) -> bool:
    """Tell whether ten rows differ from the commonest value, and ten hold each value if there are few."""
    if len(values) < SMALLEST:
        return False
    _, counts = np.unique(values, return_counts=True)
    few = len(counts) <= FEW_VALUES and counts.min() < SMALLEST
    return bool(len(values) - counts.max() >= SMALLEST and not few and values.std() > 0)


# --- In words ---


def count_text(count: int) -> str:
    """Return a count in tens as people read it."""
    return f"{count:,}" if count else f"<{SMALLEST}"


def numbers_text(numbers: Numbers) -> str:
    """Return mean and deviation, or that they are withheld."""
    if numbers.mean is None or numbers.deviation is None:
        return "withheld: too few rows differ"
    return f"mean {numbers.mean:g}, deviation {numbers.deviation:g}"


def told_lines(found: Statistics) -> Iterator[str]:
    """Yield what a site tells, line by line."""
    yield f"samples: {count_text(found.samples)}"
    if found.shape:
        yield f"shape of a sample: {'×'.join(map(str, found.shape))}"
    for name, count in found.classes.items():
        yield f"class {name}: {count_text(count)}"
    for name, numbers in found.targets.items():
        yield f"target {name}: {numbers_text(numbers)}"
    if found.others:
        yield f"targets that are not as agreed: {count_text(found.others)}"
    for column in found.columns:
        yield f"column {column.name}: {column_text(column)}"


def column_text(column: ColumnFigures) -> str:
    """Return what a site tells of a column."""
    if column.problem:
        return "is absent" if column.problem == "absent" else "holds other values, e.g. dates"
    levels = [f"{level}: {count_text(count)}" for level, count in (column.levels or {}).items()]
    told = [numbers_text(column.numbers)] if column.numbers else levels
    rest = [f"missing: {count_text(column.missing)}"]
    rest += [f"not as agreed: {count_text(column.others)}"] if column.others else []
    return ", ".join([*told, *rest])
