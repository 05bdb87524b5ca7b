"""Turn the rows of a table into numbers.

A number is one feature, NaN where it is missing. A category is one feature for each level, 1 for the row's own and 0
for the others; all are 0 where it is missing. A column that may lack values has one more feature, 1 where it does.
"""

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, model_validator

from orchard.data.columns import names_of, numbers_of, other_type
from orchard.data.kinds import find_columns, no_column, row_number, shown
from orchard.data.table_settings import TableSettings
from orchard.errors import UserError
from orchard.settings import Settings, validated

if TYPE_CHECKING:
    from pandas import DataFrame, Series

MOST_FEATURES = 10_000

Rows = NDArray[np.float32]


class FeatureColumn(Settings):
    """A column of a table from which features are made."""

    model_config = ConfigDict(strict=False)  # read from JSON, which has no tuples

    name: str
    levels: tuple[str, ...] | None = None
    """The levels of a category; None for a number."""
    marks_missing: bool
    """Whether one more feature says where a value is missing."""

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
    given = settings.columns is not None
    columns = [
        FeatureColumn(
            name=name,
            levels=None if kind == "number" else tuple(kind),
            marks_missing=given or bool(frame[name].isna().any()),
        )
        for name, kind in find_columns(frame, settings, place).items()
    ]
    return validated(Schema, {"columns": columns, "targets": settings.targets}, f"{place}: ")


def encode(frame: "DataFrame", schema: Schema, place: str, predicting: bool = False) -> Rows:
    """Return the rows as numbers, rows × features; an unknown level raises, or is all 0 when `predicting`."""
    parts = np.zeros(
        (len(schema.features()), len(frame)), np.float32
    )  # one feature after the other: columns are copied
    start = 0
    for column in schema.columns:
        if column.name not in frame.columns:
            raise UserError(f"{place}: {no_column(column.name, frame)}")
        values = frame[column.name]
        end = start + len(column.features)
        if column.levels is None:
            parts[start] = _numbers(values, place)
        else:
            _mark_levels(values, column.levels, parts[start:end], place, predicting)
        if column.marks_missing:
            parts[end - 1] = values.isna()
        start = end
    return np.ascontiguousarray(parts.T)


def _numbers(values: "Series[Any]", place: str) -> Rows:
    numbers, wrong = numbers_of(values)
    if wrong is not None:
        row = row_number(values, wrong)
        raise UserError(f"{place}: row {row}: {values.name!r} is {shown(values.iloc[wrong])}, not a number")
    with np.errstate(over="ignore"):  # too large values become infinite, and then raise below
        rows = numbers.astype(np.float32)
    infinite = np.isinf(rows)
    if infinite.any():
        first = int(infinite.argmax())
        row = row_number(values, first)
        raise UserError(f"{place}: row {row}: {values.name!r} is {numbers[first]}, which is infinite or too large")
    return rows


def _mark_levels(values: "Series[Any]", levels: tuple[str, ...], marks: Rows, place: str, predicting: bool) -> None:
    """Write 1 where a row has a level, into levels × rows of zeros."""
    if (strange := other_type(values)) is not None:
        raise UserError(f"{place}: {values.name!r} holds {strange}, but is a category")
    positions, found = names_of(values)
    for k, name in enumerate(found):
        if name in levels:
            marks[levels.index(name), positions == k] = 1
        elif not predicting:
            row = row_number(values, int((positions == k).argmax()))
            raise UserError(
                f"{place}: row {row}: {values.name!r} is {shown(name)}, "
                f"which is none of its levels: {', '.join(levels)}"
            )
