"""The key figures of a result: means over clients at three rounds, and each client by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from orchard.method import Moment
from orchard.tasks.task import Measures

if TYPE_CHECKING:
    from orchard.runs.result import Result

Array = NDArray[np.float64]
ALIKE = 0.01
"""Relationships that differ by less than this share of the strongest are told apart by nobody."""


@dataclass(frozen=True)
class RoundFigures:
    """Mean client test figures at a round chosen by some rule; a measure is None if undefined for every client."""

    round: int
    score: float
    """The task's own: accuracy, AUROC, R² or Dice."""
    measures: Measures


@dataclass(frozen=True)
class Figures:
    """A run's key figures: mean client test scores at three rounds, and each client's score at the best one."""

    best: RoundFigures
    last: RoundFigures
    validation_selected: RoundFigures
    clients: list[float]
    validation: float
    """The best mean client validation score, by which parameters may be chosen."""


@dataclass(frozen=True)
class ClientResult:
    """One client: its data, its test figures at the round of the BMCTA, its relationships after the last round."""

    name: str
    samples: int
    classes: dict[str, int]
    score: float
    measures: Measures
    self_relationship: float | None
    strongest_helpers: list[str]
    """Who helps it most; several who do so alike, nobody, or the method has no relationships."""

    @property
    def helped_by(self) -> str:
        """Who helps it most, in a word or two."""
        several = len(self.strongest_helpers)
        return f"{several} alike" if several > 1 else "".join(self.strongest_helpers) or "nobody"


def figures_of(result: "Result", moment: Moment | None = None) -> Figures:
    """Return the figures at a moment, by default the method's own."""
    test, validation = result.scores("test", moment), result.scores("validation", moment)
    means = mean_over_clients(test)
    measured = {name: result.scores("test", moment, name) for name in result.task.measures}

    def at(r: int) -> RoundFigures:
        others = {name: _mean_of_defined(values[r]) for name, values in measured.items()}
        return RoundFigures(r, float(means[r]), others)

    best = best_round(test)
    chosen = best_round(validation)
    value = float(mean_over_clients(validation)[chosen])
    return Figures(at(best), at(len(test) - 1), at(chosen), test[best].tolist(), value)


def clients_of(result: "Result") -> list[ClientResult]:
    """Return each client's data, test figures and relationships."""
    nothing: Measures = dict.fromkeys(result.task.measures)
    best = result.at_own_moment(figures_of(result).best.round)
    measured = [scores.test if scores else nothing for scores in best]
    held, names, related = result.distribution, result.distribution.clients, result.relationships
    counts, sizes = held.totals(), held.sizes()
    helpers = [list[str]() for _ in names] if related is None else strongest_helpers(related[-1], names)
    clients = []
    for i, name in enumerate(names):
        own = None if related is None else float(related[-1, i, i])
        classes = {c: int(n) for c, n in zip(held.classes, counts[i], strict=True) if n}
        score = measured[i][result.task.score]
        score = np.nan if score is None else score
        clients.append(ClientResult(name, int(sizes[i]), classes, score, measured[i], own, helpers[i]))
    return clients


def strongest_helpers(matrix: Array, names: Sequence[str]) -> list[list[str]]:
    """Return who helps each client most: several if they do so alike, none if nobody does."""
    others = np.where(np.eye(len(matrix), dtype=bool), 0.0, matrix)
    most = others.max(axis=1, keepdims=True)
    strongest = (others > 0) & (others >= most * (1 - ALIKE))
    return [[name for name, helps in zip(names, row, strict=True) if helps] for row in strongest.tolist()]


def mean_over_clients(scores: Array) -> Array:
    """Return the mean over clients by round; NaN if one lacks a figure.

    Left out is who lacks more than half of the figures: one client that fails again and again, or is refused, must not
    decide which round is best.
    """
    defined = ~np.isnan(scores)
    counted = 2 * defined.sum(axis=0) >= defined.any(axis=1).sum()
    means: Array = scores[:, counted].mean(axis=1) if counted.any() else np.full(len(scores), np.nan)
    return means


def best_round(scores: Array) -> int:
    """Return the first round with the best mean over clients, of those that have every client's figure."""
    means = mean_over_clients(scores)
    return int(np.nanargmax(means)) if not np.isnan(means).all() else len(means) - 1


def _mean_of_defined(values: Array) -> float | None:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else None
