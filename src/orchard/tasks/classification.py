"""Classification: each sample is of one class. Loss: cross-entropy.

With scores s and labels y over the classes that the samples hold:

    accuracy            the share of samples whose highest score is their own class's
    balanced accuracy   the mean over classes of the share of that class's samples that are classified correctly
    AUROC               the mean over classes k of P(p_k of a sample of k > p_k of another), ties counting half,
                        where p = softmax(s)

A sample with a score that is not finite is not classified correctly, and makes AUROC undefined. The last two
compare classes, so they are undefined if all samples are of one class. scikit-learn gives the same AUROC if every
class is present (tested), but refuses clients that lack one, and takes far longer.
"""

from typing import ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from orchard.errors import UserError
from orchard.tasks.task import Array, Measure, Measures, Rows, Task, area_under_roc, finite_rows, share_loss

LARGEST_LABEL = 9_999
"""A larger label is taken for a mistake in the data."""


class Classification(Task):
    """One class per sample: labels 0 … C−1."""

    name = "classification"
    score = "accuracy"
    measures: ClassVar = {
        "accuracy": Measure("accuracy", percent=True),
        "balanced_accuracy": Measure("balanced accuracy", percent=True),
        "auroc": Measure("AUROC"),
    }

    @classmethod
    def targets(cls, y: Array, place: str) -> Tensor:
        """Return one whole number for each sample; one-hot rows become one."""
        labels = y.reshape(-1)
        if len(labels) != len(y) and y.ndim == 2 and np.isin(y, (0, 1)).all() and (y.sum(axis=1) == 1).all():
            labels = y.argmax(axis=1)
        if labels.dtype == np.bool_ or is_whole(labels):
            labels = labels.astype(np.int64)
        if len(labels) != len(y) or not np.issubdtype(labels.dtype, np.integer):
            raise UserError(f"{place}: labels must be one whole number each, not {y.dtype} of shape {y.shape}")
        if labels.min() < 0:
            raise UserError(f"{place}: row {labels.argmin()}: label {labels.min()} is below 0")
        if labels.max() > LARGEST_LABEL:
            largest = f"label {labels.max()} is above {LARGEST_LABEL}, the largest allowed"
            raise UserError(f"{place}: row {labels.argmax()}: {largest}")
        return torch.from_numpy(labels.astype(np.int64))

    @classmethod
    def numbered(cls, y: Tensor) -> Self:
        """Return the classes 0 … C−1, where C−1 is the largest label."""
        return cls(tuple(map(str, range(int(y.max()) + 1))))

    def check(self, y: Tensor, place: str) -> None:
        """Raise if a label is none of the classes."""
        check_labels(y, len(self.classes), place)

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return one score per class."""
        return (len(self.classes),)

    def loss(self, outputs: Tensor, y: Tensor, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
        """Return the cross-entropy."""
        return functional.cross_entropy(outputs, y, reduction=reduction)

    def guess_loss(self, y: Tensor) -> float:
        """Return the loss of guessing by the frequency of labels, with one more sample of every class."""
        counts = torch.bincount(y.cpu(), minlength=len(self.classes)).double()
        return float((counts / len(y)) @ share_loss(counts, len(y)))

    def measure(self, outputs: Tensor, y: Tensor) -> Measures:
        """Return accuracy, balanced accuracy and AUROC."""
        scores, labels = outputs.cpu(), y.cpu()  # at once, rather than figure by figure
        finite = finite_rows(scores)
        right = (scores.argmax(1) == labels) & finite
        accuracy = int(right.sum()) / len(labels)
        present = torch.unique(labels)
        if len(present) < 2:
            return {"accuracy": accuracy, "balanced_accuracy": None, "auroc": None}
        size = scores.shape[1]
        hits, all_of_them = (torch.bincount(k, minlength=size)[present].double() for k in (labels[right], labels))
        auroc = _mean_auroc(scores, labels, present) if bool(finite.all()) else None
        return {"accuracy": accuracy, "balanced_accuracy": (hits / all_of_them).mean().item(), "auroc": auroc}

    def strata(self, y: Tensor) -> Tensor:
        """Return the labels."""
        return y

    def strata_names(self) -> list[str]:
        """Name the classes."""
        return list(self.classes)

    def counts(self, y: Tensor) -> list[int]:
        """Count the samples of each class."""
        counts: list[int] = torch.bincount(y, minlength=len(self.classes)).tolist()
        return counts

    def headings(self) -> list[str]:
        """Return class, label and a probability for each class."""
        return ["predicted", "label", *(f"p({name})" for name in self.classes)]

    def predictions(self, outputs: Tensor, y: Tensor | None) -> Rows:
        """Return the class with the highest score, and the softmax of the scores."""
        labels = [""] * len(outputs) if y is None else [self.classes[k] for k in y.tolist()]
        rows = zip(outputs.argmax(1).tolist(), labels, outputs.softmax(1).tolist(), strict=True)
        return [[self.classes[k], label, *(f"{p:.6g}" for p in shares)] for k, label, shares in rows]


def _mean_auroc(scores: Tensor, labels: Tensor, present: Tensor) -> float:
    probabilities = torch.softmax(scores.double(), dim=1)  # in float32 sure ones would tie at 1
    areas = [area_under_roc(probabilities[:, k], labels == k) for k in present]
    return torch.tensor([area for area in areas if area is not None], dtype=torch.float64).mean().item()


def confusion_matrix(outputs: Tensor, y: Tensor, classes: int) -> Tensor:
    """Count samples by their class (rows) and the class with the highest score (columns)."""
    pairs = y.flatten() * classes + outputs.argmax(1).flatten()
    return torch.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def check_labels(y: Tensor, classes: int, place: str) -> None:
    """Raise if a label is none of the classes."""
    if y.numel() and int(y.max()) >= classes:
        row = int(y.flatten(1).amax(1).argmax()) if y.dim() > 1 else int(y.argmax())
        raise UserError(f"{place}: row {row}: label {int(y.max())}, but there are {classes} classes from 0")


def is_whole(y: Array) -> bool:
    """Tell whether floats are all whole numbers."""
    return bool(np.issubdtype(y.dtype, np.floating) and np.isfinite(y).all() and (y == np.floor(y)).all())
