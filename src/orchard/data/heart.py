"""Heart disease at four hospitals (UCI): comma-separated files, one per hospital, `?` where a value is missing.

Two readings:

    complete   as in FLamby (https://arxiv.org/abs/2210.04620): without slope, ca and thal; rows with a missing value
               are dropped; 740 patients
    all        every patient and every column; a cholesterol of 0 is missing; 920 patients

Categories become one column per level but the first. A column in which some hospital lacks values gets a second one,
1 where the value is missing. What is missing stays NaN here: each client fills it in by its own training part.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from orchard.data.samples import SPLIT_SEED, Dataset, Samples
from orchard.data.tables.encoding import FeatureColumn, Schema
from orchard.errors import UserError
from orchard.randomness import generator
from orchard.tasks.classification import Classification

Reading = Literal["complete", "all"]
Table = NDArray[np.float64]

HOSPITALS = ("Cleveland", "Hungary", "Switzerland", "Long Beach")
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal", "num"),
)
LEVELS = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2), "slope": (1, 2, 3), "thal": (3, 6, 7)}
"""The columns that are categories, and their levels."""
RARELY_TAKEN = ("slope", "ca", "thal")
"""What the reading `complete` leaves out."""
TRAINING_SHARE = 0.66


def read_heart_disease(paths: Sequence[Path], reading: Reading, classes: tuple[str, ...]) -> Dataset:
    """Read the hospitals' files; 34 % of each hospital's patients, by class, are for testing."""
    tables = [_read(path) for path in paths]
    names = [name for name in COLUMNS[:-1] if reading == "all" or name not in RARELY_TAKEN]
    if reading == "all":
        for table in tables:
            table[table[:, COLUMNS.index("chol")] == 0, COLUMNS.index("chol")] = np.nan
    else:
        used = [COLUMNS.index(name) for name in (*names, "num")]
        tables = [table[~np.isnan(table[:, used]).any(axis=1)] for table in tables]
    rows = np.concatenate(tables)
    owners = np.repeat(HOSPITALS, [len(table) for table in tables])
    labels = (rows[:, -1] > 0).astype(np.int64)
    features = _features(rows, names)
    # All features are standardised, those of levels and missing values too.
    columns = tuple(FeatureColumn(name=name, marks_missing=False) for name in features)
    schema = Schema(columns=columns, targets=("num",))
    x = np.stack(list(features.values()), axis=1)
    everything = Samples(torch.from_numpy(x).float(), torch.from_numpy(labels))
    first, second = _split(owners, labels)
    whose = owners[first], owners[second]
    return Dataset(everything.take(first), everything.take(second), Classification(classes), whose, schema)


def _read(path: Path) -> Table:
    try:
        lines = path.read_text("ascii").split()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    table = np.empty((len(lines), len(COLUMNS)))
    for k, line in enumerate(lines):
        values = line.split(",")
        if len(values) != len(COLUMNS):
            raise UserError(f"{path}: line {k + 1} has {len(values)} values, not {len(COLUMNS)}")
        try:
            table[k] = [np.nan if value == "?" else float(value) for value in values]
        except ValueError:
            raise UserError(f"{path}: line {k + 1}: holds something that is neither a number nor '?'") from None
    return table


def _features(rows: Table, names: Sequence[str]) -> dict[str, Table]:
    """Return the features by name, with those that tell where values are missing at the end."""
    features, missing = dict[str, Table](), dict[str, Table]()
    for name in names:
        values = rows[:, COLUMNS.index(name)]
        lacks = np.isnan(values)
        for level in LEVELS.get(name, ())[1:]:
            features[f"{name} = {level}"] = np.where(lacks, np.nan, values == level)
        if name not in LEVELS:
            features[name] = values
        if lacks.any():
            missing[f"{name} is missing"] = lacks.astype(np.float64)
    return {**features, **missing}


def _split(owners: NDArray[Any], labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split each hospital's patients at random within every class; the training part is rounded up."""
    train, test = [], []
    for h, hospital in enumerate(HOSPITALS):
        for k in np.unique(labels):
            rows = np.flatnonzero((owners == hospital) & (labels == k))
            order = generator(SPLIT_SEED, "test", h, int(k)).permutation(rows)
            end = int(np.ceil(TRAINING_SHARE * len(order)))
            train.append(order[:end])
            test.append(order[end:])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))
