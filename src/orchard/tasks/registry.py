"""The tasks by name, and which of them targets are for."""

from collections.abc import Mapping, Sequence

import numpy as np

from orchard.errors import UserError
from orchard.tasks.classification import Classification, is_whole
from orchard.tasks.multilabel import Multilabel
from orchard.tasks.regression import Regression
from orchard.tasks.segmentation import Segmentation
from orchard.tasks.task import Array, Task

TASKS: Mapping[str, type[Task]] = {task.name: task for task in (Classification, Multilabel, Regression, Segmentation)}


def task_named(name: str, classes: Sequence[str], scale: Sequence[Sequence[float]] | None = None) -> Task:
    """Return a task by name; regression has a scale: the means and the deviations of its targets."""
    if scale is not None:
        mean, deviation = (tuple(values) for values in scale)
        return Regression(tuple(classes), mean, deviation)
    return TASKS[name](tuple(classes))


def suitable_task(y: Array, place: str) -> type[Task]:
    """Return the task that targets are obviously for; raise a UserError that asks for it if there are several."""
    if y.ndim == 1 or (y.ndim == 2 and y.shape[1] == 1):
        if y.dtype.kind in "biu":
            return Classification
        if is_whole(y.reshape(-1)):
            raise _ask(place, "whole numbers stored as floats", "classification", "regression")
        return Regression if y.dtype.kind == "f" else Classification
    if y.ndim == 2 and np.isin(y, (0, 1)).all():
        if (y.sum(axis=1) == 1).all():
            raise _ask(place, "a single 1 in each row", "classification", "multilabel")
        return Multilabel
    if y.ndim == 2:
        return Regression if y.dtype.kind == "f" else Classification
    return Segmentation if y.ndim in (3, 4) else Classification


def _ask(place: str, what: str, *names: str) -> UserError:
    options = " or ".join(f'task = "{name}"' for name in names)
    return UserError(f"{place}: holds {what}, which does not tell what to predict; set {options}")
