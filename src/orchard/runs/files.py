"""Tensors in files, written whole and read without trusting the file; JSON; formats."""

import json
import math
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchard import __version__
from orchard.errors import UserError
from orchard.whole import replacing

LARGEST = 1e300
HUGE = re.compile(r"\d[eE]\+?\d{3}|\d{300}")
"""What may be a larger number; without it, a text need not be parsed number by number, which takes twice as long."""

if TYPE_CHECKING:  # a site that waits, and is asked how it is, needs no PyTorch
    from torch import Tensor


class Damaged(Exception):
    """A file cannot be read, or its content is not what was written."""


def check_format(found: object, mine: int, what: str, place: object) -> None:
    """Raise if something has another format than this version of Orchard reads."""
    found = 1 if found is None else found  # format 1 had no such field
    if found != mine:
        newer = isinstance(found, int) and found > mine
        advice = "update Orchard" if newer else "use the Orchard that wrote it, or start again"
        raise UserError(
            f"{place}: is a {what} of format {found}, but Orchard {__version__} reads format {mine}; {advice}"
        )


def from_json(text: str | bytes) -> Any:
    """Parse JSON as `to_json` writes it: with finite numbers only."""
    text = text.decode() if isinstance(text, bytes) else text
    careful: dict[str, Any] = {"parse_float": _number, "parse_int": _number} if HUGE.search(text) else {}
    return json.loads(text, parse_constant=_number, **careful)


def _number(text: str) -> float:
    value: float = int(text) if text.lstrip("-").isdecimal() else float(text)
    if not abs(value) < LARGEST:
        raise ValueError(f"the number {text[:20]} is too large")
    return value


def to_json(content: object, **style: Any) -> str:
    """Return JSON; NaN and infinity become null, e.g. a mean over no clients."""
    return json.dumps(_defined(content), allow_nan=False, **style)


def _defined(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return None
        case list() | tuple():
            return [_defined(item) for item in value]
        case dict():
            return {key: _defined(item) for key, item in value.items()}
    return value


def write_tensors(path: Path, tensors: "Mapping[str, Tensor]", about: Mapping[str, str] | None = None) -> None:
    """Write tensors and metadata atomically, and wait for the disk."""
    with replacing(path) as temporary:
        save_tensors(temporary, tensors, about)


def save_tensors(path: Path, tensors: "Mapping[str, Tensor]", about: Mapping[str, str] | None = None) -> None:
    """Write tensors and metadata without waiting for the disk."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(_apart(tensors), path, dict(about) if about else None)
        path.chmod(mode)  # safetensors makes it readable to its owner only
    except SafetensorError as error:
        raise OSError(0, str(error), str(path)) from None


def _apart(tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """Return tensors as safetensors needs them: contiguous and not overlapping."""
    ordered = {name: tensor.contiguous() for name, tensor in tensors.items()}
    memory = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in ordered.values())
    overlap = any(end > start for (_, end), (start, _) in pairwise(memory))
    return {name: tensor.clone() for name, tensor in ordered.items()} if overlap else ordered


def read_tensors(path: Path) -> "dict[str, Tensor]":
    """Read tensors into memory that PyTorch allocates: a product's last bits depend on its alignment."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return {name: tensor.clone() for name, tensor in load_file(path).items()}
    except (OSError, SafetensorError) as error:
        raise Damaged(f"{path}: cannot be read: {error}") from None
