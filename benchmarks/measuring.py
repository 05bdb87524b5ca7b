"""Ratios measured in one run: contenders take turns, so that whatever else the machine does meets all of them."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """A ratio as often as it was measured, and the least or the most that it should be."""

    name: str
    values: tuple[float, ...]
    at_most: float | None = None
    at_least: float | None = None
    about: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def target(self) -> str:
        if self.at_most is not None:
            return f"≤ {self.at_most:g}"
        return "" if self.at_least is None else f"≥ {self.at_least:g}"

    @property
    def met(self) -> bool:
        low = -float("inf") if self.at_least is None else self.at_least
        high = float("inf") if self.at_most is None else self.at_most
        return low <= self.median <= high

    def as_json(self) -> dict[str, Any]:
        spread = {"median": self.median, "min": min(self.values), "max": max(self.values), "repeats": len(self.values)}
        return {"name": self.name, **spread, "target": self.target, "met": self.met, "about": self.about}

    def line(self) -> str:
        spread = f"({min(self.values):.3g} to {max(self.values):.3g})" if len(self.values) > 1 else ""
        verdict = f"{self.target:8} {'' if self.met else 'MISSED'}" if self.target else ""
        return f"{self.name:52} {self.median:7.3g}  {spread:18} {verdict:16} {self.about}".rstrip()


def interleaved(
    contenders: Mapping[str, Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = time.process_time,
    settle: bool = False,
) -> dict[str, list[float]]:
    """Let the contenders take turns; return the seconds that each took, after one turn to warm up.

    Settle: before each turn that counts take one that does not. Large tensors need pages of memory that the contender
    before has given back; in a run, where a client's steps follow each other, they are there already.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(repeats + 1):
        for name, contender in contenders.items():
            if settle and repeat:
                contender()
            began = clock()
            contender()
            if repeat:
                seconds[name].append(clock() - began)
    return seconds


def ratios(seconds: Mapping[str, list[float]], of: str, to: str) -> tuple[float, ...]:
    """Return how long one contender took for every second of another, turn by turn."""
    return tuple(a / b for a, b in zip(seconds[of], seconds[to], strict=True))


class Clock:
    """Adds up the time spent in some functions."""

    def __init__(self) -> None:
        self.spent = 0.0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.spent += time.perf_counter() - began

        return wrapper
