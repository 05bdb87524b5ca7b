"""Multi-label classification: each sample has any number of findings. Loss: binary cross-entropy, mean over findings.

    AUROC               the mean over findings of P(output of a sample that has it > of one that has not)
    average precision   the mean over findings of the area under precision and recall, as scikit-learn computes it

Findings that all or none of the samples have are left out of the mean; without any other a measure is undefined, and
so it is if an output is not finite.
"""

from typing import ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from orchard.errors import UserError
from orchard.tasks.task import (
    Array,
    Measure,
    Measures,
    Rows,
    Task,
    area_under_roc,
    average_precision,
    finite_rows,
    mean_of_defined,
    share_loss,
)


class Multilabel(Task):
    """Any number of findings per sample: n×L zeros and ones."""

    name = "multilabel"
    score = "auroc"
    measures: ClassVar = {"auroc": Measure("AUROC"), "average_precision": Measure("average precision")}
    counted = "samples with each finding"
    nouns = ("finding", "findings")

    @classmethod
    def targets(cls, y: Array, place: str) -> Tensor:
        """Return zeros and ones, n×L."""
        if y.ndim != 2 or not np.isin(y, (0, 1)).all():
            got = f"{y.dtype} of shape {y.shape}"
            raise UserError(f"{place}: findings must be a 0 or 1 for each sample and finding, n×L, not {got}")
        return torch.from_numpy(y.astype(np.float32))

    @classmethod
    def numbered(cls, y: Tensor) -> Self:
        """Return the findings 0 … L−1."""
        return cls(tuple(map(str, range(y.shape[1]))))

    def check(self, y: Tensor, place: str) -> None:
        """Raise if there are more or fewer findings."""
        if y.shape[1] != len(self.classes):
            raise UserError(f"{place}: has {y.shape[1]} findings for each sample, not {len(self.classes)}")

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return one score per finding."""
        return (len(self.classes),)

    def loss(self, outputs: Tensor, y: Tensor, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
        """Return the binary cross-entropy, mean over findings."""
        loss = functional.binary_cross_entropy_with_logits(outputs, y.to(outputs.dtype), reduction=reduction)
        return loss / len(self.classes) if reduction == "sum" else loss

    def guess_loss(self, y: Tensor) -> float:
        """Return the loss of guessing each finding by its frequency, with one more sample of both kinds."""
        having = y.cpu().double().sum(0)
        both = torch.stack([having, len(y) - having])
        return float((both / len(y) * share_loss(both, len(y))).sum(0).mean())

    def measure(self, outputs: Tensor, y: Tensor) -> Measures:
        """Return mean AUROC and mean average precision."""
        auroc, precision = self.by_finding(outputs, y)
        return {"auroc": mean_of_defined(auroc), "average_precision": mean_of_defined(precision)}

    def by_finding(self, outputs: Tensor, y: Tensor) -> tuple[list[float | None], list[float | None]]:
        """Return AUROC and average precision of each finding; None where it is undefined."""
        scores, having = outputs.cpu().double(), y.cpu() > 0.5
        if not bool(finite_rows(scores).all()):
            return [None] * scores.shape[1], [None] * scores.shape[1]
        areas = [area_under_roc(column, has) for column, has in zip(scores.T, having.T, strict=True)]
        precisions = [average_precision(column, has) for column, has in zip(scores.T, having.T, strict=True)]
        return areas, [p if a is not None else None for a, p in zip(areas, precisions, strict=True)]

    def strata(self, y: Tensor) -> Tensor:
        """Return the first finding that each sample has, or L if it has none."""
        none = torch.ones(len(y), 1)
        return torch.cat([y.cpu(), none], dim=1).argmax(1)

    def strata_names(self) -> list[str]:
        """Name the findings, and none."""
        return [*self.classes, "none of them"]

    def counts(self, y: Tensor) -> list[int]:
        """Count the samples that have each finding."""
        counts: list[int] = y.sum(0).long().tolist()
        return counts

    def headings(self) -> list[str]:
        """Return the findings, the true ones, and a probability for each."""
        return ["predicted", "label", *(f"p({name})" for name in self.classes)]

    def predictions(self, outputs: Tensor, y: Tensor | None) -> Rows:
        """Return the findings with a probability above ½."""
        shares = outputs.sigmoid()
        known = [""] * len(outputs) if y is None else [self._named(row) for row in y.tolist()]
        rows = zip(shares.tolist(), known, strict=True)
        return [[self._named(row), label, *(f"{p:.6g}" for p in row)] for row, label in rows]

    def _named(self, shares: list[float]) -> str:
        return "; ".join(name for name, p in zip(self.classes, shares, strict=True) if p > 0.5)
