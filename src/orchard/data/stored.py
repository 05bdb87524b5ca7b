"""What data are, as they are stored: a digest of files, or of arrays and tables that are handed over.

It says whether a run goes on with the data that it began with. What is made of them for training (resized images,
standardised numbers) would not do: its last bits depend on the processor.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orchard.data.folders import is_image
from orchard.data.readers import check_file
from orchard.data.tables.reading import SUFFIXES, digest_when_read
from orchard.errors import UserError

if TYPE_CHECKING:
    from pandas import DataFrame

DEEPEST = 5
"""Folders inside folders, at most: <part or client>/<class>/<volume>/<slice>. Links may lead around in circles."""


def digest_of_path(path: Path) -> str:
    """Return the digest of a file, or of all images and tables in a folder with their places there."""
    return digest_of_files(_files_in(path, "", DEEPEST) if path.is_dir() else [("", path)])


def digest_of_files(files: Iterable[tuple[str, Path]]) -> str:
    """Return the digest of files; each comes with a name that counts too."""
    whole = hashlib.sha256()
    for name, file in files:
        check_file(file)
        whole.update(name.encode(errors="surrogateescape") + b"\0" + (digest_when_read(file) or _digest(file)))
    return whole.hexdigest()


def _digest(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").digest()
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None


def _files_in(folder: Path, place: str, deepest: int) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir() and deepest:
            yield from _files_in(path, f"{place}{path.name}/", deepest - 1)
        elif path.is_file() and (path.suffix.lower() in SUFFIXES or is_image(path)):
            yield f"{place}{path.name}", path


def digest_of_arrays(arrays: Mapping[str, NDArray[Any] | None]) -> str:
    """Return the digest of arrays and their names."""
    whole = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        if array is not None:
            values = np.asarray(array)
            content = repr(values.tolist()).encode() if values.dtype.hasobject else np.ascontiguousarray(values).data
            whole.update(f"{name} {values.dtype.str} {values.shape}\0".encode())
            whole.update(content)
    return whole.hexdigest()


def digest_of_tables(frames: Mapping[str, "DataFrame"]) -> str:
    """Return the digest of tables and their names."""
    from pandas.util import hash_pandas_object

    rows = {
        name: np.append(hash_pandas_object(frame, index=False).to_numpy(), hash_pandas_object(frame.columns).to_numpy())
        for name, frame in frames.items()
    }
    return digest_of_arrays(rows)
