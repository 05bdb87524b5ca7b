"""A site's audit trail: an entry for every message, on the disk before the message leaves.

The file is only ever appended to, one JSON object a line. An entry holds the message as it is, but for vectors, of
which it holds length and SHA-256; its own hash; and the hash of the entry before it. So whoever changes, adds or
removes an entry must write all later ones anew, and even that shows to whoever has kept a later hash.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock

from orchard.errors import RunFailed, UserError
from orchard.text import readable
from orchard.whole import sync

FILE = "sent.jsonl"
"""Its name in a site's records."""
START = "0" * 64
"""What stands for the hash of an entry before the first."""
BLOCK = 2**16
"""How much of the file's end is read at first to find the last entry."""
WAIT = 60.0
"""Seconds to wait for another process of this site."""
SHOWN = 16
"""How many digits of a hash people are shown."""

Entry = dict[str, Any]


class Trail:
    """The file in which a site writes what leaves it."""

    def __init__(self, records: Path) -> None:
        self.file = records / FILE

    def write(self, message: Mapping[str, Any], what: str, run: str | None, to: str) -> Entry:
        """Write an entry about a message and wait for the disk. Bytes are counted as those of vectors and of JSON."""
        sizes: list[int] = []
        figures = _with_bytes(message, lambda vector: sizes.append(len(vector)))
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.file.with_name(f".{FILE}.lock"), timeout=WAIT):
            fresh = not self.file.exists()
            last, torn = (None, False) if fresh else self._last()
            entry = {
                "entry": last["entry"] + 1 if last else 1,
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
                "to": to,
                "run": run,
                "what": what,
                "bytes": sum(sizes) + len(_canonical(figures)),
                "message": _with_bytes(message, _fingerprint),
                "previous": last["hash"] if last else START,
            }
            entry["hash"] = _hash(entry)
            self._append((b"\n" if torn else b"") + _canonical(entry) + b"\n")
            if fresh:
                sync(self.file.parent)
        return entry

    def _append(self, line: bytes) -> None:
        descriptor = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            while line:
                line = line[os.write(descriptor, line) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _last(self) -> tuple[Entry | None, bool]:
        """Return the last whole entry, and whether the file ends within a line, as after a crash."""
        size = self.file.stat().st_size
        block = BLOCK
        while True:
            with self.file.open("rb") as file:
                file.seek(max(0, size - block))
                end = file.read()
            lines = end.split(b"\n")
            first = 0 if block >= size else 1  # the first may lack its beginning
            for line in reversed(lines[first:]):
                if (entry := _parsed(line)) is not None:
                    return entry, not end.endswith(b"\n")
            if block >= size:
                return None, bool(end) and not end.endswith(b"\n")
            block *= 4

    def entries(self) -> Iterator[tuple[int, Entry | None]]:
        """Yield the number of each line and its entry, None if it is not a whole one."""
        try:
            with self.file.open("rb") as file:
                for number, line in enumerate(file, 1):
                    yield number, _parsed(line)
        except FileNotFoundError:
            raise UserError(f"{self.file}: there is no audit trail: nothing has left this site yet") from None
        except OSError as error:
            raise UserError(f"{self.file}: cannot be read: {error.strerror}") from None


# --- Checking ---


@dataclass(frozen=True)
class Verdict:
    """What a check of the whole trail has found."""

    entries: int
    head: str
    """The hash of the last entry."""
    torn: tuple[int, ...]
    """Lines that a crash left unfinished; what they were about did not leave."""
    kept: int | None
    """The number of the entry whose hash somebody has kept."""


def verify(trail: Trail, kept: str | None = None) -> Verdict:
    """Check every entry and the chain; raise where it was altered, or if the hash that was kept is not in it."""
    if kept is not None and len(kept) < SHOWN:
        raise UserError(f"--kept {kept}: give at least {SHOWN} digits of the hash")
    previous, number, torn = START, 0, []
    found = None
    for line, entry in trail.entries():
        if entry is None:
            torn.append(line)
            continue
        if entry["hash"] != _hash({key: value for key, value in entry.items() if key != "hash"}):
            raise RunFailed(f"{trail.file}: line {line}: this entry was altered after it was written")
        if entry["previous"] != previous or entry["entry"] != number + 1:
            where = f"line {line}: does not follow entry {number}" if number else f"line {line}: is not the beginning"
            raise RunFailed(f"{trail.file}: {where}; entries before it were altered, added or removed")
        previous, number = entry["hash"], entry["entry"]
        found = number if kept is not None and entry["hash"].startswith(kept) else found
    if kept is not None and found is None:
        raise RunFailed(f"{trail.file}: no entry has the hash {kept}; the trail was cut off or written anew since")
    return Verdict(number, previous, tuple(torn), found)


def shown(entry: Entry) -> str:
    """Return an entry on one line."""
    message = entry["message"]
    vectors = [f"{name} ({size:,} bytes, sha256 {digest[:SHOWN]})" for name, size, digest in _vectors(message)]
    figures = [key for key, value in message.items() if key not in ("site", "round") and _is_figure(value)]
    failure = [f"failure: {message['failure']}"] if "failure" in message else []
    is_round = entry["what"] == "round" and isinstance(message.get("round"), int)
    about = f"round {message['round'] + 1}" if is_round else entry["what"]
    left = ", ".join([*vectors, *(failure or figures)]) or "nothing but its name"
    words = [str(entry["entry"]), entry["time"], entry["run"] or "-", about, f"{entry['bytes']:,} bytes"]
    return readable("  ".join([*words, f"to {entry['to']}: {left}"]))


def _is_figure(value: object) -> bool:
    return value not in (None, [], {}) and not list(_vectors(value))


def _vectors(value: object, name: str = "") -> Iterator[tuple[str, int, str]]:
    """Yield name, length and hash of each vector in a message."""
    if isinstance(value, dict):
        if value.keys() == {"bytes", "sha256"}:
            yield name, value["bytes"], value["sha256"]
        else:
            for key, item in value.items():
                yield from _vectors(item, key)
    if isinstance(value, list):
        if len(value) == 2 and isinstance(value[0], str):
            yield from _vectors(value[1], repr(value[0]))
        else:
            for item in value:
                yield from _vectors(item, name)


# --- Lines ---


def _with_bytes(value: Any, change: Callable[[bytes], object]) -> Any:
    """Return a message with something else in place of bytes."""
    match value:
        case bytes():
            return change(value)
        case Mapping():
            return {str(key): _with_bytes(item, change) for key, item in value.items()}
        case list() | tuple():
            return [_with_bytes(item, change) for item in value]
    return value


def _fingerprint(vector: bytes) -> dict[str, object]:
    return {"bytes": len(vector), "sha256": hashlib.sha256(vector).hexdigest()}


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), default=str).encode()


def _hash(entry: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(entry)).hexdigest()


def _parsed(line: bytes) -> Entry | None:
    """Return a line's entry; None if the line is not a whole one."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    texts = ("time", "to", "what", "previous", "hash")
    if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in texts):
        return None
    whole = isinstance(entry.get("entry"), int) and isinstance(entry.get("message"), dict)
    return entry if whole and isinstance(entry.get("bytes"), int) and "run" in entry else None
