"""Offload the models that clients keep for long to memory-mapped files.

Under a download budget M, clients hold copies of different ages. Each version of a core is in memory only once, but in
the long run N clients hold about N/M·(ln M + 0.58) versions of each of N cores: more than fits into the memory of a
machine that trains them all. So a model that a client had before a round, and still has after it, is written to a
file once. From then on the client holds a tensor that is mapped from that file, and whose memory goes back to the
system after each round. A checkpoint names these files and need not write their content again.

Files are named by the SHA-256 of their content, and deleted when no client and no checkpoint needs them.
"""

import ctypes
import hashlib
import mmap
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from orchard.engines.guards import map_tensors

MOST = 30_000
"""Most files at a time: Linux allows a process 65,530 mappings. Further models stay in memory."""
WORTH_A_FILE = 1 << 20
"""Bytes of the smallest model to offload: smaller ones take little memory, and would need many files."""

OWN_FILE = re.compile(r"[0-9a-f]{64}|\.[0-9a-f]{64}\.new")


class Offloader:
    """A folder of offloaded models, used by one process and made with the first model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.needed: frozenset[str] = frozenset()
        """The files that checkpoints name."""
        self._by_name: WeakValueDictionary[str, Tensor] = WeakValueDictionary()
        self._mapped = WeakTensorKeyDictionary()  # a set of tensors by identity: sets compare tensors by value
        self._copies = WeakTensorKeyDictionary()  # the mapped copy of a model that is in memory too
        self._disk_is_full = False
        self._lock = Lock()

    def offload(self, state: Any, before: Iterable[Tensor] = ()) -> Any:
        """Return a client's state with the models of `before` mapped from files; these take no memory until used."""
        old = {id(tensor) for tensor in before}

        def replace(tensor: Tensor) -> Tensor:
            with self._lock:
                if id(tensor) in old and tensor not in self._mapped and self._takes(tensor):
                    tensor = self._put(tensor)
                if tensor in self._mapped:
                    _release(tensor)
            return tensor

        return map_tensors(state, replace)

    def models(self) -> dict[str, Tensor]:
        """Return the mapped models that are in use, by name."""
        return dict(self._by_name)

    def path(self, name: str) -> Path:
        """Return the file of a model."""
        return self.folder / name

    def take(self, name: str, dtype: torch.dtype) -> Tensor:
        """Return a model, mapped from its file."""
        tensor = self._by_name.get(name)
        if tensor is None:
            path = self.path(name)
            size = path.stat().st_size // dtype.itemsize
            # This keeps no file descriptor open: some systems allow 256.
            tensor = self._by_name[name] = torch.from_file(str(path), shared=False, size=size, dtype=dtype)
            self._mapped[tensor] = True
        return tensor

    def tidy(self) -> None:
        """Delete the files that no client and no checkpoint needs."""
        self._disk_is_full = False
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            ours = OWN_FILE.fullmatch(path.name) and not path.is_symlink()
            if ours and path.name not in self.needed and path.name not in self._by_name:
                with suppress(OSError):
                    path.unlink()

    def _takes(self, tensor: Tensor) -> bool:
        plain = type(tensor) is Tensor and not tensor.requires_grad and tensor.device.type == "cpu"
        large = tensor.dim() == 1 and tensor.nbytes >= WORTH_A_FILE
        return plain and large and len(self._by_name) < MOST and not self._disk_is_full

    def _put(self, tensor: Tensor) -> Tensor:
        """Return the mapped copy of a model; if the disk cannot take it, the model itself."""
        if tensor not in self._copies:
            name = content_name(tensor)
            try:
                if name not in self._by_name:
                    self._write(name, tensor)
                self._copies[tensor] = self.take(name, tensor.dtype)
            except (OSError, RuntimeError):
                self._disk_is_full = True  # or similar: no further attempt before the next `tidy`
                return tensor
        there: Tensor = self._copies[tensor]
        return there

    def _write(self, name: str, tensor: Tensor) -> None:
        """Write a file atomically: a checkpoint may need the existing one of this name."""
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.path(f".{name}.new")
        try:
            with temporary.open("wb") as file:
                file.write(_bytes(tensor))
                if name in self.needed:  # its replacement must be as durable
                    os.fsync(file.fileno())
            temporary.replace(self.path(name))
        finally:
            temporary.unlink(missing_ok=True)


def content_name(tensor: Tensor) -> str:
    """Return a tensor's name: the SHA-256 of its type, its shape and its bytes."""
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
    digest.update(_bytes(tensor))
    return digest.hexdigest()


def _release(tensor: Tensor) -> None:
    """Return the memory of a mapped tensor to the system; the file still has its content."""
    if hasattr(mmap, "MADV_DONTNEED"):  # else the system decides when
        start, length = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes)
        ctypes.CDLL(None).madvise(start, length, mmap.MADV_DONTNEED)


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
