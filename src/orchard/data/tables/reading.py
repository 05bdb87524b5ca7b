"""Read tables: .csv files, .parquet files, and pandas' data frames.

Every column that comes out of here is plain: numbers, True and False, text, or dates. Text without blanks around it;
NaN or None where a value is missing; numbers that were stored as text are numbers.

Nothing in a file is executed: no formula, no pickle.
"""

import csv
import hashlib
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchard.data.readers import check_file
from orchard.data.tables.columns import is_plain, plain_column
from orchard.data.tables.settings import MISSING, is_number
from orchard.errors import UserError
from orchard.text import readable, shortened

if TYPE_CHECKING:
    from pandas import DataFrame

SUFFIXES = (".csv", ".parquet")
SEPARATORS = ("\t", ";", ",")
"""The first that divides the first lines evenly is taken: commas may be decimal commas."""
LINES_TRIED = 20
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
OTHER_FORMATS = {
    b"PK\x03\x04": "a zip archive or an Excel workbook",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
    b"PAR1": "a Parquet file; call it .parquet",
    b"%PDF": "a PDF",
    b"\x1f\x8b": "a gzip archive; unpack it first",
}
"""How files begin that are no text."""
INDEX_COLUMN = re.compile(r"__index_level_\d+__")
"""How pandas names a data frame's index in a Parquet file; it is no column."""


_KEPT: dict[tuple[object, ...], "DataFrame"] = {}
"""The table that was last read to be kept."""
_DIGESTS: dict[tuple[object, ...], bytes] = {}
"""The SHA-256 of every table's file that was read."""


def read_table(path: Path, *, keep: bool = False) -> "DataFrame":
    """Read a .csv or .parquet file; raise if it is not a table. The next call takes what this one keeps.

    An experiment counts the sites in a file before its data are loaded, and a large file takes long to read.
    """
    state = _state(path)
    frame = _KEPT.pop(state, None)
    _KEPT.clear()  # of another file, or of this one before it was changed
    if frame is None:
        frame = _read(path)
    if keep:
        _KEPT[state] = frame
    return frame


def digest_when_read(path: Path) -> bytes | None:
    """Return the SHA-256 of a table's file if it has been read as it is now: it need not be read again for that."""
    return _DIGESTS.get(_state(path))


def _state(path: Path) -> tuple[object, ...]:
    """Return what tells whether a path is the same file with the same content."""
    try:
        found = path.stat()
    except OSError:  # which reading explains
        return (path,)
    return path.suffix, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _read(path: Path) -> "DataFrame":
    need_pandas()
    check_file(path)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    _DIGESTS[_state(path)] = hashlib.sha256(content).digest()
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path}: is not a table; expected a file that ends in {' or '.join(SUFFIXES)}")
    if not content:
        raise UserError(f"{path}: is empty")
    return _read_parquet(content, path) if path.suffix.lower() == ".parquet" else _read_csv(content, str(path))


def as_table(frame: "DataFrame", place: str, decimal_comma: bool = False) -> "DataFrame":
    """Return a copy of a data frame with plain columns and rows numbered from 0; raise if it is not a table."""
    if frame.columns.nlevels > 1:
        raise UserError(f"{place}: names of columns have {frame.columns.nlevels} levels; give each column one name")
    names = [_name(name) for name in frame.columns]
    _check_names(names, place)
    if len(frame) == 0:
        raise UserError(f"{place}: has names of columns but no rows")
    table = frame.set_axis(names, axis=1).reset_index(drop=True)
    for name, dtype in zip(names, frame.dtypes, strict=True):
        if not is_plain(dtype):
            table[name] = plain_column(table[name], decimal_comma)
    return table


def join_tables(tables: Mapping[str, "DataFrame"]) -> "DataFrame":
    """Return the rows of several tables in one; raise unless all have the same columns, in any order."""
    from pandas import concat

    (first, model), *others = tables.items()
    for place, table in others:
        for name in model.columns.symmetric_difference(table.columns, sort=False):
            having, lacking = (first, place) if name in model.columns else (place, first)
            raise UserError(f"{lacking}: has no column {name!r}, but {having} has; all sites need the same columns")
    return as_table(concat(tables.values(), ignore_index=True), "all sites")


def need_pandas() -> None:
    """Raise unless pandas and pyarrow are installed."""
    try:
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
    except ModuleNotFoundError:
        raise UserError("tables need pandas and pyarrow; install them with: pip install 'orchard[tables]'") from None


def _name(name: object) -> str:
    """Return the name of a column on one line."""
    return " ".join(str(name).split())


def _check_names(names: Sequence[str], place: str) -> None:
    """Raise unless every column has a name of its own."""
    name, times = Counter(names).most_common(1)[0] if names else ("", 0)
    numeric = [is_number(name) or name in MISSING for name in names]
    if all(numeric) and any(map(is_number, names)) and (times > 1 or any("." in name for name in names)):
        raise UserError(f"{place}: its first line holds numbers, not the names of columns; add a line of names above")
    if times > 1:
        raise UserError(f"{place}: {times} columns have the name {name!r}; rename them")
    if len(names) < 2:
        only = f"only the column {shortened(readable(names[0]), 60)!r}" if names else "no column"
        raise UserError(f"{place}: has {only}; separate columns with commas, semicolons or tabs")


def _read_csv(content: bytes, place: str) -> "DataFrame":
    import pandas as pd

    text = _decoded(content, place)
    if not text.strip():
        raise UserError(f"{place}: is empty")
    separator = _separator(text)
    names = _checked_lines(text, separator, place)
    try:
        frame = pd.read_csv(
            io.StringIO(text),
            sep=separator,
            header=0,
            names=names,
            index_col=False,
            keep_default_na=False,
            na_values=sorted(MISSING),
            low_memory=False,  # types are found from the whole column
        )
    except (ValueError, OverflowError) as error:
        raise UserError(f"{place}: cannot be read as a table: {error}") from None
    return as_table(frame.copy(), place, decimal_comma=separator == ";")  # copied, thousands of columns lie together


def _decoded(content: bytes, place: str) -> str:
    """Return a file's text: UTF-8, or UTF-16 with a byte order mark. Other encodings would be a guess."""
    for start, name in OTHER_FORMATS.items():
        if content.startswith(start):
            raise UserError(f"{place}: is no CSV file but {name}")
    encoding = "UTF-16" if content.startswith(UTF_16) else "UTF-8"
    try:
        text = content.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content[: error.start].decode(encoding, "ignore").count("\n") + 1
        raise UserError(f"{place}: line {line}: is not {encoding}; save the file as CSV in UTF-8") from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise UserError(f"{place}: line {line}: holds a NUL byte, so it is no text; save the file as CSV in UTF-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")  # pandas shifts values where blank lines end with \r alone


def _separator(text: str) -> str:
    """Return what divides the first lines into the same number of columns, else what divides the header most."""
    counts = {separator: _first_counts(text, separator) for separator in SEPARATORS}
    even = [separator for separator, found in counts.items() if found[0] > 1 and len(set(found)) == 1]
    return even[0] if even else max(counts, key=lambda separator: counts[separator][0])


def _first_counts(text: str, separator: str) -> list[int]:
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        return [len(row) for row, _ in zip(rows, range(LINES_TRIED), strict=False) if row]
    except csv.Error:  # said with its line by _checked_lines
        return [0]


def _checked_lines(text: str, separator: str, place: str) -> list[str]:
    """Return the names of the columns; raise unless every line has as many values (pandas would fill short ones)."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    names: list[str] = []
    try:
        for row in reader:
            if not row or (len(row) == 1 and not row[0].strip()):
                continue  # pandas skips blank lines too
            if not names:
                names = [_name(name) or f"Unnamed: {k}" for k, name in enumerate(row)]
                _check_names(names, place)
            elif len(row) != len(names):
                raise UserError(
                    f"{place}: line {reader.line_num}: the number of values is {len(row)}, not {len(names)} "
                    "as in the first line"
                )
    except csv.Error as error:
        raise UserError(
            f"{place}: line {reader.line_num}: a quotation mark is not closed or is misplaced ({error})"
        ) from None
    return names


def _read_parquet(content: bytes, path: Path) -> "DataFrame":
    import pyarrow as pa
    from pyarrow import parquet

    place = str(path)
    try:
        file = parquet.ParquetFile(pa.BufferReader(content))
        fields = [field for field in file.schema_arrow if not INDEX_COLUMN.fullmatch(field.name)]
        _check_names([_name(field.name) for field in fields], place)
        for field in fields:
            if pa.types.is_nested(field.type) or isinstance(field.type, pa.BaseExtensionType):
                raise UserError(
                    f"{place}: the column {field.name!r} holds {field.type}; a table holds plain values only"
                )
        check_file(path, 8 * file.metadata.num_rows * len(fields))
        table = file.read([field.name for field in fields])
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{place}: is damaged or not a Parquet file: {shortened(str(error), 100)}") from None
    return as_table(table.to_pandas(ignore_metadata=True), place)
