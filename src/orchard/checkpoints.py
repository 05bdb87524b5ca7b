"""Checkpoints: all that a run needs to go on, and nothing else.

A checkpoint is two files. `rounds-00018.safetensors` holds the tensors, each once and named by the SHA-256 of its
content, so that clients who share a model share it on disk too; models on the shelf are there already, under such
names. `rounds-00018.json` holds everything else, with its own SHA-256, and is written last: with it the checkpoint
exists. All is on the disk by then, so whatever a power cut leaves is the old checkpoint, the new one, or both.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from orchard.shelf import Shelf, content_name

KEPT = 2
COLLECTIONS: Mapping[str, Callable[[Any], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}


class Damaged(Exception):
    """A checkpoint that is not what was written."""


def write_checkpoint(folder: Path, rounds: int, content: Mapping[str, Any], shelf: Shelf | None = None) -> None:
    """Write a checkpoint after so many rounds; of the older ones, all but the last are then deleted."""
    folder.mkdir(exist_ok=True)
    path = folder / f"rounds-{rounds:05d}.json"
    there = shelf.models() if shelf else {}
    tensors: dict[str, Tensor] = {}
    state = _packed(content, tensors, {id(tensor): (name, tensor) for name, tensor in there.items()})
    shelved = {name: str(tensors.pop(name).dtype).removeprefix("torch.") for name in sorted(tensors.keys() & there)}
    if shelf and shelved:
        for name in shelved.keys() - shelf.needed:
            sync(shelf.path(name))
        sync(shelf.folder)
    write_tensors(path.with_suffix(".safetensors"), tensors)
    write_durably(path, json.dumps({"sha256": _sum(state), "shelved": shelved, "state": state}))
    for old in _newest_first(folder)[KEPT:]:
        old.unlink()
    kept = {path.stem for path in _newest_first(folder)}
    for file in folder.iterdir():
        if file.stem not in kept and file.is_file():
            file.unlink()
    if shelf:
        shelf.needed = _shelved(folder)


def read_newest(folder: Path, at_most: int | None = None, shelf: Shelf | None = None) -> tuple[Any, list[str]]:
    """Return the newest checkpoint that is whole (None if there is none), and what is wrong with newer ones.

    With `at_most`, those after more rounds than that are passed over.
    """
    problems: list[str] = []
    for path in _newest_first(folder):
        if at_most is not None and _rounds(path) > at_most:
            continue
        try:
            return _read(path, shelf), problems
        except Damaged as damage:
            problems.append(str(damage))
    return None, problems


def rounds_written(folder: Path) -> list[int]:
    """Return after how many rounds there are checkpoints, whole or not, the newest first."""
    return [_rounds(path) for path in _newest_first(folder)]


def forget_newer(folder: Path, rounds: int, shelf: Shelf) -> None:
    """Delete checkpoints after more rounds than so many: damaged ones must not count among the last two."""
    for path in _newest_first(folder):
        if _rounds(path) > rounds:
            path.unlink()
    shelf.needed = _shelved(folder)


def _newest_first(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("*.json") if re.fullmatch(r"rounds-\d+", path.stem)]
    return sorted(found, key=lambda path: (len(path.name), path.name), reverse=True)


def _rounds(path: Path) -> int:
    return int(path.stem.removeprefix("rounds-"))


def _shelved(folder: Path) -> frozenset[str]:
    """Return what checkpoints name of the shelf."""
    names: set[str] = set()
    for path in _newest_first(folder):
        with suppress(ValueError, KeyError, TypeError, RecursionError):  # which is damaged, and needs nothing
            names |= set(json.loads(path.read_text("utf-8"))["shelved"])
    return frozenset(names)


def _read(path: Path, shelf: Shelf | None) -> Any:
    try:
        written = json.loads(path.read_text("utf-8"))
        state, shelved = written["state"], dict(written.get("shelved", {}))
        if _sum(state) != written["sha256"]:
            raise Damaged(f"{path}: its checksum is wrong")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{path}: cannot be read: {error}") from None
    tensors = read_tensors(path.with_suffix(".safetensors"))
    for name, tensor in tensors.items():
        if content_name(tensor) != name:
            raise Damaged(f"{path.with_suffix('.safetensors')}: the checksum of a tensor is wrong")
    if shelf:
        tensors |= {name: _from_shelf(shelf, name, kind) for name, kind in shelved.items()}
    try:
        return _unpacked(state, tensors)
    except KeyError as missing:
        raise Damaged(f"{path.with_suffix('.safetensors')}: lacks the tensor {missing}") from None
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise Damaged(f"{path}: cannot be read: {error}") from None


def _from_shelf(shelf: Shelf, name: str, kind: str) -> Tensor:
    try:
        tensor = shelf.take(name, getattr(torch, kind))
    except (OSError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise Damaged(f"{shelf.path(name)}: cannot be read: {error}") from None
    if content_name(tensor) != name:
        raise Damaged(f"{shelf.path(name)}: its checksum is wrong")
    shelf.lay_down(tensor)  # where it was already: only the memory that reading it took is given back
    return tensor


def _sum(state: object) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _packed(value: Any, tensors: dict[str, Tensor], seen: dict[int, tuple[str, Tensor]]) -> Any:
    """Turn a state into JSON; tensors go into `tensors` and leave their names behind.

    What comes back must be what went in, so kinds that JSON would change (named tuples, enumerations) are refused.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is Tensor:
        if id(value) not in seen:  # the tensor stays referenced there, so that its id stays its own
            seen[id(value)] = content_name(value), value
        name, _ = seen[id(value)]
        if name not in tensors:
            tensors[name] = value.detach().cpu().contiguous()
        return {"tensor": name, "device": str(value.device)}
    if kind is np.ndarray:
        return {"array": _packed(torch.from_numpy(np.asarray(value, order="C")), tensors, seen)}
    if isinstance(value, np.generic):
        return {"scalar": _packed(np.asarray(value), tensors, seen)}
    if kind is list:
        return [_packed(item, tensors, seen) for item in value]
    if kind in COLLECTIONS.values():
        items = sorted(value) if kind in (set, frozenset) else value
        return {kind.__name__: _packed(list(items), tensors, seen)}
    if kind is dict:
        return {"dict": _packed([list(pair) for pair in value.items()], tensors, seen)}
    raise TypeError(f"a checkpoint cannot hold a {kind.__name__}")


def _unpacked(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    match value:
        case {"tensor": name, "device": device}:
            return tensors[name].to(device)
        case {"array": inner}:
            return _unpacked(inner, tensors).numpy()
        case {"scalar": inner}:
            return _unpacked(inner, tensors)[()]
        case {"dict": inner}:
            return dict(_unpacked(inner, tensors))
        case dict():
            ((kind, inner),) = value.items()
            if kind not in COLLECTIONS:
                raise ValueError(f"{kind!r} is unknown here; perhaps another version of Orchard wrote it")
            return COLLECTIONS[kind](_unpacked(inner, tensors))
        case list():
            return [_unpacked(item, tensors) for item in value]
    return value


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> None:
    """Write tensors, with a few words about them, whole or not at all."""
    with _settling(path) as temporary:
        save_tensors(temporary, tensors, about)


def save_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> None:
    """Write tensors, for the system to bring onto the disk when it likes."""
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(_apart(tensors), path, dict(about) if about else None)
        path.chmod(mode)  # which the library makes readable to its owner alone
    except SafetensorError as error:
        raise OSError(0, str(error), str(path)) from None


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as the library takes them: in order, and none within another's memory."""
    ordered = {name: tensor.contiguous() for name, tensor in tensors.items()}
    memory = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in ordered.values())
    overlap = any(end > start for (_, end), (start, _) in pairwise(memory))
    return {name: tensor.clone() for name, tensor in ordered.items()} if overlap else ordered


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read tensors into memory of their own, aligned as PyTorch aligns it: a product's last bits depend on that."""
    try:
        return {name: tensor.clone() for name, tensor in load_file(path).items()}
    except (OSError, SafetensorError) as error:
        raise Damaged(f"{path}: cannot be read: {error}") from None


def write_durably(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all, and onto the disk."""
    with _settling(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def _settling(path: Path) -> Iterator[Path]:
    """Let a file be written under another name, bring it onto the disk, then give it its name, and that too."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    with suppress(PermissionError):  # a system that cannot open folders keeps their names by itself
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
