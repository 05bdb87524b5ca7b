"""Turn the rows of a table into numbers.

A number is one feature, NaN where it is missing. A category is one feature for each level, 1 for the row's own and 0
for the others; all are 0 where it is missing. A column that may lack values has one more feature, 1 where it does.
"""

from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, model_validator

from orchard.data.tables.columns import names_of, numbers_of
from orchard.data.tables.kinds import find_columns, misfit, missing_counts, no_column
from orchard.data.tables.settings import Kind, TableSettings
from orchard.errors import UserError
from orchard.settings import Settings, validated

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_FEATURES = 10_000

Rows = NDArray[np.float32]
HeartReading = Literal["complete", "all"]
"""How UCI's heart disease data are read: see `heart.py`."""


class FeatureColumn(Settings):
    """A column of a table from which features are made."""

    model_config = ConfigDict(strict=False)  # read from JSON, which has no tuples

    name: str
    levels: tuple[str, ...] | None = None
    """The levels of a category; None for a number."""
    marks_missing: bool
    """Whether one more feature says where a value is missing."""

    @property
    def kind(self) -> Kind:
        """The kind of the column."""
        return "number" if self.levels is None else list(self.levels)

    @property
    def features(self) -> list[str]:
        """The names of the features."""
        values = [self.name] if self.levels is None else [f"{self.name} = {level}" for level in self.levels]
        return [*values, f"{self.name} is missing"] if self.marks_missing else values


class Schema(Settings):
    """How rows become numbers: the same for all sites, and for all rows to be predicted."""

    model_config = ConfigDict(strict=False)

    columns: tuple[FeatureColumn, ...]
    targets: tuple[str, ...]
    heart: HeartReading | None = None
    """How the columns are made from those of UCI's heart disease data, if they are."""

    def features(self) -> list[str]:
        """Return the names of the features, in order."""
        return [name for column in self.columns for name in column.features]

    def are_numbers(self) -> NDArray[np.bool_]:
        """Tell for each feature whether it is a number, which is standardised; the others are 0 or 1."""
        return np.array(
            [k == 0 and column.levels is None for column in self.columns for k, _ in enumerate(column.features)], bool
        )

    @model_validator(mode="after")
    def _check_features(self) -> Self:
        names = self.features()
        if len(names) > MOST_FEATURES:
            raise ValueError(f"columns: make {len(names)} features, at most {MOST_FEATURES:,} are allowed; drop some")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"columns: two features are called {twice!r}; rename a column")
        return self


def make_schema(frame: "DataFrame", settings: TableSettings, place: str = "table") -> Schema:
    """Return how the rows of a table become numbers; with `columns` given, every column marks missing values."""
    given, missing = settings.columns is not None, missing_counts(frame)
    columns = [
        FeatureColumn(
            name=name,
            levels=None if kind == "number" else tuple(kind),
            marks_missing=given or missing[name] > 0,
        )
        for name, kind in find_columns(frame, settings, place).items()
    ]
    return validated(Schema, {"columns": columns, "targets": settings.targets}, f"{place}: ")


def encode(frame: "DataFrame", schema: Schema, place: str, predicting: bool = False) -> Rows:
    """Return the rows as numbers, rows × features; an unknown level raises, or is all 0 when `predicting`."""
    features = np.zeros((len(schema.features()), len(frame)), np.float32)  # turned around at the end: this is faster
    start = 0
    for column in schema.columns:
        if column.name not in frame.columns:
            raise UserError(f"{place}: {no_column(column.name, frame)}")
        values, end = frame[column.name], start + len(column.features)
        if reason := misfit(values, column.kind, predicting):
            raise UserError(f"{place}: {reason}")
        if column.levels is None:
            features[start] = numbers_of(values)[0]
        else:
            positions, found = names_of(values)
            for k, level in enumerate(column.levels):
                features[start + k] = positions == found.index(level) if level in found else 0
        if column.marks_missing:
            features[end - 1] = values.isna()
        start = end
    return np.ascontiguousarray(features.T)
