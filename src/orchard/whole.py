"""Files are written whole or not at all: beside their place, then renamed. A crash leaves the old file or the new."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchard.errors import UserError


def write_durably(path: Path, content: str | bytes) -> None:
    """Write a file atomically, and wait for the disk."""
    with replacing(path) as temporary:
        temporary.write_bytes(_bytes(content))


def write_output(path: Path, content: str | bytes) -> None:
    """Write a file where a user wants it, whole; links are followed, and devices written to. Raise UserError."""
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            target.write_bytes(_bytes(content))
        else:
            write_durably(target, content)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name to write to; then sync the file and rename it."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        yield temporary
        with suppress(FileNotFoundError):
            _take_after(temporary, path.stat())
        sync(temporary)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync(path.parent)


def _take_after(file: Path, old: os.stat_result) -> None:
    """Give a file the owner and the mode of the one that it replaces: a private file stays one, and its reader's."""
    if hasattr(os, "chown") and (file.stat().st_uid, file.stat().st_gid) != (old.st_uid, old.st_gid):
        with suppress(PermissionError):  # only root gives files away
            os.chown(file, old.st_uid, old.st_gid)
    file.chmod(stat.S_IMODE(old.st_mode))


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    with suppress(PermissionError):  # some systems cannot open folders, and need not sync them
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
