"""Find what the columns of a table are: numbers, categories with their levels, or nothing that can be used.

Rows are counted from 1, without the line of names.
"""

import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orchard.data.columns import are_dates, is_numeric, names_of, numbers_of, other_type
from orchard.data.table_settings import MOST_LEVELS, Kind, TableSettings, is_number, level_name
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
        return {name: kind if kind == "number" else [*map(level_name, kind)] for name, kind in settings.columns.items()}
    used = {*settings.targets, *settings.drop, settings.site}
    kinds: dict[str, Kind] = {}
    unusable: dict[str, str] = {}
    for name in frame.columns:
        if name not in used:
            try:
                kinds[name] = _kind(frame[name])
            except Unusable as reason:
                unusable[name] = str(reason)
    if unusable:
        reasons = "; ".join(f"{name!r}: {reason}" for name, reason in unusable.items())
        raise UserError(f"{place}: some columns cannot be used: {reasons}. Leave them out: drop = {list(unusable)!r}")
    if not kinds:
        raise UserError(f"{place}: has no column to learn from besides {', '.join(sorted(filter(None, used)))}")
    for name in kinds:
        if _looks_like_identifiers(frame[name]):
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
    return [_description(frame[name], uses.get(name), settings) for name in frame.columns]


def _description(column: "Series[Any]", use: str | None, settings: TableSettings) -> ColumnDescription:
    name, missing = str(column.name), int(column.isna().sum())
    if use is None and settings.columns is not None and name not in settings.columns:
        use = "not listed"
    if use is not None:
        return ColumnDescription(name, use, missing, _values(column))
    try:
        kind = _kind(column) if settings.columns is None else settings.columns[name]
    except Unusable as reason:
        return ColumnDescription(name, "cannot be used", missing, _values(column), str(reason))
    if kind != "number":
        return ColumnDescription(name, "category", missing, shortened(", ".join(kind), LONGEST))
    problem = "looks like an identifier" if _looks_like_identifiers(column) else ""
    return ColumnDescription(name, "number", missing, _values(column), problem)


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


def _kind(column: "Series[Any]") -> Kind:
    """Return the kind of a column; raise Unusable if it has none."""
    missing = column.isna().to_numpy()
    if missing.all():
        raise Unusable("all values are missing")
    if (strange := other_type(column)) is not None:
        raise Unusable(f"it holds {strange}")
    if is_numeric(column):
        numbers, _ = numbers_of(column)
        if not missing.any() and numbers.min() == numbers.max():
            raise Unusable(f"every row holds {level_name(numbers[0])}")
        return "number"
    return _levels(column, int((~missing).sum()))


def _levels(column: "Series[Any]", present: int) -> list[str]:
    """Return the levels of a column of text; raise Unusable if these are no levels."""
    positions, levels = names_of(column)
    if are_dates(levels):
        raise Unusable("it holds dates")
    numeric = np.array([*map(is_number, levels), False])[positions]
    if 2 * numeric.sum() >= present and column.dtype.kind == "O":
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


def _looks_like_identifiers(column: "Series[Any]") -> bool:
    """Tell whether a column of whole numbers, all different, is named like one of identifiers."""
    if not IDENTIFIER.search(str(column.name)) or not is_numeric(column):
        return False
    numbers, _ = numbers_of(column)
    present = numbers[np.isfinite(numbers)]
    return bool((present == np.round(present)).all()) and len(np.unique(present)) == len(column)


def _values(column: "Series[Any]") -> str:
    """Return the range of a column's numbers, or its first levels."""
    if column.isna().all() or other_type(column) is not None:
        return ""
    if is_numeric(column):
        numbers, _ = numbers_of(column)
        return f"{level_name(np.nanmin(numbers))} to {level_name(np.nanmax(numbers))}"
    return shortened(", ".join(names_of(column)[1]), LONGEST)
