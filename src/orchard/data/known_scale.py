"""Means and deviations that are known beforehand: numbers are standardised by these, and not by what the data tell."""

from collections.abc import Collection
from dataclasses import replace

from orchard.data.tables.encoding import Schema
from orchard.data.tables.settings import Scale
from orchard.errors import UserError
from orchard.tasks.regression import Regression
from orchard.tasks.task import Task


def misnamed(scale: Scale, names: Collection[str]) -> str:
    """Say which number lacks its mean and deviation, or which name is no number's; empty if all fit."""
    if lacking := [name for name in names if name not in scale]:
        return f"scale: lacks {lacking[0]!r}; give its mean and deviation, as of all other numbers"
    if unknown := [name for name in scale if name not in names]:
        numbers = f"standardised are: {', '.join(names)}" if names else "nothing is standardised here"
        return f"scale: {unknown[0]!r}: {numbers}"
    return ""


def with_known_scale(task: Task, scale: Scale | None, schema: Schema | None = None) -> Task:
    """Return the task with what is known of its scale; raise if names do not fit.

    `schema` is that of the table, if the data are one.
    """
    if scale is None:
        return task
    targets = task.classes if isinstance(task, Regression) else ()
    columns = [column.name for column in schema.columns if column.levels is None] if schema else []
    if reason := misnamed(scale, [*columns, *targets]):
        raise UserError(reason)
    return at_scale(task, scale)


def at_scale(task: Task, scale: Scale) -> Task:
    """Return the task with means and deviations of what it predicts, if these are numbers."""
    if not isinstance(task, Regression):
        return task
    means, deviations = zip(*(scale[name] for name in task.classes), strict=True)
    return replace(task, mean=means, deviation=deviations, known=True)
