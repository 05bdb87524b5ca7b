"""Regression: one or several numbers per sample. Loss: squared error, in units of the targets' deviation.

The network's outputs are standardised: prediction = mean + deviation·output, with the mean and deviation of the
training targets of all clients together. Clients mix models, so they must mean the same by an output. Separate
clients agree on both from three figures of each: count, mean and sum of squared deviations. An experiment can have
figures in their place that were known beforehand (`scale`).

    R²    1 − Σ(y − ŷ)² / Σ(y − ȳ)², mean over targets; undefined if a target does not vary
    MAE   the mean of |y − ŷ|, mean over targets, in the targets' units
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from orchard.errors import UserError
from orchard.tasks.task import Array, Measure, Measures, Moments, Rows, Task, finite_rows, mean_of_defined

STRATA = 5
ROUNDING = 1e-12
"""A smaller deviation, relative to the mean, is one of rounding: the targets are constant."""


@dataclass(frozen=True)
class Regression(Task):
    """Numbers: n×K."""

    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    """Of the training targets of all clients; empty until they have agreed."""
    known: bool = False
    """Whether both were known beforehand."""

    name: ClassVar[str] = "regression"
    score: ClassVar[str] = "r2"
    measures: ClassVar = {"r2": Measure("R²", low=-math.inf), "mae": Measure("MAE", high=math.inf)}
    targets_are: ClassVar[str] = "numbers to predict"
    counted: ClassVar[str] = "samples"
    nouns: ClassVar[tuple[str, str]] = ("target", "targets")
    by_class: ClassVar[bool] = False

    @classmethod
    def targets(cls, y: Array, place: str) -> Tensor:
        """Return finite numbers, n×K."""
        numbers = y[:, None] if y.ndim == 1 else y
        if numbers.ndim != 2 or numbers.dtype.kind not in "fiu":
            raise UserError(f"{place}: expected one or more numbers for each sample, not {y.dtype} of shape {y.shape}")
        with np.errstate(over="ignore"):  # too large values become infinite, and then raise below
            numbers = numbers.astype(np.float32)
        finite = np.isfinite(numbers).all(axis=1)
        if not finite.all():
            raise UserError(f"{place}: row {finite.argmin()}: the target is not a finite number")
        return torch.from_numpy(numbers)

    @classmethod
    def numbered(cls, y: Tensor) -> Self:
        """Return one target, or several that are numbered."""
        return cls(("target",) if y.shape[1] == 1 else tuple(f"target {k}" for k in range(y.shape[1])))

    def check(self, y: Tensor, place: str) -> None:
        """Raise if there are more or fewer numbers."""
        if y.shape[1] != len(self.classes):
            raise UserError(f"{place}: has {y.shape[1]} numbers for each sample, not {len(self.classes)}")

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return one number per target."""
        return (len(self.classes),)

    def loss(self, outputs: Tensor, y: Tensor, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
        """Return the squared error of standardised targets, mean over targets."""
        mean, deviation = (outputs.new_tensor(values) for values in (self.mean, self.deviation))
        loss = functional.mse_loss(outputs, (y.to(outputs.dtype) - mean) / deviation, reduction=reduction)
        return loss / len(self.classes) if reduction == "sum" else loss

    def guess_loss(self, y: Tensor) -> float:
        """Return the loss of always predicting the mean of these targets."""
        deviation = torch.tensor(self.deviation, dtype=torch.float64)
        return float((y.cpu().double() / deviation).var(0, correction=0).mean())

    def predicted(self, outputs: Tensor) -> Tensor:
        """Return outputs in the targets' units."""
        mean, deviation = (torch.tensor(values, dtype=torch.float64) for values in (self.mean, self.deviation))
        return mean + deviation * outputs.cpu().double()

    def measure(self, outputs: Tensor, y: Tensor) -> Measures:
        """Return R² and MAE; undefined if an output is not finite."""
        if not bool(finite_rows(outputs).all()):
            return {"r2": None, "mae": None}
        true = y.cpu().double()
        error = true - self.predicted(outputs)
        spreads = (true - true.mean(0)).square().sum(0).tolist()
        left = error.square().sum(0).tolist()
        varies = (true.amax(0) > true.amin(0)).tolist()  # the spread of equal numbers may be just above 0
        explained = [1 - e / s if v else None for e, s, v in zip(left, spreads, varies, strict=True)]
        return {"r2": mean_of_defined(explained), "mae": float(error.abs().mean())}

    def strata(self, y: Tensor) -> Tensor:
        """Return in which fifth of these samples each one's first target lies."""
        ranks = y[:, 0].argsort(stable=True).argsort(stable=True)
        return ranks * STRATA // len(y)

    def strata_names(self) -> list[str]:
        """Name the fifths."""
        return ["lowest fifth", "second", "third", "fourth", "highest fifth"]

    def counts(self, y: Tensor) -> list[int]:
        """Count the samples; all have every target."""
        return [len(y)] * len(self.classes)

    def headings(self) -> list[str]:
        """Return each target, predicted and true."""
        return [f"{kind}{name}" for kind in ("", "true ") for name in self.classes]

    def predictions(self, outputs: Tensor, y: Tensor | None) -> Rows:
        """Return the numbers in the targets' units."""
        known = [[""] * len(self.classes)] * len(outputs) if y is None else _texts(y)
        return [mine + theirs for mine, theirs in zip(_texts(self.predicted(outputs)), known, strict=True)]

    def asks_moments(self) -> bool:
        """Tell whether mean and deviation are still to be made of the targets."""
        return not self.known

    def moments(self, y: Tensor) -> Moments:
        """Return the count, and mean and sum of squared deviations of each target; nothing if the scale is known."""
        if self.known:
            return ()
        y = y.cpu().double()
        mean = y.mean(0)
        return [float(len(y)), *mean.tolist(), *(y - mean).square().sum(0).tolist()]

    def agreed(self, moments: Sequence[Moments]) -> Self:
        """Return the task with mean and deviation of all clients' targets; a constant target has deviation 1."""
        if self.known:
            return self
        table, size = np.array(moments, dtype=np.float64), len(self.classes)
        count, means, squares = table[:, :1], table[:, 1 : 1 + size], table[:, 1 + size :]
        mean = (count * means).sum(0) / count.sum()
        variance = (squares + count * (means - mean) ** 2).sum(0) / count.sum()
        deviation = np.sqrt(variance)
        deviation = np.where(deviation > ROUNDING * np.abs(mean), deviation, 1.0)
        return replace(self, mean=tuple(mean.tolist()), deviation=tuple(deviation.tolist()))

    def scale(self) -> list[list[float]] | None:
        """Return the agreed means and deviations."""
        return [list(self.mean), list(self.deviation)]


def _texts(values: Tensor) -> list[list[str]]:
    return [[f"{value:.6g}" for value in row] for row in values.tolist()]
