"""What one column of a table holds, whatever its type in pandas: numbers, or names of levels."""

import re
from collections.abc import Sequence
from datetime import date, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orchard.data.tables.settings import MISSING, is_number, level_name, level_order

if TYPE_CHECKING:
    from pandas import Series

Numbers = NDArray[np.float64]

TRUTH = {"true": True, "false": False}
DATE = re.compile(
    r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))([T ]\d{1,2}:\d\d.*)?", re.ASCII
)
COMMA_NUMBER = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?", re.ASCII)
NUMERIC = "biuf"
"""NumPy's letters for truth values, whole numbers and real numbers."""


def is_plain(dtype: Any) -> bool:
    """Tell whether a column of this type holds NumPy's numbers or truth values."""
    return isinstance(dtype, np.dtype) and dtype.kind in NUMERIC


def plain_column(column: "Series[Any]", decimal_comma: bool = False) -> "Series[Any] | NDArray[Any]":
    """Return numbers, truth values or text, with NaN or None where a value is missing; leave other types alone."""
    from pandas import CategoricalDtype

    if is_plain(column.dtype):
        return column
    if column.dtype.kind in "iuf":  # pandas' or Arrow's own numbers
        return column.to_numpy(np.float64, na_value=np.nan)
    if isinstance(column.dtype, CategoricalDtype) and column.dtype.categories.dtype.kind in NUMERIC:
        return column  # somebody said that these numbers are categories
    try:
        codes, values = column.astype(object).factorize()
    except TypeError:  # lists and the like
        return column
    plain = _plain_values(values.tolist(), decimal_comma)
    return column if plain is None else _taken(plain, codes)


def _plain_values(values: list[Any], decimal_comma: bool) -> list[Any] | None:
    """Return each different value as a float, a truth value or text, None if missing; or None for other types."""
    if not all(
        isinstance(value, str | bool | np.bool_ | int | float | Decimal | np.integer | np.floating) for value in values
    ):
        return None
    texts = [value.strip() if isinstance(value, str) else value for value in values]
    if decimal_comma and not any(isinstance(text, str) and "." in text for text in texts):
        texts = [_with_point(text) if isinstance(text, str) else text for text in texts]
    plain = [None if isinstance(text, str) and text in MISSING else text for text in texts]
    present = [value for value in plain if value is not None]
    truths = [TRUTH.get(str(value).lower()) for value in present]
    if present and None not in truths:
        return [None if value is None else TRUTH[str(value).lower()] for value in plain]
    if all(not isinstance(value, bool | np.bool_) and _is_numeric(value) for value in present):
        return [np.nan if value is None else float(value) for value in plain]
    return [None if value is None else value if isinstance(value, str) else level_name(value) for value in plain]


def _with_point(text: str) -> str:
    return text.replace(",", ".") if COMMA_NUMBER.fullmatch(text) else text


def _is_numeric(value: Any) -> bool:
    return is_number(value) if isinstance(value, str) else True


def _taken(values: list[Any], codes: NDArray[np.int64]) -> NDArray[Any]:
    """Return `values[codes]`, missing where the code is −1."""
    if all(isinstance(value, float) for value in values):
        return np.array([*values, np.nan])[codes]
    if all(isinstance(value, bool) for value in values) and (codes >= 0).all():
        return np.array(values)[codes]
    known = np.empty(len(values) + 1, object)  # its last one, for the code −1, stays None
    known[:-1] = values
    return known[codes]


def numbers_of(column: "Series[Any]") -> tuple[Numbers, int | None]:
    """Return a plain column as numbers, NaN where missing, and the first row that is no number, if there is one."""
    if is_plain(column.dtype):
        return column.to_numpy(np.float64), None
    try:
        codes, values = column.astype(object).factorize()
    except TypeError:
        return np.full(len(column), np.nan), 0
    numbers = np.array([*(_number(value) for value in values.tolist()), 0.0])[codes]
    wrong = np.isnan(numbers)
    numbers[codes < 0] = np.nan
    return numbers, int(wrong.argmax()) if wrong.any() else None


def _number(value: Any) -> float:
    """Return a value as a number, NaN if it is none."""
    if isinstance(value, str):
        return float(value) if is_number(value) else np.nan
    return float(value) if isinstance(value, bool | int | float | np.integer | np.floating) else np.nan


def names_of(column: "Series[Any]") -> tuple[NDArray[np.int64], list[str]]:
    """Return for each row of a plain column the position of its level, −1 where missing; and the levels, sorted."""
    codes, values = column.factorize()
    names = [level_name(value) for value in np.asarray(values)]
    levels = sorted(set(names), key=level_order)
    where = {level: k for k, level in enumerate(levels)}
    positions = np.array([*(where[name] for name in names), -1], np.int64)
    return positions[codes], levels


def is_numeric(column: "Series[Any]") -> bool:
    """Tell whether a plain column holds numbers or truth values."""
    if is_plain(column.dtype):
        return True
    present = column[column.notna()]
    return column.dtype == object and len(present) > 0 and all(isinstance(value, bool) for value in present)


def other_type(column: "Series[Any]") -> str | None:
    """Return what a column holds that is neither numbers nor text: dates, durations, lists and so on."""
    if column.dtype.kind in "mM":
        return "dates" if column.dtype.kind == "M" else "durations"
    if column.dtype.kind == "c":
        return "complex numbers"
    if column.dtype != object:
        return None
    strange = {type(value) for value in column[column.notna()]} - {str, bool, int, float}
    if all(issubclass(kind, date | time) for kind in strange):
        return "dates" if strange else None
    return f"values of type {min(kind.__name__ for kind in strange)}"


def are_dates(levels: Sequence[str]) -> bool:
    """Tell whether all texts are dates."""
    return bool(levels) and all(DATE.fullmatch(level) for level in levels)
