"""Measures of class scores against labels.

With scores s and labels y over the classes that the samples hold:

    accuracy            the share of samples whose highest score is their own class's
    balanced accuracy   the mean over classes of the share of that class's samples that are classified correctly
    AUROC               the mean over classes k of P(p_k of a sample of k > p_k of another), ties counting half,
                        where p = softmax(s)

A sample with a score that is not finite is not classified correctly, and makes AUROC undefined. The last two
compare classes, so they are undefined if all samples are of one class. scikit-learn gives the same AUROC if every
class is present (tested), but refuses clients that lack one, and takes far longer.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Measures(NamedTuple):
    """One model on one set of samples; None where a measure is not defined."""

    accuracy: float
    balanced_accuracy: float | None = None
    auroc: float | None = None


def measure(scores: Tensor, labels: Tensor) -> Measures:
    """Return all measures of class scores against the true labels."""
    scores, labels = scores.cpu(), labels.cpu()  # at once, rather than figure by figure
    finite = scores.isfinite().all(1)
    right = (scores.argmax(1) == labels) & finite
    accuracy = int(right.sum()) / len(labels)
    present = torch.unique(labels)
    if len(present) < 2:
        return Measures(accuracy)
    size = scores.shape[1]
    hits, all_of_them = (torch.bincount(y, minlength=size)[present].double() for y in (labels[right], labels))
    auroc = _auroc(scores, labels, present) if bool(finite.all()) else None
    return Measures(accuracy, (hits / all_of_them).mean().item(), auroc)


def _auroc(scores: Tensor, labels: Tensor, present: Tensor) -> float:
    probabilities = torch.softmax(scores.double(), dim=1)  # in float32 sure ones would tie at 1
    areas = []
    for k in present:
        own, column = labels == k, probabilities[:, k]
        others, mine = column[~own].sort().values, column[own]
        below = torch.searchsorted(others, mine, right=False) + torch.searchsorted(others, mine, right=True)
        areas.append(below.sum().double() / (2 * len(others) * len(mine)))
    return torch.stack(areas).mean().item()
