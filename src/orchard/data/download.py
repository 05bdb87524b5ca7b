"""Find published files in the data folder or download them into it, and check their MD5 in both cases.

A download goes into a `.part` file, which is renamed only when its checksum is right: a file with the final name is
complete. An interrupted download resumes where it stopped. If the server cannot resume, the bytes received so far are
kept until there are more. A lock keeps two processes from downloading the same file at once.
"""

import contextlib
import hashlib
import http.client
import json
import os
import time
import urllib.error
import urllib.request
import warnings
from itertools import count
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from orchard.data.catalogue import Entry, Source
from orchard.errors import DataWarning, UserError
from orchard.whole import write_durably

ATTEMPTS = 4
"""Give up after so many attempts in a row without a new byte, or so many complete files with a wrong checksum."""
PATIENCE = 30.0
"""Seconds without a byte after which a connection counts as dead."""
PAUSE = 1.0
"""Seconds to wait before the next attempt; doubled after each further failure."""
CHUNK = 1 << 18


def data_folder(chosen: Path | None) -> Path:
    """Return the folder of data files: the chosen one, else $ORCHARD_DATA, else the user's cache folder."""
    return chosen_folder(chosen) or user_cache_path("orchard")


def chosen_folder(chosen: Path | None) -> Path | None:
    """Return the chosen folder, else $ORCHARD_DATA, else None."""
    return chosen or (Path(os.environ["ORCHARD_DATA"]) if os.environ.get("ORCHARD_DATA") else None)


def check_folder(chosen: Path | None) -> None:
    """Raise if a folder was chosen and is not there."""
    if chosen and not chosen.is_dir():
        raise UserError(f"data_dir = '{chosen}': is no folder; make it first, or leave it out to use the cache")


def is_at_hand(entry: Entry, chosen: Path | None) -> bool:
    """Tell whether a dataset is available locally: all files of at least one image size."""
    folder = data_folder(chosen)
    sizes = entry.files.values()
    return not sizes or any(all((folder / source.file).exists() for source in files) for files in sizes)


def obtain(source: Source, folder: Path) -> Path:
    """Return the path of a published file; download it if it is not there."""
    target = folder / source.file
    if target.is_file():
        _warn_of_another_checksum(target, source)
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if not target.exists():  # another process may have downloaded it while we waited
                _download(source, target)
    except OSError as error:
        raise UserError(f"{target}: cannot be written: {error.strerror or error}") from None
    return target


def _warn_of_another_checksum(target: Path, source: Source) -> None:
    """Warn if a file is not the published one; its checksum is stored and computed again only if the file changes."""
    place = hashlib.sha256(os.fsencode(target.resolve())).hexdigest()[:32]
    memory = user_cache_path("orchard") / "checksums" / f"{place}.json"  # nothing is written beside the user's data
    state = [target.stat().st_size, target.stat().st_mtime_ns]
    try:
        known = json.loads(memory.read_text("utf-8"))
    except (OSError, ValueError):
        known = None
    if not (isinstance(known, list) and known[:2] == state):
        known = [*state, md5(target)]
        with contextlib.suppress(OSError):  # where it cannot be kept, compute it again next time
            memory.parent.mkdir(parents=True, exist_ok=True)
            write_durably(memory, json.dumps(known))
    if known[2] != source.md5:
        warnings.warn(
            f"{target} is not the published file: its MD5 is {known[2]}, the published one's {source.md5}; "
            "delete it to download the published file",
            DataWarning,
            stacklevel=2,
        )


def _download(source: Source, target: Path) -> None:
    """Download a file; keep trying as long as new bytes arrive."""
    part = target.with_name(f"{target.name}.part")
    problem: Exception | None = None
    idle = wrong = 0
    for attempt in count():
        address = source.addresses[attempt % len(source.addresses)]
        before = _size(part)
        try:
            _stream(address, part, target.name)
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError) as error:
            problem = error
            idle = 0 if _size(part) > before else idle + 1
        else:
            found = md5(part)
            if found == source.md5:
                _anew(part).unlink(missing_ok=True)
                part.replace(target)
                return
            part.unlink()
            problem = ValueError(f"the file from {address} has MD5 {found}, not {source.md5}")
            wrong += 1
        if max(idle, wrong) == ATTEMPTS:
            break
        time.sleep(PAUSE * 2 ** (max(idle, wrong, 1) - 1))
    raise UserError(
        f"{target.name} cannot be downloaded: {problem}\n"
        f"If this machine has no connection, download the file elsewhere and copy it here:\n"
        f"  from {source.addresses[0]}\n  to   {target}\n  MD5  {source.md5}"
    )


def _stream(address: str, part: Path, name: str) -> None:
    """Append the missing bytes to a file.

    A server that cannot resume sends the whole file again. It goes into a second file, which replaces the first as soon
    as it is longer.
    """
    have = _size(part)
    request = urllib.request.Request(address, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310
    try:
        response = urllib.request.urlopen(request, timeout=PATIENCE)  # noqa: S310 (the catalogue's addresses)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # nothing is left to send: the file is complete or wrong, and its checksum tells which
        raise
    with response, _progress(name) as bar:
        resumed = response.status == http.HTTPStatus.PARTIAL_CONTENT
        length = response.headers.get("Content-Length")
        start = have if resumed else 0
        total = start + int(length) if length and length.isdecimal() else None
        task = bar.add_task(name, total=total, completed=start)
        file = part if resumed or not have else _anew(part)
        try:
            with file.open("ab" if resumed else "wb") as opened:
                while chunk := _received(response):
                    opened.write(chunk)
                    bar.advance(task, len(chunk))
            size = _size(file)
            if total is not None and size < total:
                raise ConnectionError(f"the connection broke after {size} of {total} bytes")
            file.replace(part)
        finally:
            if _size(file) > have:
                file.replace(part)
            elif file != part:
                file.unlink(missing_ok=True)


def _anew(part: Path) -> Path:
    return part.with_name(f"{part.name}.anew")


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _received(response: http.client.HTTPResponse) -> bytes:
    """Return the bytes that have arrived, without waiting for more; raise ConnectionError for any failure."""
    try:
        return response.read1(CHUNK)
    except OSError as error:
        raise ConnectionError(str(error) or type(error).__name__) from error


def _progress(name: str) -> Progress:
    console = Console(stderr=True)
    columns = (
        TextColumn("downloading {task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, disable=not console.is_terminal)


def md5(path: Path) -> str:
    """Return a file's MD5, the checksum published with these datasets."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
