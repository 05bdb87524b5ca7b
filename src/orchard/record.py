"""One round's figures, and the line of `metrics.jsonl` that keeps them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self, get_args

from orchard.contract import Notes
from orchard.experiment import Moment
from orchard.measures import Measures
from orchard.training import Scores

PARTS = ("validation", "test")
MOMENTS: tuple[Moment, ...] = get_args(Moment)


@dataclass
class Round:
    """One round's figures, client by client; None where a client failed or has not come to it yet."""

    round: int
    time: str
    """When the round ended, in UTC."""
    seconds: float
    loss: list[float | None]
    trained: list[Scores | None]
    exchanged: list[Scores | None]
    tuned: list[Scores | None]
    bytes_up: list[int]
    bytes_down: list[int]
    notes: dict[str, list[Any]]
    failures: dict[int, str]

    def as_json(self) -> dict[str, Any]:
        """Return the line for `metrics.jsonl`: lists by client."""
        return {
            "round": self.round,
            "time": self.time,
            "seconds": self.seconds,
            "loss": self.loss,
            "trained": _columns(self.trained),
            "exchanged": _columns(self.exchanged),
            **({"tuned": _columns(self.tuned)} if any(self.tuned) else {}),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            **self.notes,
            "failures": {str(client): reason for client, reason in self.failures.items()},
        }

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Self:
        """Read a line of `metrics.jsonl` back."""
        known = {field.name for field in fields(cls)}
        figures = {name: value for name, value in line.items() if name in known}
        nobody = [None] * len(line["loss"])
        figures |= {moment: _scores(line[moment]) if moment in line else nobody for moment in MOMENTS}
        figures["failures"] = {int(client): reason for client, reason in line["failures"].items()}
        return cls(notes={name: value for name, value in line.items() if name not in known}, **figures)


def _columns(scores: Sequence[Scores | None]) -> dict[str, dict[str, list[float | None]]]:
    """Turn scores by client into lists by part and measure."""
    return {
        part: {name: [getattr(getattr(s, part), name) if s else None for s in scores] for name in Measures._fields}
        for part in PARTS
    }


def _scores(columns: Mapping[str, Mapping[str, list[Any]]]) -> list[Scores | None]:
    """Turn lists by part and measure back into scores by client."""
    by_part = [[Measures(*row) for row in zip(*columns[part].values(), strict=True)] for part in PARTS]
    return [None if pair[0].accuracy is None else Scores(*pair) for pair in zip(*by_part, strict=True)]


def by_name(notes: Sequence[Notes]) -> dict[str, list[Any]]:
    """Turn each client's notes into lists by client."""
    names: Mapping[str, None] = dict.fromkeys(name for note in notes for name in note)
    return {name: [note.get(name) for note in notes] for name in names}
