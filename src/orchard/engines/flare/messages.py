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
from pydantic import ValidationError
from torch import Tensor

from orchard import __version__
from orchard.core.contract import ClientUpdate, Download
from orchard.core.evaluation import Scores
from orchard.core.federation import Federation
from orchard.data.statistics import Statistics
from orchard.data.tables.scaling import Moments as FeatureMoments
from orchard.method import Traffic
from orchard.settings import checked
from orchard.tasks.task import Measures, Moments, Task

Message = Mapping[str, Any]

WIRE = np.dtype("<f4")
CATEGORY = re.compile(r"[a-z][a-z -]{0,39}")
VERSION = re.compile(r"[0-9A-Za-z.+-]{1,32}")
LARGEST_COUNT = 2**40
LARGEST_TARGET = float(np.finfo(np.float32).max)
DATA_PARTS = ("train", "validation", "test")
FIGURES = ("after_training", "after_aggregation", "after_finetuning")


class MessageRejected(Exception):
    """A message is invalid; the exception's text is a category."""


def category(text: object) -> str:
    """Return the category that the other side sent, or "unknown" if it is not one."""
    return text if isinstance(text, str) and CATEGORY.fullmatch(text) else "unknown"


@dataclass(frozen=True)
class Bounds:
    """What received vectors must be: declared by the method, finite, and not too large; and figures: the task's."""

    traffic: Traffic
    norm: float
    task: Task

    @classmethod
    def of(cls, federation: Federation, factor: float) -> Self:
        """Bound norms by `factor` times that of an initial core model, which all parties can build."""
        core = federation.initial_core(0)
        if core.dtype != torch.float32:
            raise MessageRejected("model not float32")
        norm = factor * float(torch.linalg.vector_norm(core, dtype=torch.float64))
        return cls(federation.traffic, norm, federation.task)

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
        **{name: scores and scores.as_plain() for name, scores in figures.items()},
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
        loss=None if loss is None else _number(loss, 0.0, math.inf),
        **{name: _scores(message.get(name), bounds.task) for name in FIGURES},
    )


@dataclass(frozen=True)
class Enrolment:
    """What a site reports before the first round: the shape of its samples, how many it has, how many of each class."""

    shape: tuple[int, ...]
    samples: Mapping[str, int]
    """By part: train, validation, test."""
    counts: Mapping[str, list[int]]
    """By part: how many samples hold each class; under privacy that is not told."""
    moments: Moments = ()
    """Count, means and sums of squared deviations of the training targets, in regression."""
    numbers: FeatureMoments | None = None
    """The same of each number in a table, if sites standardise by all of them together."""


def pack_enrolment(enrolment: Enrolment) -> Message:
    """Return an enrolment as a message."""
    return {
        "orchard": __version__,
        "shape": list(enrolment.shape),
        "samples": dict(enrolment.samples),
        "counts": dict(enrolment.counts),
        "moments": list(enrolment.moments),
        "numbers": enrolment.numbers and enrolment.numbers.model_dump(mode="json"),
    }


def unpack_enrolment(message: Message, task: Task, numbers: int = 0, *, counted: bool = True) -> Enrolment:
    """Check and return a received enrolment; `numbers` columns of a table are standardised together.

    If sites do not tell how many samples hold each class, all their counts are 0.
    """
    shape, samples, counts = message.get("shape"), message.get("samples"), message.get("counts")
    if not isinstance(shape, list | tuple) or not 1 <= len(shape) <= 8:
        raise MessageRejected("malformed")
    if not isinstance(samples, Mapping) or not isinstance(counts, Mapping):
        raise MessageRejected("malformed")
    sizes = {part: _count(samples.get(part), LARGEST_COUNT) for part in DATA_PARTS}
    if not sizes["train"]:
        raise MessageRejected("malformed")
    rows: dict[str, list[int]] = {}
    for part in DATA_PARTS:
        row = counts.get(part) if counted else [0] * len(task.classes)
        if not isinstance(row, list | tuple) or len(row) != len(task.classes):
            raise MessageRejected("wrong classes")
        rows[part] = [_count(n, sizes[part]) for n in row]
        if counted and task.name == "classification" and sum(rows[part]) != sizes[part]:
            raise MessageRejected("malformed")
    dimensions = tuple(_count(n, LARGEST_COUNT) for n in shape)
    targets = _moments(message.get("moments"), task, sizes["train"])
    return Enrolment(dimensions, sizes, rows, targets, _features(message.get("numbers"), numbers, sizes["train"]))


def unpack_features(value: object) -> FeatureMoments:
    """Check and return the moments of a table's numbers."""
    try:
        return checked(FeatureMoments, value)
    except ValidationError:
        raise MessageRejected("malformed") from None


def unpack_statistics(message: Message, task: Task) -> Statistics:
    """Check and return what a site tells of its data before training."""
    try:
        told = checked(Statistics, message.get("statistics"))
    except ValidationError:
        raise MessageRejected("malformed") from None
    if list(told.classes) != (list(task.classes) if task.by_class else []):
        raise MessageRejected("wrong classes")
    return told


def _features(value: object, numbers: int, samples: int) -> FeatureMoments | None:
    """Check and return the moments of a site's numbers; none if sites do not share them."""
    if not numbers:
        return None
    moments = unpack_features(value)
    if len(moments.counts) != numbers or max(moments.counts) > samples:
        raise MessageRejected("malformed")
    return moments


def _moments(value: object, task: Task, samples: int) -> Moments:
    """Check and return the moments of a site's targets; a task without agreed targets has none."""
    size = len(task.classes) if task.asks_moments() else 0
    if not isinstance(value, list | tuple) or len(value) != (1 + 2 * size if size else 0):
        raise MessageRejected("malformed")
    if not size:
        return ()
    if value[0] != samples:
        raise MessageRejected("malformed")
    means = [_number(mean, -LARGEST_TARGET, LARGEST_TARGET) for mean in value[1 : 1 + size]]
    squares = [_number(square, 0.0, samples * LARGEST_TARGET**2) for square in value[1 + size :]]
    return [float(samples), *means, *squares]


def version_of(message: Message) -> str:
    """Return the version of Orchard that a party reports."""
    version = message.get("orchard")
    return version if isinstance(version, str) and VERSION.fullmatch(version) else "of unknown version"


def _scores(value: object, task: Task) -> Scores | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or value.keys() != {"validation", "test"}:
        raise MessageRejected("malformed")
    return Scores(_measures(value["validation"], task), _measures(value["test"], task))


def _measures(value: object, task: Task) -> Measures:
    if not isinstance(value, Mapping) or value.keys() != task.measures.keys():
        raise MessageRejected("malformed")
    return {
        name: None if value[name] is None else _number(value[name], measure.low, measure.high)
        for name, measure in task.measures.items()
    }


def _number(value: object, least: float, most: float) -> float:
    if not isinstance(value, float | int) or isinstance(value, bool):
        raise MessageRejected("malformed")
    if not math.isfinite(value) or not least <= value <= most:
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
