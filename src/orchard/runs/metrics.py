"""The outcome of an exchange, a round's figures, and the line of `metrics.jsonl` that stores them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self, get_args

from orchard.core.contract import ClientUpdate, Diagnostics, Failure
from orchard.core.evaluation import Scores
from orchard.engines.engine import Selections
from orchard.method import Moment

PARTS = ("validation", "test")
MOMENTS: tuple[Moment, ...] = get_args(Moment)


@dataclass(frozen=True)
class Exchange:
    """The outcome of one exchange of messages; without vectors, so that it keeps no models in memory."""

    round: int
    seconds: float
    updates: Mapping[int, ClientUpdate | Failure]
    bytes_down: Mapping[int, int]
    bytes_up: Mapping[int, int]
    diagnostics: Sequence[Diagnostics]
    selected: Selections
    """What each client selects for the next round."""

    def failures(self) -> list[Failure]:
        """Return the clients' failures."""
        return [update for update in self.updates.values() if isinstance(update, Failure)]


@dataclass
class Round:
    """One round's figures by client; None if a client failed or has not been evaluated yet."""

    round: int
    time: str
    """When the round ended, in UTC."""
    seconds: float
    loss: list[float | None]
    after_training: list[Scores | None]
    after_aggregation: list[Scores | None]
    after_finetuning: list[Scores | None]
    bytes_up: list[int]
    bytes_down: list[int]
    diagnostics: dict[str, list[Any]]
    failures: dict[int, str]

    def as_json(self) -> dict[str, Any]:
        """Return the line for `metrics.jsonl`: lists by client."""
        return {
            "round": self.round,
            "time": self.time,
            "seconds": self.seconds,
            "loss": self.loss,
            "after_training": _columns(self.after_training),
            "after_aggregation": _columns(self.after_aggregation),
            **({"after_finetuning": _columns(self.after_finetuning)} if any(self.after_finetuning) else {}),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            **self.diagnostics,
            "failures": {str(client): reason for client, reason in self.failures.items()},
        }

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Self:
        """Read a line of `metrics.jsonl` back."""
        if not all(isinstance(line[name], int | float) for name in ("round", "seconds")):
            raise TypeError("round and seconds are numbers")
        if not all(isinstance(n, int) for name in ("bytes_up", "bytes_down") for n in line[name]):
            raise TypeError("bytes are whole numbers")
        if not all(value is None or isinstance(value, int | float) for value in line["loss"]):
            raise TypeError("losses are numbers")
        known = {field.name for field in fields(cls)}
        figures = {name: value for name, value in line.items() if name in known}
        nobody = [None] * len(line["loss"])
        figures |= {moment: _scores(line[moment]) if moment in line else nobody for moment in MOMENTS}
        figures["failures"] = {int(client): reason for client, reason in line["failures"].items()}
        return cls(diagnostics={name: value for name, value in line.items() if name not in known}, **figures)


def _columns(scores: Sequence[Scores | None]) -> dict[str, Any]:
    """Turn scores by client into lists by part and measure; they say who was measured, unless all were."""
    first = next(filter(None, scores), None)
    if first is None:
        return {"measured": [False] * len(scores)}
    parts = {
        part: {name: [getattr(s, part)[name] if s else None for s in scores] for name in getattr(first, part)}
        for part in PARTS
    }
    return parts if all(scores) else {**parts, "measured": [s is not None for s in scores]}


def _scores(columns: Mapping[str, Any]) -> list[Scores | None]:
    """Turn lists by part and measure back into scores by client."""
    if not any(columns.get("measured", [True])):
        return [None] * len(columns["measured"])
    by_part = []
    for part in PARTS:
        if not all(v is None or isinstance(v, int | float) for values in columns[part].values() for v in values):
            raise TypeError("measures are numbers")
        rows = zip(*columns[part].values(), strict=True)
        by_part.append([dict(zip(columns[part], row, strict=True)) for row in rows])
    measured = columns.get("measured", [True] * len(by_part[0]))
    return [Scores(*pair) if known else None for known, *pair in zip(measured, *by_part, strict=True)]


def by_name(diagnostics: Sequence[Diagnostics]) -> dict[str, list[Any]]:
    """Turn each client's diagnostics into lists by client."""
    names: Mapping[str, None] = dict.fromkeys(name for note in diagnostics for name in note)
    return {name: [note.get(name) for note in diagnostics] for name in names}
