"""Heart disease at four hospitals (UCI): comma-separated files, one per hospital, `?` where a value is missing.

Two readings:

    complete   as in FLamby (https://arxiv.org/abs/2210.04620): without slope, ca and thal; rows with a missing value
               are dropped; 740 patients
    all        every patient and every column; a cholesterol of 0 is missing; 920 patients

Categories become one feature per level but the first. A column in which some hospital lacks values gets one more, 1
where the value is missing. What is missing stays NaN here: each client fills it in by its own training part.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from orchard.data.catalogue import CATALOGUE
from orchard.data.samples import SPLIT_SEED, Dataset, Samples
from orchard.data.tables.columns import Numbers, numbers_of
from orchard.data.tables.encoding import FeatureColumn, HeartReading, Schema
from orchard.data.tables.kinds import misfit, no_column
from orchard.errors import UserError
from orchard.randomness import generator
from orchard.tasks.classification import Classification

if TYPE_CHECKING:
    from pandas import DataFrame

Patients = Mapping[str, Numbers]
"""Values by column, NaN where they are missing."""

HOSPITALS = ("Cleveland", "Hungary", "Switzerland", "Long Beach")
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal", "num"),
)
LEVELS = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2), "slope": (1, 2, 3), "thal": (3, 6, 7)}
"""The columns that are categories, and their levels."""
RARELY_TAKEN = ("slope", "ca", "thal")
"""What the reading `complete` leaves out."""
IS_MISSING = " is missing"
CLASSES = CATALOGUE["heart-disease"].classes
TRAINING_SHARE = 0.66


def read_heart_disease(paths: Sequence[Path], reading: HeartReading) -> Dataset:
    """Read the hospitals' files; 34 % of each hospital's patients, by class, are for testing."""
    tables = [_read(path) for path in paths]
    if reading == "complete":
        used = [COLUMNS.index(name) for name in (*columns_used(reading), "num")]
        tables = [table[~np.isnan(table[:, used]).any(axis=1)] for table in tables]
    owners = np.repeat(HOSPITALS, [len(table) for table in tables])
    patients = dict(zip(COLUMNS, np.concatenate(tables).T, strict=True))
    features, labels = _features(patients, reading), (patients["num"] > 0).astype(np.int64)
    used_features = [name for name, values in features.items() if not name.endswith(IS_MISSING) or values.any()]
    # All features are standardised, those of levels and missing values too.
    columns = tuple(FeatureColumn(name=name, marks_missing=False) for name in used_features)
    schema = Schema(columns=columns, targets=("num",), heart=reading)
    x = np.stack([features[name] for name in used_features], axis=1)
    everything = Samples(torch.from_numpy(x).float(), torch.from_numpy(labels))
    first, second = _split(owners, labels)
    whose = owners[first], owners[second]
    return Dataset(everything.take(first), everything.take(second), Classification(CLASSES), whose, schema)


def columns_used(reading: HeartReading) -> list[str]:
    """Return UCI's names of the columns from which features are made."""
    return [name for name in COLUMNS[:-1] if reading == "all" or name not in RARELY_TAKEN]


def column_of(feature: str) -> str:
    """Return UCI's name of the column from which a feature is made."""
    return feature.split()[0]


def with_features(frame: "DataFrame", reading: HeartReading, place: str) -> "DataFrame":
    """Return a table with UCI's columns as one with a column for each feature, and with the class if `num` is there."""
    from pandas import DataFrame

    names = [*columns_used(reading), *(["num"] if "num" in frame else [])]
    for name in names:
        if name not in frame:
            raise UserError(f"{place}: {no_column(name, frame)}")
        if reason := misfit(frame[name], "number"):
            raise UserError(f"{place}: {reason}")
    patients = {name: numbers_of(frame[name])[0] for name in names}
    found = DataFrame(_features(patients, reading))
    if "num" in patients:
        found["num"] = [None if np.isnan(value) else CLASSES[int(value > 0)] for value in patients["num"]]
    return found


def _read(path: Path) -> Numbers:
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


def _features(patients: Patients, reading: HeartReading) -> dict[str, Numbers]:
    """Return the features by name, with those that tell where values are missing at the end."""
    features, missing = dict[str, Numbers](), dict[str, Numbers]()
    for name in columns_used(reading):
        values = patients[name]
        if name == "chol" and reading == "all":
            values = np.where(values == 0, np.nan, values)
        lacks = np.isnan(values)
        for level in LEVELS.get(name, ())[1:]:
            features[f"{name} = {level}"] = np.where(lacks, np.nan, values == level)
        if name not in LEVELS:
            features[name] = values
        missing[f"{name}{IS_MISSING}"] = lacks.astype(np.float64)
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
