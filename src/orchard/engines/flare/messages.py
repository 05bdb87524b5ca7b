"""Messages between a server and its sites, and the checks on each side.

A message is a dictionary of plain values and bytes: data, never code. A vector is float32, little-endian, under a
name that the method declares. An invalid message is rejected with a category: a short phrase that cannot carry data.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from orchard import __version__
from orchard.core.contract import ClientUpdate, Download
from orchard.core.evaluation import Scores
from orchard.core.federation import Federation
from orchard.core.measures import Measures
from orchard.method import Traffic

Message = Mapping[str, Any]

WIRE = np.dtype("<f4")
CATEGORY = re.compile(r"[a-z][a-z -]{0,39}")
VERSION = re.compile(r"[0-9A-Za-z.+-]{1,32}")
LARGEST_COUNT = 2**40
DATA_PARTS = ("train", "validation", "test")
FIGURES = ("after_training", "after_aggregation", "after_finetuning")


class MessageRejected(Exception):
    """A message is invalid; the exception's text is a category."""


def category(text: object) -> str:
    """Return the category that the other side sent, or "unknown" if it is not one."""
    return text if isinstance(text, str) and CATEGORY.fullmatch(text) else "unknown"


@dataclass(frozen=True)
class Bounds:
    """What received vectors must be: declared by the method, finite, and not too large."""

    traffic: Traffic
    norm: float

    @classmethod
    def of(cls, federation: Federation, factor: float) -> Self:
        """Bound norms by `factor` times that of an initial core model, which all parties can build."""
        core = federation.initial_core(0)
        if core.dtype != torch.float32:
            raise MessageRejected("model not float32")
        return cls(federation.traffic, factor * float(torch.linalg.vector_norm(core, dtype=torch.float64)))

    def vectors(self, pairs: object, declared: Mapping[str, int]) -> dict[str, Tensor]:
        """Check and return received vectors by name, each in memory that PyTorch has allocated and aligned."""
        if not isinstance(pairs, list | tuple) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
            raise MessageRejected("malformed")
        names = [name_of(pair[0], declared) for pair in pairs]
        if len(set(names)) < len(names):
            raise MessageRejected("malformed")
        return {name: self._vector(pair[1], declared[name]) for name, pair in zip(names, pairs, strict=True)}

    def _vector(self, content: object, length: int) -> Tensor:
        if not isinstance(content, bytes):
            raise MessageRejected("not bytes")
        if len(content) != length * WIRE.itemsize:
            raise MessageRejected("wrong length")
        vector = torch.empty(length)
        vector.numpy()[:] = np.frombuffer(content, WIRE)
        norm = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
        if not math.isfinite(norm):
            raise MessageRejected("not finite")
        if norm > self.norm:
            raise MessageRejected("norm too large")
        return vector


def packed(vector: Tensor) -> bytes:
    """Return a vector as bytes."""
    return vector.detach().cpu().contiguous().numpy().astype(WIRE, copy=False).tobytes()


# --- Server to site ---


def pack_download(download: Download, contents: dict[int, bytes]) -> Message:
    """Return a download as a message; `contents` caches packed vectors by the tensor's id."""
    for vector in download.vectors.values():
        if id(vector) not in contents:
            contents[id(vector)] = packed(vector)
    vectors = [[name, contents[id(vector)]] for name, vector in download.vectors.items()]
    return {"round": download.round, "vectors": vectors}


def unpack_download(message: Message, rounds: int, bounds: Bounds) -> Download:
    """Check and return a received download."""
    round = _count(message.get("round"), rounds)
    return Download(round, bounds.vectors(message.get("vectors"), bounds.traffic.down))


# --- Site to server ---


def pack_update(update: ClientUpdate, round: int) -> Message:
    """Return an update as a message."""
    figures = {name: getattr(update, name) for name in FIGURES}
    return {
        "round": round,
        "upload": [[name, packed(vector)] for name, vector in update.upload.items()],
        "selected": list(update.selected),
        "loss": update.loss,
        **{name: scores and scores.as_lists() for name, scores in figures.items()},
    }


def unpack_update(message: Message, round: int, bounds: Bounds, *, trained: bool) -> ClientUpdate:
    """Check and return the update of a round; without training it has no upload."""
    answered = message.get("round")
    if not isinstance(answered, int) or answered != round:
        raise MessageRejected("wrong round")
    selected = message.get("selected")
    if not isinstance(selected, list | tuple) or len(selected) > len(bounds.traffic.down):
        raise MessageRejected("malformed")
    expected = bounds.traffic.up if trained else {}
    loss, upload = message.get("loss"), bounds.vectors(message.get("upload"), expected)
    if upload.keys() != expected.keys():
        raise MessageRejected("incomplete upload")
    return ClientUpdate(
        upload=upload,
        selected=tuple(name_of(name, bounds.traffic.down) for name in selected),
        loss=None if loss is None else _number(loss, math.inf),
        **{name: _scores(message.get(name)) for name in FIGURES},
    )


@dataclass(frozen=True)
class Enrolment:
    """What a site reports before the first round: the shape of its samples, and how many of each class."""

    shape: tuple[int, ...]
    counts: Mapping[str, list[int]]
    """By part: train, validation, test."""


def pack_enrolment(enrolment: Enrolment) -> Message:
    """Return an enrolment as a message."""
    return {"orchard": __version__, "shape": list(enrolment.shape), "counts": dict(enrolment.counts)}


def unpack_enrolment(message: Message, classes: int) -> Enrolment:
    """Check and return a received enrolment."""
    shape, counts = message.get("shape"), message.get("counts")
    if not isinstance(shape, list | tuple) or not 1 <= len(shape) <= 8 or not isinstance(counts, Mapping):
        raise MessageRejected("malformed")
    checked: dict[str, list[int]] = {}
    for part in DATA_PARTS:
        row = counts.get(part)
        if not isinstance(row, list | tuple) or len(row) != classes:
            raise MessageRejected("wrong classes")
        checked[part] = [_count(n, LARGEST_COUNT) for n in row]
    if not sum(checked["train"]):
        raise MessageRejected("malformed")
    return Enrolment(tuple(_count(n, LARGEST_COUNT) for n in shape), checked)


def version_of(message: Message) -> str:
    """Return the version of Orchard that a party reports."""
    version = message.get("orchard")
    return version if isinstance(version, str) and VERSION.fullmatch(version) else "of unknown version"


def _scores(value: object) -> Scores | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise MessageRejected("malformed")
    return Scores(_measures(value[0]), _measures(value[1]))


def _measures(value: object) -> Measures:
    if not isinstance(value, list | tuple) or len(value) != len(Measures._fields) or value[0] is None:
        raise MessageRejected("malformed")
    return Measures(*(None if figure is None else _number(figure, 1.0) for figure in value))  # type: ignore[arg-type]


def _number(value: object, most: float) -> float:
    if not isinstance(value, float | int) or isinstance(value, bool):
        raise MessageRejected("malformed")
    if not math.isfinite(value) or not 0 <= value <= most:
        raise MessageRejected("figure out of range")
    return float(value)


def _count(value: object, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise MessageRejected("malformed")
    return value


def name_of(value: object, declared: Mapping[str, int]) -> str:
    """Return the name of a vector, if the method declares it."""
    if not isinstance(value, str) or value not in declared:
        raise MessageRejected("undeclared vector")
    return value
