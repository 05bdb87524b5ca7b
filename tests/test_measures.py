"""Every task's measures, by hand and against scikit-learn."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    f1_score,
    jaccard_score,
    mean_absolute_error,
    r2_score,
    roc_auc_score,
)
from sklearn.metrics import confusion_matrix as confusion_of_scikit_learn
from torch import Tensor

from helpers import classes, measures
from orchard.tasks.classification import confusion_matrix
from orchard.tasks.multilabel import Multilabel
from orchard.tasks.registry import TASKS
from orchard.tasks.regression import Regression
from orchard.tasks.segmentation import Segmentation
from orchard.tasks.task import Measure, Measures, average_precision

NAN, INF = float("nan"), float("inf")
SEEDS = st.integers(0, 2**32 - 1)


# --- Classification ---


def measure(scores: Tensor, labels: Tensor) -> Measures:
    return classes(scores.shape[1]).measure(scores, labels)


def test_by_hand() -> None:
    # Three samples of class 0, one of class 1; the second and third are taken for class 1.
    scores = torch.tensor([[3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 1.5]])
    labels = torch.tensor([0, 0, 0, 1])
    # Recalls 1/3 and 1. Of the three pairs the class 1 sample outranks two, from either class's side.
    assert measure(scores, labels) == pytest.approx(measures(0.5, 2 / 3, 2 / 3))
    assert confusion_matrix(scores, labels, 2).tolist() == [[1, 2], [0, 1]]


def test_ties_count_half() -> None:
    assert measure(torch.zeros(4, 3), torch.tensor([0, 1, 1, 2]))["auroc"] == 0.5


def test_one_class_has_no_balance_and_no_curve() -> None:
    assert measure(torch.eye(3), torch.tensor([1, 1, 1])) == measures(1 / 3, None, None)


def test_classes_that_nobody_has_do_not_count() -> None:
    scores, labels = torch.randn(50, 2), torch.randint(2, (50,))
    padded = torch.cat([scores, torch.full((50, 3), -1e9)], dim=1)
    assert measure(padded, labels) == pytest.approx(measure(scores, labels))


@given(st.integers(2, 6), SEEDS)
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
    table = confusion_matrix(scores, torch.from_numpy(labels), count)
    assert table.tolist() == confusion_of_scikit_learn(labels, scores.argmax(1), labels=range(count)).tolist()


def test_scores_that_are_not_finite_are_never_right() -> None:
    scores = torch.tensor([[NAN, 0.0], [INF, 0.0], [2.0, 1.0], [1.0, 2.0]])
    assert measure(scores, torch.tensor([0, 0, 0, 1])) == measures(2 / 4, (1 / 3 + 1) / 2, None)


# --- Multi-label ---


def findings(count: int) -> Multilabel:
    return Multilabel(tuple(map(str, range(count))))


def test_findings_by_hand() -> None:
    # Ranked 4, 3, 2, 1. The first finding: + − + −; the second: a tie of all; nobody has the third.
    outputs = torch.tensor([[4.0, 0.0, 1.0], [3.0, 0.0, 2.0], [2.0, 0.0, 3.0], [1.0, 0.0, 4.0]])
    y = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    areas, precisions = findings(3).by_finding(outputs, y)
    assert areas == [3 / 4, 1 / 2, None]
    assert precisions == pytest.approx([(1 + 2 / 3) / 2, 1 / 4, None])
    assert findings(3).measure(outputs, y) == pytest.approx({"auroc": 5 / 8, "average_precision": 13 / 24})


@given(st.integers(1, 5), SEEDS)
def test_findings_as_scikit_learn_measures_them(count: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    outputs = draw.normal(size=(8, count))[draw.integers(8, size=25)]  # with ties
    y = (draw.random(size=(25, count)) < draw.choice([0, 0.05, 0.5, 1], size=count)).astype(np.float32)
    areas, precisions = findings(count).by_finding(torch.from_numpy(outputs), torch.from_numpy(y))
    for k in range(count):
        if 0 < y[:, k].sum() < len(y):
            assert areas[k] == pytest.approx(roc_auc_score(y[:, k], outputs[:, k]), abs=1e-12)
            assert precisions[k] == pytest.approx(average_precision_score(y[:, k], outputs[:, k]), abs=1e-12)
        else:
            assert areas[k] is None
            assert precisions[k] is None
    known = [area for area in areas if area is not None]
    measured = findings(count).measure(torch.from_numpy(outputs), torch.from_numpy(y))
    assert measured["auroc"] == (pytest.approx(np.mean(known)) if known else None)


def test_a_perfect_ranking_is_exactly_1() -> None:
    """A server rejects the update of a site whose figure is above 1, if only by rounding."""
    for having in range(1, 200):
        assert average_precision(-torch.arange(having + 3.0), torch.arange(having + 3) < having) == 1.0


def test_findings_are_not_ranked_by_outputs_that_are_not_finite() -> None:
    outputs, y = torch.tensor([[1.0, NAN], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert findings(2).measure(outputs, y) == {"auroc": None, "average_precision": None}


# --- Regression ---


def numbers(count: int = 1) -> Regression:
    return Regression(tuple(map(str, range(count))), (0.0,) * count, (1.0,) * count)


def test_numbers_by_hand() -> None:
    # Outputs 0 and 2 stand for 10 and 14. Of 12 ± 2 squared, 8 in all, an error of 2 leaves 4.
    task = Regression(("grade",), (10.0,), (2.0,))
    measured = task.measure(torch.tensor([[0.0], [1.0]]), torch.tensor([[10.0], [14.0]]))
    assert measured == {"r2": 1 - 4 / 8, "mae": 1.0}
    assert task.predicted(torch.tensor([[0.0], [1.0]])).tolist() == [[10.0], [12.0]]


@given(st.integers(1, 4), SEEDS)
def test_numbers_as_scikit_learn_measures_them(count: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    y, predicted = (draw.normal(size=(20, count)) * 10 for _ in range(2))
    measured = numbers(count).measure(torch.from_numpy(predicted), torch.from_numpy(y))
    assert measured["r2"] == pytest.approx(r2_score(y, predicted), rel=1e-9)
    assert measured["mae"] == pytest.approx(mean_absolute_error(y, predicted), rel=1e-9)


@given(st.floats(-1e6, 1e6, width=32), st.integers(1, 30))
def test_a_target_that_does_not_vary_cannot_be_explained(value: float, count: int) -> None:
    y = torch.full((count, 2), value)
    y[:, 1] = torch.arange(count)
    outputs = torch.zeros(count, 2)
    assert numbers().measure(outputs[:, :1], y[:, :1])["r2"] is None
    alone = numbers().measure(outputs[:, 1:], y[:, 1:])["r2"]
    assert numbers(2).measure(outputs, y)["r2"] == alone  # the mean over the targets that vary
    assert (alone is None) == (count == 1)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_numbers_that_are_not_finite_have_no_measure(value: float) -> None:
    outputs, y = torch.tensor([[value], [1.0]]), torch.tensor([[0.0], [1.0]])
    assert numbers().measure(outputs, y) == {"r2": None, "mae": None}


# --- Segmentation ---


def regions(count: int) -> Segmentation:
    return Segmentation(tuple(map(str, range(count))))


def scored(labels: Tensor, count: int) -> Tensor:
    """Outputs that are highest for these labels."""
    return torch.nn.functional.one_hot(labels, count).movedim(-1, 1).float()


def test_regions_by_hand() -> None:
    true = torch.tensor([[[1, 1, 0], [0, 0, 2]]])
    predicted = torch.tensor([[[1, 0, 0], [0, 1, 2]]])
    # Class 1: one hit, one missed, one false; class 2 is right; nobody has class 3.
    measured = regions(4).measure(scored(predicted, 4), true)
    assert measured == pytest.approx({"dice": (2 / 4 + 1) / 2, "iou": (1 / 3 + 1) / 2})


@given(st.integers(2, 5), st.booleans(), SEEDS)
def test_regions_as_scikit_learn_measures_them(count: int, volumes: bool, seed: int) -> None:
    draw = np.random.default_rng(seed)
    shape = (3, 2, 4, 3) if volumes else (3, 4, 3)
    true, predicted = (draw.integers(draw.integers(1, count + 1), size=shape) for _ in range(2))
    measured = regions(count).measure(scored(torch.from_numpy(predicted), count), torch.from_numpy(true))
    held = sorted({*true.flat, *predicted.flat} - {0})
    if not held:
        assert measured == {"dice": None, "iou": None}
        return
    flat = true.flatten(), predicted.flatten()
    assert measured["dice"] == pytest.approx(f1_score(*flat, labels=held, average="macro", zero_division=0))
    assert measured["iou"] == pytest.approx(jaccard_score(*flat, labels=held, average="macro", zero_division=0))


def test_nothing_found_where_there_is_nothing_is_undefined_but_anything_else_is_wrong() -> None:
    nothing = torch.zeros(2, 3, 3, dtype=torch.long)
    assert regions(2).measure(scored(nothing, 2), nothing) == {"dice": None, "iou": None}
    assert regions(2).measure(scored(1 - nothing, 2), nothing) == {"dice": 0.0, "iou": 0.0}


@pytest.mark.parametrize("value", [NAN, INF])
def test_a_pixel_whose_output_is_not_finite_is_background(value: float) -> None:
    true = torch.ones(1, 2, 2, dtype=torch.long)
    outputs = scored(true, 2)
    outputs[0, 1, 0, 0] = value
    assert regions(2).measure(outputs, true) == {"dice": 2 * 3 / (3 + 4), "iou": 3 / 4}


# --- What people read ---


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_a_tasks_score_is_one_of_its_measures_and_at_most_1(task: type[Segmentation]) -> None:
    assert task.measures[task.score].high == 1
    assert math.isfinite(task.measures[task.score].low) == (task.name != "regression")


def test_a_measure_is_written_as_people_read_it() -> None:
    accuracy, r2 = Measure("accuracy", percent=True), Measure("R²", low=-INF)
    assert [accuracy.text(0.8125), accuracy.text(0.8125, 2), accuracy.text(None)] == ["81.2 %", "81.25 %", "–"]
    assert [r2.text(0.4567), r2.text(-12.5, 2), r2.text(NAN)] == ["0.457", "-12.5000", "–"]
    assert [accuracy.difference(0.0312), accuracy.difference(-0.25)] == ["+3.1", "-25.0"]
    assert [r2.difference(0.0312), r2.difference(-0.25)] == ["+0.031", "-0.250"]
    assert [accuracy.best_mean(), r2.best_mean()] == ["BMCTA", "best mean R²"]
