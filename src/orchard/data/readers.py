"""Readers of file formats: idx, CIFAR's binary archive, and arrays in an `.npz`.

No reader runs code from a file: pickles are never loaded, and an archive's members are read, not extracted.
"""

import gzip
import math
import tarfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orchard.errors import UserError

UNSIGNED_BYTE = 0x08
CIFAR_RECORD = 1 + 3 * 32 * 32
CIFAR_FOLDER = "cifar-10-batches-bin"
CIFAR_CLASSES = 10


MOST_FREE = 1 << 28
"""So many bytes may be made of any file, however small."""
MOST_TIMES = 200
"""A larger file may become so many times as large: real data are not smaller than that when they are compressed."""


def check_file(path: Path, becomes: int = 0, free: int = MOST_FREE) -> None:
    """Raise unless this is a file (a pipe would never end) that becomes no more bytes than real data would."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(f"{path}: is a pipe or a device, not a file")
    if becomes > free and becomes > MOST_TIMES * path.stat().st_size:
        times = becomes // max(1, path.stat().st_size)
        raise UserError(f"{path}: would take {times} times its size in memory; if that is right, save it uncompressed")


class Part(NamedTuple):
    """Images as they are stored, n×h×w or n×h×w×c, and their labels."""

    images: NDArray[Any]
    labels: NDArray[Any]


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read a gzipped idx file of unsigned bytes; raise if it is anything else."""
    header = 4 * (1 + dimensions)
    check_file(path)
    try:
        with gzip.open(path) as file:
            start = file.read(header)
            if start[:4] != bytes((0, 0, UNSIGNED_BYTE, dimensions)) or len(start) < header:
                raise UserError(f"{path}: is not an idx file of bytes in {dimensions} dimensions")
            shape = [int(size) for size in np.frombuffer(start, ">u4", count=dimensions, offset=4)]
            expected = math.prod(shape)
            check_file(path, expected)
            content = file.read(expected + 1)
            more = len(content) > expected and len(file.read(MOST_FREE))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: is damaged or not gzip: {error}") from None
    if len(content) != expected:
        raise UserError(f"{path}: announces {expected} bytes of data but holds {len(content) + more}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def read_cifar10(path: Path) -> tuple[Part, Part]:
    """Read the training and test part from CIFAR-10's binary archive."""
    names = [f"{CIFAR_FOLDER}/{name}.bin" for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")]
    batches = []
    try:
        with tarfile.open(path, "r:gz") as archive:
            for path_inside in archive.getnames():
                if Path(path_inside).is_absolute() or ".." in Path(path_inside).parts:
                    raise UserError(f"{path}: its member {path_inside!r} points outside the archive")
            for name in names:
                member = archive.extractfile(name)
                if member is None:
                    raise UserError(f"{path}: its member {name} is not a file")
                check_file(path, archive.getmember(name).size)
                batches.append(_cifar_batch(member.read(), f"{path}: {name}"))
    except KeyError:
        raise UserError(f"{path}: has no member {name}; this is not CIFAR-10's binary version") from None
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: is damaged or not a gzipped tar archive: {error}") from None
    train = Part(*(np.concatenate(pieces) for pieces in zip(*batches[:-1], strict=True)))
    return train, batches[-1]


def _cifar_batch(content: bytes, place: str) -> Part:
    if not content or len(content) % CIFAR_RECORD:
        raise UserError(f"{place}: its {len(content)} bytes are not a multiple of {CIFAR_RECORD}, the size of a record")
    records = np.frombuffer(content, np.uint8).reshape(-1, CIFAR_RECORD)
    images, labels = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, 0]
    if labels.max() >= CIFAR_CLASSES:  # checked here, where the row within the batch is known
        row = int(labels.argmax())
        raise UserError(f"{place}: row {row}: label {labels[row]}, but there are {CIFAR_CLASSES} classes from 0")
    return Part(images, labels)


def read_npz(path: Path, names: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
    """Read the arrays of an `.npz`, all or those of some names; raise if one is pickled."""
    try:
        check_file(path)
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            wanted = [entry for entry in archive.zip.infolist() if names is None or entry.filename[:-4] in names]
            check_file(path, sum(entry.file_size for entry in wanted))
            return {name: _array(archive, name, path) for name in archive.files if names is None or name in names}
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except UserError:
        raise
    except Exception as error:  # a damaged archive can fail in any of several libraries
        raise UserError(f"{path}: is damaged or not an .npz: {error}") from None


def _array(archive: Any, name: str, path: Path) -> NDArray[Any]:
    try:
        return np.asarray(archive[name])
    except ValueError as error:
        if "pickle" in str(error) or "Object arrays" in str(error):
            text = f"{path}: '{name}' is an array of Python objects, which are never loaded; save plain values"
            raise UserError(text) from None
        raise
