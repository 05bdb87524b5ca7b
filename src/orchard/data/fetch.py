"""Published files: found in the data folder, or downloaded into it, and checked either way.

A download goes into a `.part` file and takes its name only when its checksum is right, so that what has the name is
whole. An interrupted one is taken up where it stopped, and nothing that has come is lost to a server that cannot
resume. A lock lets two processes want the same file at once.
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

from orchard.catalogue import Source
from orchard.errors import DataWarning, Refusal

ATTEMPTS = 4
"""In a row without progress, or with a whole file that is wrong."""
PATIENCE = 30.0
"""Seconds without a byte after which a connection counts as dead."""
PAUSE = 1.0
"""Seconds before the second attempt; twice as long before each further one that is in vain."""
CHUNK = 1 << 18


def data_folder(chosen: Path | None) -> Path:
    """Return where data files are: the folder chosen, else $ORCHARD_DATA, else the user's cache folder."""
    return chosen_folder(chosen) or user_cache_path("orchard")


def chosen_folder(chosen: Path | None) -> Path | None:
    """Return the folder that somebody chose, here or by $ORCHARD_DATA."""
    return chosen or (Path(os.environ["ORCHARD_DATA"]) if os.environ.get("ORCHARD_DATA") else None)


def obtain(source: Source, folder: Path) -> Path:
    """Return the path of a published file, downloading it if it is not there."""
    target = folder / source.file
    if target.is_file():
        _warn_of_another_checksum(target, source)
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if not target.exists():  # somebody else may have brought it while we waited
                _download(source, target)
    except OSError as error:
        raise Refusal(f"{target}: cannot be written: {error.strerror or error}") from None
    return target


def _warn_of_another_checksum(target: Path, source: Source) -> None:
    """Compare a file that was put there by hand with the published one; looked at again only when it changes."""
    memory = target.with_name(f".{target.name}.md5")
    state = [target.stat().st_size, target.stat().st_mtime_ns]
    try:
        known = json.loads(memory.read_text("utf-8"))
    except (OSError, ValueError):
        known = None
    if not (isinstance(known, list) and known[:2] == state):
        known = [*state, md5(target)]
        with contextlib.suppress(OSError):  # a data folder may be read-only; then the sum is taken anew next time
            memory.write_text(json.dumps(known), "utf-8")
    if known[2] != source.md5:
        warnings.warn(
            f"{target} is not the published file: its MD5 is {known[2]}, the published one's {source.md5}",
            DataWarning,
            stacklevel=2,
        )


def _download(source: Source, target: Path) -> None:
    """Fetch a file, for as long as bytes arrive: only attempts in a row that bring nothing are counted."""
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
            problem = ValueError(f"what {address} sends has MD5 {found}, not {source.md5}")
            wrong += 1
        if max(idle, wrong) == ATTEMPTS:
            break
        time.sleep(PAUSE * 2 ** (max(idle, wrong, 1) - 1))
    raise Refusal(
        f"{target.name} cannot be downloaded: {problem}\n"
        f"Without a connection, fetch it elsewhere and put it there by hand:\n"
        f"  from {source.addresses[0]}\n  to   {target}\n  MD5  {source.md5}"
    )


def _stream(address: str, part: Path, name: str) -> None:
    """Append what is missing of a file.

    A server that cannot resume sends it all anew; that goes beside what we have, and takes its place once it is more.
    """
    have = _size(part)
    request = urllib.request.Request(address, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310
    try:
        response = urllib.request.urlopen(request, timeout=PATIENCE)  # noqa: S310 (the catalogue's addresses)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # there is nothing more to send: what we have is all of it, or is wrong, as its sum will tell
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
    """Return what has come, however little, so that a stall loses nothing; any failure is the connection's."""
    try:
        return response.read1(CHUNK)
    except OSError as error:
        raise ConnectionError(str(error) or type(error).__name__) from error


def _progress(name: str) -> Progress:
    console = Console(stderr=True)
    columns = (
        TextColumn("fetching {task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, disable=not console.is_terminal)


def md5(path: Path) -> str:
    """Return a file's MD5, the checksum that these datasets are published with."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
