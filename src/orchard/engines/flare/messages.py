"""What travels between a server and its sites, and what each side refuses of the other's.

A message is a dictionary of plain values and bytes, so that nothing which arrives is ever more than data. A model is
one flat vector of float32, little-endian. Whatever is not as agreed is refused with a category: a short word that
can carry no data.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from orchard.contract import Answer, Enrolment, Federation, Reply, Upload
from orchard.measures import Measures
from orchard.training import Scores

Message = Mapping[str, Any]

WIRE = np.dtype("<f4")
CATEGORY = re.compile(r"[a-z][a-z -]{0,39}")
LARGEST_COUNT = 2**40
DATA_PARTS = ("train", "validation", "test")
FIGURES = ("trained", "exchanged", "tuned")


class Refused(Exception):
    """A message that is not as agreed; its only word is a category."""


def category(text: object) -> str:
    """Return a category as the other side named it, if it is one."""
    return text if isinstance(text, str) and CATEGORY.fullmatch(text) else "unknown"


@dataclass(frozen=True)
class Bounds:
    """What a vector that arrives must be."""

    length: int
    norm: float

    @classmethod
    def of(cls, federation: Federation, factor: float) -> Self:
        """Measure in initial core models, which all parties can build."""
        core = federation.initial_core(0)
        if core.dtype != torch.float32:
            raise Refused("model not float32")
        return cls(core.numel(), factor * float(torch.linalg.vector_norm(core, dtype=torch.float64)))

    def vector(self, content: object) -> Tensor:
        """Return a vector that arrived, in memory of its own that PyTorch has aligned."""
        if not isinstance(content, bytes):
            raise Refused("not bytes")
        if len(content) != self.length * WIRE.itemsize:
            raise Refused("wrong length")
        vector = torch.empty(self.length)
        vector.numpy()[:] = np.frombuffer(content, WIRE)
        norm = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
        if not math.isfinite(norm):
            raise Refused("not finite")
        if norm > self.norm:
            raise Refused("norm too large")
        return vector


def packed(vector: Tensor) -> bytes:
    """Return a vector as it travels."""
    return vector.detach().cpu().contiguous().numpy().astype(WIRE, copy=False).tobytes()


# --- Server to site ---


def pack_reply(reply: Reply, contents: dict[int, bytes]) -> Message:
    """Return a reply as a message; `contents` keeps what was packed for others, by the tensor's id."""
    for vector in reply.models.values():
        if id(vector) not in contents:
            contents[id(vector)] = packed(vector)
    return {"round": reply.round, "models": [[i, contents[id(vector)]] for i, vector in reply.models.items()]}


def unpack_reply(message: Message, clients: int, rounds: int, bounds: Bounds) -> Reply:
    """Check and return a reply that arrived."""
    models = message.get("models")
    if not isinstance(models, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in models):
        raise Refused("malformed")
    indices = [_index(pair[0], clients) for pair in models]
    if len(set(indices)) < len(indices):
        raise Refused("malformed")
    round = _count(message.get("round"), rounds)
    return Reply(round, {i: bounds.vector(pair[1]) for i, pair in zip(indices, models, strict=True)})


# --- Site to server ---


def pack_answer(answer: Answer, round: int) -> Message:
    """Return an answer as a message."""
    figures = {name: getattr(answer, name) for name in FIGURES}
    return {
        "round": round,
        "upload": None if answer.upload is None else packed(answer.upload.vector),
        "wants": list(answer.wants),
        "loss": answer.loss,
        **{name: scores and [list(scores.validation), list(scores.test)] for name, scores in figures.items()},
    }


def unpack_answer(message: Message, round: int, clients: int, bounds: Bounds) -> Answer:
    """Check and return the answer to the reply of a round."""
    answered = message.get("round")
    if not isinstance(answered, int) or answered != round:
        raise Refused("wrong round")
    wants = message.get("wants")
    if not isinstance(wants, list | tuple) or len(wants) > clients:
        raise Refused("malformed")
    upload, loss = message.get("upload"), message.get("loss")
    return Answer(
        upload=None if upload is None else Upload(round, bounds.vector(upload)),
        wants=tuple(_index(want, clients) for want in wants),
        loss=None if loss is None else _number(loss, math.inf),
        **{name: _scores(message.get(name)) for name in FIGURES},
    )


def pack_enrolment(enrolment: Enrolment, counts: Mapping[str, list[int]]) -> Message:
    """Return what a site says of itself: the shape of its samples, and how many it has of each class."""
    return {"samples": enrolment.samples, "shape": list(enrolment.shape), "counts": dict(counts)}


def unpack_enrolment(message: Message, classes: int) -> tuple[Enrolment, dict[str, list[int]]]:
    """Check and return what a site says of itself."""
    shape, counts = message.get("shape"), message.get("counts")
    if not isinstance(shape, list | tuple) or not 1 <= len(shape) <= 8 or not isinstance(counts, Mapping):
        raise Refused("malformed")
    rows = {part: counts.get(part) for part in DATA_PARTS}
    checked: dict[str, list[int]] = {}
    for part, row in rows.items():
        if not isinstance(row, list | tuple) or len(row) != classes:
            raise Refused("wrong classes")
        checked[part] = [_count(n, LARGEST_COUNT) for n in row]
    samples = _count(message.get("samples"), LARGEST_COUNT)
    if samples != sum(checked["train"]) or samples == 0:
        raise Refused("malformed")
    return Enrolment(samples, tuple(_count(n, LARGEST_COUNT) for n in shape), classes), checked


def _scores(value: object) -> Scores | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise Refused("malformed")
    return Scores(_measures(value[0]), _measures(value[1]))


def _measures(value: object) -> Measures:
    if not isinstance(value, list | tuple) or len(value) != len(Measures._fields) or value[0] is None:
        raise Refused("malformed")
    return Measures(*(None if figure is None else _number(figure, 1.0) for figure in value))  # type: ignore[arg-type]


def _number(value: object, most: float) -> float:
    if not isinstance(value, float | int) or isinstance(value, bool):
        raise Refused("malformed")
    if not math.isfinite(value) or not 0 <= value <= most:
        raise Refused("figure out of range")
    return float(value)


def _count(value: object, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise Refused("malformed")
    return value


def _index(value: object, clients: int) -> int:
    return _count(value, clients - 1)
