"""What a table is about: the targets that are to be predicted, and the sites to which its rows belong."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from orchard.data.tables.columns import are_dates, is_plain, names_of, numbers_of, other_type
from orchard.data.tables.kinds import (
    FEWEST_IDENTIFIERS,
    IDENTIFIERS_SHARE,
    check_names,
    misfit,
    no_column,
    row_number,
    shown,
)
from orchard.data.tables.settings import TableSettings
from orchard.errors import UserError

if TYPE_CHECKING:
    from pandas import DataFrame, Series

MOST_WHOLE_CLASSES = 20
"""More different whole numbers may be classes or amounts; only people can tell."""
FEWEST_ROWS = 3
"""A site needs a row to train with, one to validate and one to test."""
NAMES_SHOWN = 5


@dataclass(frozen=True)
class Targets:
    """The target columns of a table, and what they look like."""

    frame: "DataFrame"
    """The columns as they are; nothing is missing."""
    place: str
    kind: Literal["classes", "findings", "numbers"]
    """One class a row; 0 or 1 in each of several columns; or real numbers in one or several columns."""
    classes: tuple[str, ...] = ()
    """The names of the classes, sorted; those of whole numbers even if they may be amounts."""
    ambiguous: bool = False
    """Whether these are so many whole numbers that they may be classes or amounts; `kind` is then numbers."""

    def labels(self, classes: Sequence[str] | None = None) -> NDArray[np.int64]:
        """Return each row's position in the classes, or in those agreed upon; raise if one is not among them."""
        column = self.frame.iloc[:, 0]
        positions, found = names_of(column)
        agreed = {name: k for k, name in enumerate(found if classes is None else classes)}
        for k, name in enumerate(found):
            if name not in agreed:
                row = row_number(self.frame, int((positions == k).argmax()))
                raise UserError(
                    f"{self.place}: row {row}: the target {shown(column.name)} is {shown(name)}, "
                    f"which is none of the classes: {', '.join(agreed)}"
                )
        return np.array([agreed[name] for name in found], np.int64)[positions]

    def numbers(self) -> NDArray[np.float32]:
        """Return the targets as numbers, rows × columns; raise if one is no number."""
        columns = [column for _, column in self.frame.items()]
        for column in columns:
            if reason := misfit(column, "number"):
                raise UserError(f"{self.place}: {reason}")
        return np.stack([numbers_of(column)[0] for column in columns], axis=1).astype(np.float32)


def read_targets(frame: "DataFrame", settings: TableSettings, place: str) -> Targets:
    """Return the target columns and what they look like; raise if values are missing or cannot be predicted."""
    check_names(frame, settings, place)
    chosen = frame[settings.targets]
    for name in settings.targets:
        _check_target(chosen[name], place)
    if len(settings.targets) == 1:
        return _one_target(chosen, place)
    wrong = [reason for name in settings.targets if (reason := misfit(chosen[name], "number"))]
    if wrong:
        raise UserError(f"{place}: {wrong[0]}; several targets are all 0 or 1, or all numbers")
    binary = all(np.isin(numbers_of(chosen[name])[0], (0, 1)).all() for name in settings.targets)
    return Targets(chosen, place, "findings" if binary else "numbers")


def _one_target(chosen: "DataFrame", place: str) -> Targets:
    column = chosen.iloc[:, 0]
    if is_plain(column.dtype) and column.dtype != bool:
        numbers, _ = numbers_of(column)
        if not (numbers == np.round(numbers)).all():
            return Targets(chosen, place, "numbers")
        classes = tuple(names_of(column)[1])
        ambiguous = len(classes) > MOST_WHOLE_CLASSES
        return Targets(chosen, place, "numbers" if ambiguous else "classes", classes, ambiguous)
    classes = tuple(names_of(column)[1])
    if are_dates(classes):
        raise UserError(f"{place}: the target {column.name!r} holds dates; they cannot be predicted")
    numbers, wrong = numbers_of(column)
    if wrong is not None and 2 * np.isfinite(numbers).sum() >= len(numbers):
        raise UserError(
            f"{place}: row {row_number(column, wrong)}: the target {column.name!r} is {shown(column.iloc[wrong])}, "
            "but most are numbers; correct it"
        )
    if len(classes) > FEWEST_IDENTIFIERS and len(classes) >= IDENTIFIERS_SHARE * len(column):
        raise UserError(f"{place}: the target {column.name!r} is different in nearly every row; these are no classes")
    return Targets(chosen, place, "classes", classes)


def _check_target(column: "Series[Any]", place: str) -> None:
    missing = np.flatnonzero(column.isna())
    if len(missing):
        rows = ", ".join(str(row_number(column, int(k))) for k in missing[:NAMES_SHOWN])
        more = ", …" if len(missing) > NAMES_SHOWN else ""
        count = f"{len(missing)} of {len(column)} rows"
        raise UserError(
            f"{place}: the target {column.name!r} is missing in {count} (rows {rows}{more}); fill it in or remove them"
        )
    if (strange := other_type(column)) is not None:
        raise UserError(f"{place}: the target {column.name!r} holds {strange}; they cannot be predicted")
    if is_plain(column.dtype) and (reason := misfit(column, "number")):
        raise UserError(f"{place}: {reason}")


def rows_by_site(frame: "DataFrame", column: str, place: str = "table") -> dict[str, NDArray[np.int64]]:
    """Return the positions of each site's rows, sites sorted by name; raise if a row names none."""
    if column not in frame.columns:
        raise UserError(f"{place}: site: {no_column(column, frame)}")
    if (strange := other_type(frame[column])) is not None:
        raise UserError(f"{place}: the column of sites {column!r} holds {strange}, not names")
    positions, names = names_of(frame[column])
    if (positions < 0).any():
        row = row_number(frame, int((positions < 0).argmax()))
        raise UserError(
            f"{place}: row {row}: the site {column!r} is missing, as in {(positions < 0).sum()} of {len(frame)} rows; "
            "fill it in or remove the rows"
        )
    order = np.argsort(positions, kind="stable").astype(np.int64)
    counts = np.bincount(positions, minlength=len(names))
    for name, count in zip(names, counts, strict=True):
        if count < FEWEST_ROWS:
            raise UserError(
                f"{place}: the site {shown(name)} has {count} {'row' if count == 1 else 'rows'}; "
                f"a site needs at least {FEWEST_ROWS}, to train, validate and test; is {column!r} the column of sites?"
            )
    return dict(zip(names, np.split(order, np.cumsum(counts)[:-1]), strict=True))
