"""Accuracy, balanced accuracy and AUROC, by hand and against scikit-learn."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from torch import Tensor

from helpers import classes, measures
from orchard.tasks.task import Measures


def measure(scores: Tensor, labels: Tensor) -> Measures:
    return classes(scores.shape[1]).measure(scores, labels)


def test_by_hand() -> None:
    # Three samples of class 0, one of class 1; the second and third are taken for class 1.
    scores = torch.tensor([[3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 1.5]])
    labels = torch.tensor([0, 0, 0, 1])
    # Recalls 1/3 and 1. Of the three pairs the class 1 sample outranks two, from either class's side.
    assert measure(scores, labels) == pytest.approx(measures(0.5, 2 / 3, 2 / 3))


def test_ties_count_half() -> None:
    assert measure(torch.zeros(4, 3), torch.tensor([0, 1, 1, 2]))["auroc"] == 0.5


def test_one_class_has_no_balance_and_no_curve() -> None:
    assert measure(torch.eye(3), torch.tensor([1, 1, 1])) == measures(1 / 3, None, None)


def test_classes_that_nobody_has_do_not_count() -> None:
    scores, labels = torch.randn(50, 2), torch.randint(2, (50,))
    padded = torch.cat([scores, torch.full((50, 3), -1e9)], dim=1)
    assert measure(padded, labels) == pytest.approx(measure(scores, labels))


@given(st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_equal_to_scikit_learn_where_all_classes_are_present(count: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(count), draw.integers(count, size=30)])
    pool = torch.from_numpy(draw.normal(size=(12, count)))
    scores = pool[draw.integers(12, size=len(labels))]  # with ties
    probabilities = torch.softmax(scores, dim=1).numpy()
    if count == 2:
        area = roc_auc_score(labels, probabilities[:, 1])
    else:
        area = roc_auc_score(labels, probabilities, multi_class="ovr", labels=range(count))
    measured = measure(scores, torch.from_numpy(labels))
    assert measured["auroc"] == pytest.approx(area, abs=1e-9)
    assert measured["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, scores.argmax(1)))


def test_scores_that_are_not_finite_are_never_right() -> None:
    nan, inf = float("nan"), float("inf")
    scores = torch.tensor([[nan, 0.0], [inf, 0.0], [2.0, 1.0], [1.0, 2.0]])
    assert measure(scores, torch.tensor([0, 0, 0, 1])) == measures(2 / 4, (1 / 3 + 1) / 2, None)
