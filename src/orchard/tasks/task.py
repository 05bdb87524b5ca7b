"""What a task is. Methods and engines do not know which one they train for."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from numpy.typing import NDArray
from torch import Tensor

Measures = Mapping[str, float | None]
"""One model on one set of samples: values by the measure's name, None where a measure is not defined."""
Array = NDArray[Any]
Rows = list[list[str]]
Moments = Sequence[float]
"""Count, means and sums of squared deviations of targets; empty if a task needs none."""


@dataclass(frozen=True)
class Measure:
    """What a measure is called, which values it can have, and whether people read it in percent."""

    title: str
    low: float = 0.0
    high: float = 1.0
    percent: bool = False

    def text(self, value: float | None, digits: int = 1) -> str:
        """Return a value as people read it; `digits` after the point of a percentage."""
        if value is None or math.isnan(value):
            return "–"
        return f"{100 * value:.{digits}f} %" if self.percent else f"{value:.{digits + 2}f}"

    def floor(self) -> float:
        """Return where charts begin at the lowest: one failing model must not flatten all others."""
        return max(self.low, -1.0)

    def best_mean(self) -> str:
        """Name the best mean over clients of this measure on test data; of accuracy the paper does."""
        return "BMCTA" if self.title == "accuracy" else f"best mean {self.title}"

    def difference(self, value: float, digits: int = 1) -> str:
        """Return a difference between two values, with its sign; percentages differ by points."""
        if math.isnan(value):
            return "–"
        return f"{100 * value:+.{digits}f}" if self.percent else f"{value:+.{digits + 2}f}"


@dataclass(frozen=True)
class Task(ABC):
    """What a network's outputs stand for, and what they are compared with."""

    classes: tuple[str, ...]
    """What each output stands for: a class, a finding or a quantity."""

    name: ClassVar[str]
    score: ClassVar[str]
    """The measure that rounds are selected by; higher is better."""
    measures: ClassVar[Mapping[str, Measure]]
    targets_are: ClassVar[str] = "labels"
    nouns: ClassVar[tuple[str, str]] = ("class", "classes")
    """What people call one of the classes, and several."""
    by_class: ClassVar[bool] = True
    """Whether samples differ in the classes they hold; in regression each has every target."""
    counted: ClassVar[str] = "samples of each class"
    """What `counts` counts."""

    @classmethod
    @abstractmethod
    def targets(cls, y: Array, place: str) -> Tensor:
        """Return a user's targets; raise a UserError that names the place if they do not fit the task."""

    @classmethod
    def decoded(cls, targets: Sequence[Tensor]) -> list[Tensor]:
        """Return all targets of a dataset, part by part, with what only all of them together tell."""
        return list(targets)

    @classmethod
    @abstractmethod
    def numbered(cls, y: Tensor) -> Self:
        """Return the task of targets whose classes have no names but their numbers."""

    def check(self, y: Tensor, place: str) -> None:
        """Raise a UserError that names the place if targets do not fit the classes."""

    @abstractmethod
    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a network's output for one sample of this shape."""

    @abstractmethod
    def loss(self, outputs: Tensor, y: Tensor, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
        """Return the mean or the sum of all samples' losses. No sample's loss is negative."""

    @abstractmethod
    def guess_loss(self, y: Tensor) -> float:
        """Return the mean loss of the best guess that does not look at samples."""

    @abstractmethod
    def measure(self, outputs: Tensor, y: Tensor) -> Measures:
        """Return all measures of outputs against targets."""

    @abstractmethod
    def strata(self, y: Tensor) -> Tensor:
        """Return the stratum of each sample, 0, 1, …, by which data are split and partitioned."""

    @abstractmethod
    def strata_names(self) -> list[str]:
        """Name the strata."""

    @abstractmethod
    def counts(self, y: Tensor) -> list[int]:
        """Count the samples that hold each class."""

    @abstractmethod
    def headings(self) -> list[str]:
        """Return the columns of a table of predictions: what is predicted, what is true, then details."""

    @abstractmethod
    def predictions(self, outputs: Tensor, y: Tensor | None) -> Rows:
        """Return a row of that table for each sample."""

    def asks_moments(self) -> bool:
        """Tell whether clients must agree on a scale of the targets before training."""
        return False

    def moments(self, y: Tensor) -> Moments:
        """Return what the clients must agree on before training, as figures of one client's training targets."""
        return ()

    def agreed(self, moments: Sequence[Moments]) -> Self:
        """Return the task with what all clients' moments tell."""
        return self

    def scale(self) -> list[list[float]] | None:
        """Return the agreed means and deviations of the targets, if the task has them."""
        return None


def share_loss(counts: Tensor, total: Tensor | float) -> Tensor:
    """Return −log of the share of each class, with one more sample of every class."""
    return -((counts + 1) / (total + len(counts))).log()


def finite_rows(outputs: Tensor) -> Tensor:
    """Tell for each sample whether all its outputs are finite."""
    return outputs.flatten(1).isfinite().all(1)


def mean_of_defined(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are defined; None if none is."""
    defined = [value for value in values if value is not None]
    return sum(defined) / len(defined) if defined else None


def area_under_roc(scores: Tensor, positive: Tensor) -> float | None:
    """Return P(score of a positive > that of a negative), ties counting half; None if there is only one kind."""
    mine, others = scores[positive], scores[~positive].sort().values
    if not len(mine) or not len(others):
        return None
    below = torch.searchsorted(others, mine, right=False) + torch.searchsorted(others, mine, right=True)
    return (below.sum().double() / (2 * len(others) * len(mine))).item()


def average_precision(scores: Tensor, positive: Tensor) -> float | None:
    """Return Σ (R_k − R_{k−1})·P_k over falling thresholds, as scikit-learn does; None without a positive."""
    if not bool(positive.any()):
        return None
    order = scores.argsort(descending=True)
    ranked, hits = scores[order], positive[order].double().cumsum(0)
    last = torch.cat([ranked[1:] != ranked[:-1], torch.ones(1, dtype=torch.bool)])  # of equal scores
    found, seen = hits[last], torch.arange(1, len(scores) + 1, dtype=torch.float64)[last]
    gained = torch.diff(found, prepend=torch.zeros(1, dtype=torch.float64))
    return float((gained * found / seen).sum() / found[-1])  # divided last, so that rounding never gives more than 1
