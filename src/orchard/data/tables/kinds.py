"""Find what the columns of a table are: numbers, categories with their levels, or nothing that can be used.

Rows are counted from 1, without the line of names.
"""

import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orchard.data.tables.columns import are_dates, is_numeric, names_of, numbers_of, other_type
from orchard.data.tables.settings import MOST_LEVELS, Kind, TableSettings, is_number, level_name
from orchard.errors import DataWarning, UserError
from orchard.text import nearest, readable, shortened

if TYPE_CHECKING:
    from pandas import DataFrame, Series

FEWEST_IDENTIFIERS = 10
"""In a column with fewer different texts they are levels, even if every row has another."""
IDENTIFIERS_SHARE = 0.9
"""Texts of which at least this share of rows has different ones are identifiers."""
IDENTIFIER = re.compile(r"(?i:(^|[^a-z])(id|ids|uid|uuid|mrn|nr|no|key|index)([^a-z]|$))|[a-z]I[dD]$|^Unnamed")
"""How columns of identifiers are called: id, patient_id, PatientID, or nothing at all."""
LARGEST = float(np.finfo(np.float32).max)
"""Features and targets are single-precision numbers."""
REASONS_SHOWN = 5
LONGEST = 60
"""How much of a value or of a list of levels a message shows."""


class Unusable(Exception):
    """A column can be no feature; the message says why."""


@dataclass(frozen=True)
class ColumnDescription:
    """One row of the table that tells people what each column is."""

    name: str
    kind: str
    """number, category, target, site, dropped, not listed (in `columns`), or cannot be used."""
    missing: int
    values: str
    """The range of numbers, or the levels."""
    problem: str = ""
    """Why the column cannot be used, or what to look at."""


def find_columns(frame: "DataFrame", settings: TableSettings, place: str = "table") -> dict[str, Kind]:
    """Return the kind of each feature column; raise if one cannot be used, and warn if one may be an identifier."""
    check_names(frame, settings, place)
    if settings.columns is not None:
        return {name: _given(kind) for name, kind in settings.columns.items()}
    used = {*settings.targets, *settings.drop, settings.site}
    kinds: dict[str, Kind] = {}
    unusable: dict[str, str] = {}
    missing = missing_counts(frame)
    for name, column in frame.items():
        if name not in used:
            try:
                kinds[str(name)] = _kind(column, missing[str(name)])
            except Unusable as reason:
                unusable[str(name)] = str(reason)
    if unusable:
        reasons = "; ".join(f"{name!r}: {reason}" for name, reason in list(unusable.items())[:REASONS_SHOWN])
        more = f"; and {len(unusable) - REASONS_SHOWN} more" if len(unusable) > REASONS_SHOWN else ""
        names = shortened(repr(list(unusable)), 1000)
        raise UserError(f"{place}: columns cannot be used: {reasons}{more}. To leave them out: drop = {names}")
    if not kinds:
        raise UserError(
            f"{place}: has no column to learn from besides {shortened(repr(sorted(filter(None, used))), 200)}"
        )
    for name in filter(IDENTIFIER.search, kinds):
        if _are_identifiers(frame[name]):
            warnings.warn(
                f"{place}: {name!r} looks like an identifier; if it is one, drop it", DataWarning, stacklevel=2
            )
    return kinds


def describe_columns(frame: "DataFrame", settings: TableSettings, place: str = "table") -> list[ColumnDescription]:
    """Return what each column of a table is, in the order of the table."""
    check_names(frame, settings, place)
    uses = {**dict.fromkeys(settings.drop, "dropped"), **dict.fromkeys(settings.targets, "target")}
    if settings.site is not None:
        uses[settings.site] = "site"
    missing = missing_counts(frame)
    return [_description(column, missing[str(name)], uses.get(str(name)), settings) for name, column in frame.items()]


def _description(column: "Series[Any]", missing: int, use: str | None, settings: TableSettings) -> ColumnDescription:
    name = str(column.name)
    if use is None and settings.columns is not None and name not in settings.columns:
        use = "not listed"
    if use is not None:
        return ColumnDescription(name, use, missing, _values(column))
    try:
        kind = _kind(column, missing) if settings.columns is None else _given(settings.columns[name])
    except Unusable as reason:
        return ColumnDescription(name, "cannot be used", missing, _values(column), str(reason))
    if kind != "number":
        return ColumnDescription(name, "category", missing, shortened(", ".join(kind), LONGEST), misfit(column, kind))
    problem = misfit(column, kind)
    if IDENTIFIER.search(name) and _are_identifiers(column):
        problem = "looks like an identifier"
    return ColumnDescription(name, "number", missing, _values(column), problem)


def misfit(column: "Series[Any]", kind: Kind, predicting: bool = False) -> str:
    """Return what does not fit the kind of a column, and where; nothing if all fits.

    Rows that are to be predicted may have levels that nobody knows.
    """
    if (strange := other_type(column)) is not None:
        return f"{column.name!r} holds {strange}"
    if kind == "number":
        numbers, wrong = numbers_of(column)
        if wrong is not None:
            return f"row {row_number(column, wrong)}: {column.name!r} is {shown(column.iloc[wrong])}, not a number"
        too_large = np.abs(numbers) > LARGEST
        row = row_number(column, int(too_large.argmax())) if too_large.any() else None
        return f"row {row}: {column.name!r} is infinite or too large" if row else ""
    positions, found = names_of(column)
    for k, name in enumerate(found):
        if not predicting and name not in kind:
            row = row_number(column, int((positions == k).argmax()))
            return f"row {row}: {column.name!r} is {shown(name)}, which is none of its levels: {', '.join(kind)}"
    return ""


def check_names(frame: "DataFrame", settings: TableSettings, place: str) -> None:
    """Raise if the settings name a column that the table does not have."""
    site = [] if settings.site is None else [settings.site]
    uses = {"target": settings.targets, "site": site, "drop": settings.drop, "columns": list(settings.columns or ())}
    for use, names in uses.items():
        for name in names:
            if name not in frame.columns:
                raise UserError(f"{place}: {use}: {no_column(name, frame)}")


def no_column(name: str, frame: "DataFrame") -> str:
    """Say that a table lacks a column, and which one may be meant."""
    return f"there is no column {name!r}; {shortened(nearest(name, list(frame.columns)), 200)}"


def row_number(frame: "DataFrame | Series[Any]", position: int) -> int:
    """Return the number of a row in the whole table, of which the frame may be a part."""
    label = frame.index[position]
    return int(label) + 1 if isinstance(label, int | np.integer) else position + 1


def shown(value: object) -> str:
    """Return a value as a message shows it."""
    return repr(shortened(readable(str(value)), LONGEST))


def _given(kind: Kind) -> Kind:
    """Return a kind that people wrote, with the names that levels have everywhere: 1 for 1.0."""
    return kind if kind == "number" else [level_name(level) for level in kind]


def missing_counts(frame: "DataFrame") -> dict[str, int]:
    """Return how many values each column lacks."""
    return dict(zip(frame.columns, frame.isna().sum().tolist(), strict=True))  # at once: 10,000 columns take a while


def _kind(column: "Series[Any]", missing: int) -> Kind:
    """Return the kind of a column; raise Unusable if it has none."""
    if missing == len(column):
        raise Unusable("all values are missing")
    if (strange := other_type(column)) is not None:
        raise Unusable(f"it holds {strange}")
    if is_numeric(column):
        numbers, _ = numbers_of(column)
        if not missing and numbers.min() == numbers.max():
            raise Unusable(f"every row holds {level_name(numbers[0])}")
        return "number"
    return _levels(column, len(column) - missing)


def _levels(column: "Series[Any]", present: int) -> list[str]:
    """Return the levels of a column of text; raise Unusable if these are no levels."""
    positions, levels = names_of(column)
    if are_dates(levels):
        raise Unusable("it holds dates")
    numeric = np.array([*map(is_number, levels), False])[positions]
    if present > numeric.sum() >= present / 2:
        first = int((~numeric & (positions >= 0)).argmax())
        wrong = f"row {row_number(column, first)} holds {shown(column.iloc[first])}"
        raise Unusable(f"most values are numbers, but {wrong}; correct it, or list the levels in columns")
    if len(levels) > FEWEST_IDENTIFIERS and len(levels) >= IDENTIFIERS_SHARE * present:
        raise Unusable("its text is different in nearly every row, as that of identifiers")
    if len(levels) > MOST_LEVELS:
        raise Unusable(f"it has {len(levels)} levels, at most {MOST_LEVELS} are allowed")
    if len(levels) == 1 and present == len(column):
        raise Unusable(f"every row holds {shown(levels[0])}")
    return levels


def _are_identifiers(column: "Series[Any]") -> bool:
    """Tell whether a column holds whole numbers, all different."""
    if not is_numeric(column):
        return False
    numbers, _ = numbers_of(column)
    present = numbers[np.isfinite(numbers)]
    return bool((present == np.round(present)).all()) and len(np.unique(present)) == len(column)


def _values(column: "Series[Any]") -> str:
    """Return the range of a column's numbers, or its first levels."""
    if other_type(column) is not None:
        return ""
    if is_numeric(column):
        numbers, _ = numbers_of(column)
        present = numbers[~np.isnan(numbers)]
        return f"{level_name(present.min())} to {level_name(present.max())}" if len(present) else ""
    return shortened(", ".join(names_of(column)[1]), LONGEST)
