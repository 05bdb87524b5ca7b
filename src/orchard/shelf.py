"""The shelf: models that clients keep for long lie on the disk, and are in memory only while they are used.

Under a download budget M clients hold copies of different ages. Each version of a core is held once, whoever has it,
but in the long run N clients hold about N/M·(ln M + 0.58) versions of each of N cores: more than the memory of a
machine that trains them all. A model that a client had before its turn, and has after it still, is therefore written
to a file, once. What the client holds from then on is a tensor as before, mapped from that file, whose memory goes
back to the system after each turn. A checkpoint names what is here and need not write it again.

Files are named by the SHA-256 of their content, and deleted when neither a client nor a checkpoint has them.
"""

import ctypes
import hashlib
import mmap
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

MOST = 30_000
"""Models. Each is a mapping, of which Linux grants a process 65,530; what is beyond stays in memory."""
WORTH_A_FILE = 1 << 20
"""Bytes. Smaller models take little memory, and files of their own would be many."""


class Shelf:
    """A folder of models, for one process; it is made with the first of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.needed: frozenset[str] = frozenset()
        """What checkpoints name."""
        self._by_name: WeakValueDictionary[str, Tensor] = WeakValueDictionary()
        self._here = WeakTensorKeyDictionary()  # the same, for its keys alone: sets compare tensors by value
        self._laid_down = WeakTensorKeyDictionary()  # what lies here of a model that somebody has in memory too
        self._disk_is_full = False
        self._lock = Lock()

    def lay_down(self, state: Any, before: Iterable[Tensor] = ()) -> Any:
        """Return a client's state with the models that it had before already on the shelf.

        Those that are there take no memory until they are used again.
        """
        old = {id(tensor) for tensor in before}

        def replace(tensor: Tensor) -> Tensor:
            with self._lock:
                if id(tensor) in old and tensor not in self._here and self._takes(tensor):
                    tensor = self._put(tensor)
                if tensor in self._here:
                    _give_back(tensor)
            return tensor

        return _replaced(state, replace)

    def models(self) -> dict[str, Tensor]:
        """Return what is on the shelf and somebody has, by name."""
        return dict(self._by_name)

    def path(self, name: str) -> Path:
        """Return the file of a model."""
        return self.folder / name

    def take(self, name: str, dtype: torch.dtype) -> Tensor:
        """Return a model that is on the shelf."""
        tensor = self._by_name.get(name)
        if tensor is None:
            path = self.path(name)
            size = path.stat().st_size // dtype.itemsize
            # Private to this process, and without a descriptor of its own, of which there may be no more than 256.
            tensor = self._by_name[name] = torch.from_file(str(path), shared=False, size=size, dtype=dtype)
            self._here[tensor] = True
        return tensor

    def tidy(self) -> None:
        """Delete what neither a client nor a checkpoint has any more."""
        self._disk_is_full = False
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if path.name not in self.needed and path.name not in self._by_name:
                with suppress(OSError):
                    path.unlink()

    def _takes(self, tensor: Tensor) -> bool:
        plain = type(tensor) is Tensor and not tensor.requires_grad and tensor.device.type == "cpu"
        large = tensor.dim() == 1 and tensor.nbytes >= WORTH_A_FILE
        return plain and large and len(self._by_name) < MOST and not self._disk_is_full

    def _put(self, tensor: Tensor) -> Tensor:
        """Return a model from the shelf in place of one in memory; where the disk cannot take it, that one stays."""
        if tensor not in self._laid_down:
            name = content_name(tensor)
            try:
                if name not in self._by_name:
                    self._write(name, tensor)
                self._laid_down[tensor] = self.take(name, tensor.dtype)
            except (OSError, RuntimeError):
                self._disk_is_full = True  # or something like it: until there is room, perhaps, the next is not tried
                return tensor
        there: Tensor = self._laid_down[tensor]
        return there

    def _write(self, name: str, tensor: Tensor) -> None:
        """Write a file that is there whole or not at all: a checkpoint may need what is there under its name."""
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.path(f".{name}.new")
        try:
            with temporary.open("wb") as file:
                file.write(_bytes(tensor))
                if name in self.needed:  # what takes its place must be on the disk as it was
                    os.fsync(file.fileno())
            temporary.replace(self.path(name))
        finally:
            temporary.unlink(missing_ok=True)


def tensors_in(state: Any) -> list[Tensor]:
    """Return the tensors of a state."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    _replaced(state, note)
    return found


def content_name(tensor: Tensor) -> str:
    """Return a tensor's name: the SHA-256 of its type, its shape and its bytes."""
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
    digest.update(_bytes(tensor))
    return digest.hexdigest()


def _give_back(tensor: Tensor) -> None:
    """Return to the system the memory of a tensor that is mapped from a file, which has its content still."""
    if hasattr(mmap, "MADV_DONTNEED"):  # else the system decides by itself
        start, length = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes)
        ctypes.CDLL(None).madvise(start, length, mmap.MADV_DONTNEED)


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _replaced(value: Any, replace: Callable[[Tensor], Tensor]) -> Any:
    """Return a state with each of its tensors replaced."""
    if isinstance(value, Tensor):
        return replace(value)
    if type(value) in (list, tuple):
        return type(value)(_replaced(item, replace) for item in value)
    if type(value) is dict:
        return {key: _replaced(item, replace) for key, item in value.items()}
    return value
