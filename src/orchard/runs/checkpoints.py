"""Checkpoints: all that a run needs to resume.

A checkpoint is two files. `rounds-00018.safetensors` holds the tensors, each once and named by the SHA-256 of its
content, so that clients who share a model share it on disk too; offloaded models are in files of such names already.
`rounds-00018.json` holds everything else, with its own SHA-256. It is written last, after all other files are synced,
and completes the checkpoint: a power cut leaves the old checkpoint, the new one, or both.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orchard.engines.offload import Offloader, content_name
from orchard.runs.files import Damaged, check_format, read_tensors, write_tensors
from orchard.whole import sync, write_durably

FORMAT = 2
KEPT = 2
OWN_FILE = re.compile(r"\.?(rounds-\d+)\.(?:json|safetensors)(?:\.new)?")
COLLECTIONS: Mapping[str, Callable[[Any], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}


def write_checkpoint(
    folder: Path, rounds: int, content: Mapping[str, Any], offloader: Offloader | None = None, kept: int = KEPT
) -> None:
    """Write the checkpoint after `rounds` rounds; then delete all but the newest `kept`."""
    folder.mkdir(exist_ok=True)
    path = folder / f"rounds-{rounds:05d}.json"
    there = offloader.models() if offloader else {}
    tensors: dict[str, Tensor] = {}
    state = _packed(content, tensors, {id(tensor): (name, tensor) for name, tensor in there.items()})
    offloaded = {name: str(tensors.pop(name).dtype).removeprefix("torch.") for name in sorted(tensors.keys() & there)}
    if offloader and offloaded:
        for name in offloaded.keys() - offloader.needed:
            sync(offloader.path(name))
        sync(offloader.folder)
    write_tensors(path.with_suffix(".safetensors"), tensors)
    write_durably(path, json.dumps({"format": FORMAT, "sha256": _sum(state), "offloaded": offloaded, "state": state}))
    for old in _newest_first(folder)[kept:]:
        old.unlink()
    left = {path.stem for path in _newest_first(folder)}
    for file in folder.iterdir():
        ours = OWN_FILE.fullmatch(file.name)
        if ours and ours[1] not in left and file.is_file() and not file.is_symlink():
            file.unlink()
    if offloader:
        offloader.needed = _offloaded(folder)


def read_newest(folder: Path, at_most: int | None = None, offloader: Offloader | None = None) -> tuple[Any, list[str]]:
    """Return the newest undamaged checkpoint (None if there is none), and the problems of newer ones.

    Skip checkpoints after more than `at_most` rounds.
    """
    problems: list[str] = []
    for path in _newest_first(folder):
        if at_most is not None and _rounds(path) > at_most:
            continue
        try:
            return _read(path, offloader), problems
        except Damaged as damage:
            problems.append(str(damage))
    return None, problems


def rounds_written(folder: Path) -> list[int]:
    """Return after how many rounds there are checkpoints, damaged or not, the newest first."""
    return [_rounds(path) for path in _newest_first(folder)]


def delete_newer(folder: Path, rounds: int, offloader: Offloader) -> None:
    """Delete checkpoints after more than `rounds` rounds: damaged ones must not count among the two that are kept."""
    for path in _newest_first(folder):
        if _rounds(path) > rounds:
            path.unlink()
    offloader.needed = _offloaded(folder)


def _newest_first(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("*.json") if re.fullmatch(r"rounds-\d+", path.stem)]
    return sorted(found, key=lambda path: (len(path.name), path.name), reverse=True)


def _rounds(path: Path) -> int:
    return int(path.stem.removeprefix("rounds-"))


def _offloaded(folder: Path) -> frozenset[str]:
    """Return the names of the offloaded models that checkpoints need."""
    names: set[str] = set()
    for path in _newest_first(folder):
        with suppress(ValueError, KeyError, TypeError, RecursionError):  # a damaged one needs no models
            names |= set(json.loads(path.read_text("utf-8"))["offloaded"])
    return frozenset(names)


def _read(path: Path, offloader: Offloader | None) -> Any:
    try:
        written = json.loads(path.read_text("utf-8"))
        state, offloaded = written["state"], dict(written.get("offloaded", {}))
        if _sum(state) != written["sha256"]:
            raise Damaged(f"{path}: its checksum is wrong")
        check_format(written.get("format"), FORMAT, "checkpoint", path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{path}: cannot be read: {error}") from None
    tensors = read_tensors(path.with_suffix(".safetensors"))
    for name, tensor in tensors.items():
        if content_name(tensor) != name:
            raise Damaged(f"{path.with_suffix('.safetensors')}: the checksum of a tensor is wrong")
    if offloader:
        tensors |= {name: _from_offloader(offloader, name, kind) for name, kind in offloaded.items()}
    try:
        return _unpacked(state, tensors)
    except KeyError as missing:
        raise Damaged(f"{path.with_suffix('.safetensors')}: lacks the tensor {missing}") from None
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise Damaged(f"{path}: cannot be read: {error}") from None


def _from_offloader(offloader: Offloader, name: str, kind: str) -> Tensor:
    try:
        tensor = offloader.take(name, getattr(torch, kind))
    except (OSError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise Damaged(f"{offloader.path(name)}: cannot be read: {error}") from None
    if content_name(tensor) != name:
        raise Damaged(f"{offloader.path(name)}: its checksum is wrong")
    offloader.offload(tensor)  # it is offloaded already; this only releases the memory that reading it took
    return tensor


def _sum(state: object) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _packed(value: Any, tensors: dict[str, Tensor], seen: dict[int, tuple[str, Tensor]]) -> Any:
    """Return a state as JSON values; tensors go into `tensors` and are replaced by their names.

    Raise for types that would not be restored exactly, such as named tuples and enumerations.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is Tensor:
        if id(value) not in seen:  # which keeps the tensor alive, so that its id is not reused
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
