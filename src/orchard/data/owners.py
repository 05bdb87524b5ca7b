"""Whose each sample is: an array beside the samples names their owners."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchard.data.readers import read_npz
from orchard.errors import UserError

Arrays = Mapping[str, NDArray[Any]]
Keys = Mapping[str, tuple[str, str]]
"""For each part, the names of its arrays of samples and labels."""

PARTS = ("train", "val", "test")
OWNER_KINDS = "Uiu"
"""NumPy's letters for text and whole numbers."""


def owners_of(arrays: Arrays, keys: Keys, key: str, place: str) -> dict[str, NDArray[Any]]:
    """Return, for each part, the column with each sample's owner."""
    taken = {name for pair in keys.values() for name in pair}
    columns: dict[str, NDArray[Any]] = {}
    for part, (x, _) in keys.items():
        expected = [*([key] if x == "x" else []), *_column_names(key, part)]
        names = [name for name in expected if name in arrays and name not in taken]
        if not names:
            others = sorted(arrays.keys() - taken)
            raise UserError(
                f"{place}: partition.key = {key!r}: has no '{expected[0]}'; "
                f"apart from samples and labels it holds: {', '.join(others) or 'nothing'}"
            )
        column = arrays[names[0]].reshape(-1)
        if len(column) != len(arrays[x]):
            raise UserError(f"{place}: {names[0]}: names {len(column)} owners, but {x} holds {len(arrays[x])} samples")
        if column.dtype.kind not in OWNER_KINDS:
            raise UserError(f"{place}: {names[0]}: owners are text or whole numbers, not {column.dtype}")
        columns[part] = column
    if len({column.dtype.kind for column in columns.values()}) > 1:
        types = ", ".join(f"{column.dtype} for {part}" for part, column in columns.items())
        raise UserError(f"{place}: partition.key = {key!r}: owners differ in type: {types}; save them all as one type")
    return columns


def count_owners(arrays: Arrays, key: str) -> int | None:
    """Count the owners that a column names in all parts together; None if there is no such column."""
    columns = [arrays[name].reshape(-1) for name in _all_names(key) if name in arrays]
    return len(np.unique(np.concatenate(columns))) if columns else None


def count_owners_in(path: Path, key: str) -> int | None:
    """Count the owners in an `.npz`; None if it cannot be read, which is said when its samples are."""
    try:
        return count_owners(read_npz(path, _all_names(key)), key)
    except UserError:
        return None


def _all_names(key: str) -> list[str]:
    return [key, *(name for part in PARTS for name in _column_names(key, part))]


def _column_names(key: str, part: str) -> tuple[str, str]:
    return f"{key}_{part}", f"{part}_{key}"
