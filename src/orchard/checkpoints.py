"""Checkpoints: all that a run needs to go on, and nothing else.

A checkpoint is two files. `rounds-00018.safetensors` holds the tensors, each once and named by the SHA-256 of its
content, so that clients who share a model share it on disk too. `rounds-00018.json` holds everything else, with its
own SHA-256, and is written last: with it the checkpoint exists. Both are on the disk before they take their names,
so whatever a power cut leaves is the old checkpoint, the new one, or both.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

KEPT = 2


class Damaged(Exception):
    """A checkpoint that is not what was written."""


def write_checkpoint(folder: Path, rounds: int, content: Mapping[str, Any]) -> None:
    """Write a checkpoint after so many rounds; of the older ones, all but the last are then deleted."""
    folder.mkdir(exist_ok=True)
    path = folder / f"rounds-{rounds:05d}.json"
    tensors: dict[str, Tensor] = {}
    state = _packed(content, tensors, {})
    write_tensors(path.with_suffix(".safetensors"), tensors)
    write_durably(path, json.dumps({"sha256": _sum(state), "state": state}))
    for old in _newest_first(folder)[KEPT:]:
        old.unlink()
    kept = {path.stem for path in _newest_first(folder)}
    for file in folder.iterdir():
        if file.stem not in kept:
            file.unlink()


def read_newest(folder: Path, at_most: int | None = None) -> tuple[Any, list[str]]:
    """Return the newest checkpoint that is whole (None if there is none), and what is wrong with newer ones.

    With `at_most`, those after more rounds than that are passed over.
    """
    problems: list[str] = []
    for path in _newest_first(folder):
        if at_most is not None and int(path.stem.removeprefix("rounds-")) > at_most:
            continue
        try:
            return _read(path), problems
        except Damaged as damage:
            problems.append(str(damage))
    return None, problems


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("rounds-*.json"), key=lambda path: (len(path.name), path.name), reverse=True)


def _read(path: Path) -> Any:
    try:
        written = json.loads(path.read_text("utf-8"))
        state = written["state"]
        if _sum(state) != written["sha256"]:
            raise Damaged(f"{path}: its checksum is wrong")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{path}: cannot be read: {error}") from None
    tensors = read_tensors(path.with_suffix(".safetensors"))
    for name, tensor in tensors.items():
        if content_name(tensor) != name:
            raise Damaged(f"{path.with_suffix('.safetensors')}: the checksum of a tensor is wrong")
    try:
        return _unpacked(state, tensors)
    except KeyError as missing:
        raise Damaged(f"{path.with_suffix('.safetensors')}: lacks the tensor {missing}") from None


def _sum(state: object) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _packed(value: Any, tensors: dict[str, Tensor], seen: dict[int, tuple[str, Tensor]]) -> Any:
    """Turn a state into JSON; tensors go into `tensors` and leave their names behind."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Tensor():
            if id(value) not in seen:  # the tensor stays referenced there, so that its id stays its own
                name = content_name(value)
                tensors.setdefault(name, value.detach().cpu().contiguous())
                seen[id(value)] = name, value
            return {"tensor": seen[id(value)][0], "device": str(value.device)}
        case np.ndarray():
            return {"array": _packed(torch.from_numpy(value), tensors, seen)}
        case list():
            return [_packed(item, tensors, seen) for item in value]
        case tuple():
            return {"tuple": _packed(list(value), tensors, seen)}
        case set() | frozenset():
            return {"set": _packed(sorted(value), tensors, seen)}
        case Mapping():
            return {"map": _packed([list(pair) for pair in value.items()], tensors, seen)}
    raise TypeError(f"a checkpoint cannot hold a {type(value).__name__}")


def _unpacked(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    match value:
        case {"tensor": name, "device": device}:
            return tensors[name].to(device)
        case {"array": inner}:
            return _unpacked(inner, tensors).numpy()
        case {"tuple": inner}:
            return tuple(_unpacked(inner, tensors))
        case {"set": inner}:
            return frozenset(_unpacked(inner, tensors))
        case {"map": inner}:
            return dict(_unpacked(inner, tensors))
        case list():
            return [_unpacked(item, tensors) for item in value]
    return value


def content_name(tensor: Tensor) -> str:
    """Return a tensor's name: the SHA-256 of its type, its shape and its bytes."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
    digest.update(flat.numpy().data)
    return digest.hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> None:
    """Write tensors, with a few words about them, whole or not at all."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.touch()
    mode = temporary.stat().st_mode
    try:
        save_file(dict(tensors), temporary, dict(about) if about else None)
        temporary.chmod(mode)  # which the library makes readable to its owner alone
    except SafetensorError as error:
        raise OSError(0, str(error)) from None
    _settle(temporary, path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read tensors into memory of their own, aligned as PyTorch aligns it: a product's last bits depend on that."""
    try:
        return {name: tensor.clone() for name, tensor in load_file(path).items()}
    except (OSError, SafetensorError) as error:
        raise Damaged(f"{path}: cannot be read: {error}") from None


def write_durably(path: Path, text: str) -> None:
    """Write a text whole or not at all, and onto the disk."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, "utf-8")
    _settle(temporary, path)


def _settle(temporary: Path, path: Path) -> None:
    """Bring a file onto the disk, then give it its name, then bring the name onto the disk."""
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    with suppress(PermissionError):  # a system that cannot open folders keeps their names by itself
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
