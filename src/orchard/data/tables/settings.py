"""How a table is to be used: which columns are targets, sites and features. Needs neither pandas nor PyTorch."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from orchard.settings import Settings

Kind = Literal["number"] | list[str]
"""The kind of a feature column: a number, or a category with its levels."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Scale = dict[str, Annotated[tuple[Finite, Positive], Field(strict=False)]]
"""Mean and deviation of numbers by name: of columns of a table, and of what regression predicts."""

MOST_LEVELS = 100
"""A category with more levels is taken for a mistake."""
MISSING = frozenset({"", "NA", "NaN", "nan", "null", "NULL", "None", "?"})
"""What stands for a missing value; blanks around it do not count."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
LONGEST_NUMBER = 40
"""A longer row of digits is text."""


class TableSettings(Settings):
    """What each column of a table is for."""

    target: str | list[str] = Field(description="the column to predict; or several, for several findings or numbers")
    site: str | None = Field(default=None, description="the column that names each row's site")
    drop: list[str] = Field(default_factory=list, description="columns to leave out")
    scaling: Literal["own", "shared"] = Field(
        default="own", description="standardise by each site's own training part, or by figures of all sites together"
    )
    columns: dict[str, Kind] | None = Field(
        default=None,
        description='kind of each feature column: "number", or a list of levels; none: found from the data',
    )

    @property
    def targets(self) -> list[str]:
        """The target columns."""
        return [self.target] if isinstance(self.target, str) else self.target

    @model_validator(mode="before")
    @classmethod
    def _check_types(cls, values: Any) -> Any:
        """Refuse wrong types here: pydantic would report a problem for each type that is allowed."""
        if not isinstance(values, Mapping):
            return values
        target, columns = values.get("target", ""), values.get("columns")
        if not (isinstance(target, str) or _is_text(target)):
            raise ValueError(f"target = {target!r}: expected the name of a column, or a list of names")
        for name, kind in columns.items() if isinstance(columns, Mapping) else ():
            if kind != "number" and not _is_text(kind):
                raise ValueError(f'columns.{name} = {kind!r}: expected "number", or a list of levels as text')
        return values

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        uses = {"target": self.targets, "drop": self.drop, "site": [] if self.site is None else [self.site]}
        for use, names in uses.items():
            _check_different(use, names)
        if not self.targets:
            raise ValueError("target = []: name at least one column")
        uses["columns"] = list(self.columns or ())
        for use, other in (("site", "target"), ("drop", "target"), ("drop", "site")):
            for name in sorted(set(uses[use]) & set(uses[other])):
                raise ValueError(f"{use}: {name!r} is also in {other}; a column has one use")
        for use in ("target", "site", "drop"):
            for name in sorted(set(uses[use]) & set(uses["columns"])):
                raise ValueError(f"columns.{name}: is also in {use}; a column has one use")
        return self

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        if self.columns is not None and not self.columns:
            raise ValueError("columns = {}: name at least one, or leave it out to find them from the data")
        for name, kind in (self.columns or {}).items():
            if kind != "number":
                _check_levels(f"columns.{name}", kind)
        return self


def level_name(value: object) -> str:
    """Return the name of a level, class or site; 1, 1.0 and "1" have the same one."""
    if isinstance(value, str):
        text = value.strip()
        return _number_name(float(text)) if is_number(text) else text
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, np.floating):  # a float32 of 0.1 is written 0.1
        return _number_name(float(str(value)))
    return str(int(value)) if isinstance(value, int | np.integer) else _number_name(float(str(value)))


def level_order(name: str) -> tuple[bool, float, str]:
    """Sort names: numbers by value, then text."""
    return (False, float(name), name) if is_number(name) else (True, 0.0, name)


def is_number(text: str) -> bool:
    """Tell whether a text is a finite number."""
    return len(text) <= LONGEST_NUMBER and bool(NUMBER.fullmatch(text)) and bool(np.isfinite(float(text)))


def _number_name(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def _is_text(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _check_different(field: str, names: Sequence[str]) -> None:
    for name, times in Counter(names).items():
        if not name.strip():
            raise ValueError(f"{field} = {name!r}: the name of a column is empty")
        if times > 1:
            raise ValueError(f"{field}: names {name!r} twice")


def _check_levels(field: str, levels: Sequence[str]) -> None:
    if not levels:
        raise ValueError(f'{field} = []: name the levels, or write "number"')
    if len(levels) > MOST_LEVELS:
        raise ValueError(f"{field}: has {len(levels)} levels, at most {MOST_LEVELS} are allowed; drop the column")
    names = [level_name(level) for level in levels]
    for level, name in zip(levels, names, strict=True):
        if name in MISSING:
            raise ValueError(f"{field}: the level {level!r} stands for a missing value; leave it out")
        if names.count(name) > 1:
            raise ValueError(f"{field}: names the level {level!r} twice")
