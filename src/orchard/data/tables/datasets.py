"""The user's own tables: one whose rows name their site, one that is divided, or a folder with one for each site."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from orchard.data.folders import site_tables
from orchard.data.samples import Dataset, Samples, split_rows
from orchard.data.tables.encoding import Schema, encode, make_schema
from orchard.data.tables.reading import as_table, join_tables, read_table
from orchard.data.tables.settings import TableSettings
from orchard.data.tables.targets import Targets, read_targets, rows_by_site
from orchard.errors import UserError
from orchard.experiment import Experiment
from orchard.tasks.classification import Classification
from orchard.tasks.multilabel import Multilabel
from orchard.tasks.registry import TASKS
from orchard.tasks.regression import Regression
from orchard.tasks.task import Task

if TYPE_CHECKING:
    from pandas import DataFrame


def settings_of(experiment: Experiment) -> TableSettings:
    """Return how the experiment's table is to be used; raise if it does not say."""
    if experiment.table is None:
        raise UserError(
            f"dataset = {experiment.dataset!r}: is a table: say which column to predict, e.g. "
            "--set table.target=outcome; orchard data show lists the columns"
        )
    return experiment.table


def tables_by_site(path: Path, settings: TableSettings) -> dict[str, "DataFrame"]:
    """Return each site's rows; all rows, under the file's name, if they do not name their site."""
    if files := site_tables(path):
        return {site: read_table(file) for site, file in files.items()}
    return divided_by_site(read_table(path), settings, path.name, str(path))


def divided_by_site(frame: "DataFrame", settings: TableSettings, name: str, place: str) -> dict[str, "DataFrame"]:
    """Return the rows of each site that a column names; all of them under one name if there is no such column."""
    if settings.site is None:
        return {name: frame}
    rows = rows_by_site(frame, settings.site, place)
    return {site: frame.iloc[positions] for site, positions in rows.items()}


def whole_table(path: Path, settings: TableSettings | None) -> "DataFrame":
    """Return the rows of all sites."""
    return _joined(tables_by_site(path, settings or TableSettings(target="any")), str(path))


def _joined(frames: Mapping[str, "DataFrame"], place: str) -> "DataFrame":
    return join_tables(frames) if len(frames) > 1 else as_table(next(iter(frames.values())), place)


def table_dataset(path: Path, experiment: Experiment) -> Dataset:
    """Return tables in files as one dataset."""
    return dataset_of_tables(tables_by_site(path, settings_of(experiment)), experiment, str(path))


def dataset_of_tables(frames: Mapping[str, "DataFrame"], experiment: Experiment, place: str) -> Dataset:
    """Return tables as one dataset, not standardised yet; 20 % of each site's rows, by stratum, are for testing."""
    settings, whole = settings_of(experiment), _joined(frames, place)
    task = task_of(read_targets(whole, settings, place), experiment)
    schema = make_schema(whole, settings, place)
    parts = [table_samples(frame, schema, task, settings, f"{place}: {site}") for site, frame in frames.items()]
    owners = np.repeat(list(frames), [len(part.y) for part in parts])
    samples = Samples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
    splits = [split_rows(task.strata(part.y).numpy()) for part in parts]
    starts = np.cumsum([0, *(len(part.y) for part in parts[:-1])])
    train, test = (
        np.concatenate([start + split[k] for start, split in zip(starts, splits, strict=True)]) for k in (0, 1)
    )
    return Dataset(samples.take(train), samples.take(test), task, (owners[train], owners[test]), schema)


def table_samples(frame: "DataFrame", schema: Schema, task: Task, settings: TableSettings, place: str) -> Samples:
    """Return rows as features, NaN where a number is missing, and targets."""
    return Samples(torch.from_numpy(encode(frame, schema, place)), target_values(frame, settings, task, place))


def target_values(frame: "DataFrame", settings: TableSettings, task: Task, place: str) -> torch.Tensor:
    """Return the target columns as the task has them."""
    targets = read_targets(frame, settings, place)
    y = targets.labels(task.classes) if isinstance(task, Classification) else targets.numbers()
    return type(task).targets(y, place)


def task_of(targets: Targets, experiment: Experiment) -> Task:
    """Return the task that target columns are for; raise if the experiment must say."""
    names = tuple(settings_of(experiment).targets)
    obvious = {"classes": "classification", "findings": "multilabel", "numbers": "regression"}[targets.kind]
    if experiment.task is None and targets.ambiguous:
        what = f"{len(targets.classes)} different whole numbers: classes, or amounts?"
        raise UserError(f'{targets.place}: {names[0]!r} has {what} Set task = "classification" or task = "regression"')
    kind = TASKS[experiment.task or obvious]
    if kind is Classification and len(names) == 1 and targets.classes:
        return Classification(targets.classes)
    if kind is Multilabel and targets.kind == "findings":
        return Multilabel(names)
    if kind is Regression:
        return Regression(names)
    raise UserError(f"task = {kind.name!r}: the target {', '.join(names)} is not for that, but for {obvious}")
