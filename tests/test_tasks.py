"""What a task is made of: its loss, what it takes for targets, how it counts and writes, and which one is meant."""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from orchard.errors import UserError
from orchard.tasks.classification import Classification
from orchard.tasks.multilabel import Multilabel
from orchard.tasks.registry import TASKS, suitable_task, task_named
from orchard.tasks.regression import Regression
from orchard.tasks.segmentation import Segmentation
from orchard.tasks.task import Task

SEEDS = st.integers(0, 2**32 - 1)
NAMES = ("a", "b", "c")

ALL = [
    Classification(NAMES),
    Multilabel(NAMES),
    Regression(NAMES, (1.0, -2.0, 0.5), (2.0, 0.5, 3.0)),
    Segmentation(NAMES),
]
every_task = pytest.mark.parametrize("task", ALL, ids=lambda task: task.name)


def drawn(task: Task, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Some outputs for samples of 4×5 pixels, and targets that go with them."""
    draw = np.random.default_rng(seed)
    outputs = torch.from_numpy(draw.normal(size=(count, *task.output_shape((1, 4, 5)))))
    targets: dict[str, Any] = {
        "classification": draw.integers(3, size=count),
        "multilabel": draw.integers(2, size=(count, 3)).astype(np.float32),
        "regression": draw.normal(size=(count, 3)).astype(np.float32),
        "segmentation": draw.integers(3, size=(count, 4, 5)),
    }
    return outputs, torch.from_numpy(targets[task.name])


# --- Loss ---


@every_task
@given(st.integers(1, 20), SEEDS)
def test_the_sum_is_the_mean_times_the_samples_and_adds_up_over_batches(task: Task, count: int, seed: int) -> None:
    outputs, y = drawn(task, count, seed)
    total = task.loss(outputs, y, "sum").item()
    assert total == pytest.approx(count * task.loss(outputs, y).item())
    single = [task.loss(outputs[k : k + 1], y[k : k + 1]).item() for k in range(count)]
    assert total == pytest.approx(sum(single))
    assert min(single) >= 0


def test_losses_by_hand() -> None:
    half = math.log(2)
    assert Classification(("a", "b")).loss(torch.zeros(3, 2), torch.tensor([0, 1, 1])).item() == pytest.approx(half)
    one_of_two = torch.tensor([[1.0, 0.0]])
    assert Multilabel(("a", "b")).loss(torch.zeros(1, 2), one_of_two).item() == pytest.approx(half)
    pixels = torch.zeros(1, 2, 3, 3), torch.zeros(1, 3, 3, dtype=torch.long)
    assert Segmentation(("a", "b")).loss(*pixels).item() == pytest.approx(half)
    # 14 is (14 − 10)/2 = 2 deviations above the mean.
    assert Regression(("a",), (10.0,), (2.0,)).loss(torch.tensor([[0.5]]), torch.tensor([[14.0]])).item() == 1.5**2


def test_a_guess_knows_how_frequent_targets_are_but_not_the_sample() -> None:
    labels = torch.tensor([0, 0, 0, 1])  # with one more of each class: 4/6 and 2/6
    guess = -(3 * math.log(4 / 6) + math.log(2 / 6)) / 4
    assert Classification(("a", "b")).guess_loss(labels) == pytest.approx(guess)
    assert Segmentation(("a", "b")).guess_loss(labels.reshape(1, 2, 2)) == pytest.approx(guess)
    having = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])  # 2/6 and 4/6, 1/6 and 5/6
    assert Multilabel(("a", "b")).guess_loss(having) == pytest.approx((guess - math.log(5 / 6)) / 2)
    assert Regression(("a",), (0.0,), (2.0,)).guess_loss(torch.tensor([[1.0], [5.0]])) == 1.0


@pytest.mark.parametrize("task", [Classification(NAMES), Segmentation(NAMES), Multilabel(NAMES)], ids=lambda t: t.name)
@given(st.integers(2, 30), SEEDS)
def test_a_guess_is_the_loss_of_constant_outputs(task: Task, count: int, seed: int) -> None:
    outputs, y = drawn(task, count, seed)
    if isinstance(task, Multilabel):
        having = y.double().sum(0)
        constant = ((having + 1) / (count - having + 1)).log()
    else:
        constant = (torch.bincount(y.flatten(), minlength=3) + 1).double().log()
    repeated = constant.reshape(1, 3, *[1] * (outputs.dim() - 2)).expand(outputs.shape)
    assert task.loss(repeated, y).item() == pytest.approx(task.guess_loss(y))


@given(st.integers(2, 30), SEEDS)
def test_no_constant_is_better_than_the_mean_of_numbers(count: int, seed: int) -> None:
    task = Regression(("a",), (3.0,), (2.0,))
    y = torch.from_numpy(np.random.default_rng(seed).normal(size=(count, 1)))
    best = (y.mean() - 3) / 2
    losses = [task.loss((best + step).expand(count, 1), y).item() for step in (-0.1, 0, 0.1)]
    assert losses[1] == pytest.approx(task.guess_loss(y)) == pytest.approx(min(losses))


# --- Regression's scale ---


@given(st.integers(1, 5), st.integers(1, 3), SEEDS)
def test_clients_agree_on_what_all_targets_together_give(clients: int, targets: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    task = Regression(tuple(map(str, range(targets))))
    parts = [
        torch.from_numpy(draw.normal(draw.normal() * 100, 5, size=(draw.integers(1, 20), targets)).astype(np.float32))
        for _ in range(clients)
    ]
    agreed = task.agreed([task.moments(part) for part in parts])
    together = torch.cat(parts).double()
    if len(together) > 1:
        assert agreed.mean == pytest.approx(together.mean(0).tolist())
        assert agreed.deviation == pytest.approx(together.std(0, correction=0).tolist())
    assert task.agreed([task.moments(together)]).mean == pytest.approx(agreed.mean)
    assert task.agreed([task.moments(together)]).deviation == pytest.approx(agreed.deviation)


@given(st.floats(-1e6, 1e6, width=32), st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_a_constant_target_has_deviation_1_however_it_is_rounded(value: float, sizes: list[int]) -> None:
    task = Regression(("target",))
    agreed = task.agreed([task.moments(torch.full((size, 1), value)) for size in sizes])
    assert agreed.mean == pytest.approx((value,))
    assert agreed.deviation == (1.0,)


def test_a_small_deviation_is_not_taken_for_rounding() -> None:
    task = Regression(("year",))
    years = torch.tensor([[1e6], [1e6 + 1]])
    assert task.agreed([task.moments(years)]).scale() == [[1e6 + 0.5], [0.5]]


def test_other_tasks_have_nothing_to_agree_on() -> None:
    for task in (Classification(NAMES), Multilabel(NAMES), Segmentation(NAMES)):
        assert task.moments(drawn(task, 3, 0)[1]) == ()
        assert task.agreed([(), ()]) is task
        assert task.scale() is None


# --- Counting ---


@every_task
@given(st.integers(1, 40), SEEDS)
def test_each_sample_is_of_one_stratum_that_has_a_name(task: Task, count: int, seed: int) -> None:
    _, y = drawn(task, count, seed)
    strata = task.strata(y)
    assert strata.shape == (count,)
    assert 0 <= int(strata.min()) <= int(strata.max()) < len(task.strata_names())
    if task.name == "regression":  # fifths, up to one sample
        sizes = torch.bincount(strata, minlength=5)
        assert int(sizes.max() - sizes.min()) <= 1


def test_strata_by_hand() -> None:
    assert Multilabel(NAMES).strata(torch.tensor([[0.0, 1, 1], [1, 0, 0], [0, 0, 0]])).tolist() == [1, 0, 3]
    assert Multilabel(NAMES).strata_names() == ["a", "b", "c", "none of them"]
    falling = torch.arange(10.0, 0, -1)[:, None]
    assert Regression(("a",)).strata(falling).tolist() == [4, 4, 3, 3, 2, 2, 1, 1, 0, 0]
    pictures = torch.tensor([[[0, 0, 0, 1, 2, 2]], [[0, 0, 0, 0, 0, 0]], [[1, 1, 2, 2, 0, 0]]])
    assert Segmentation(NAMES).strata(pictures).tolist() == [2, 0, 1]


def test_counts_by_hand() -> None:
    assert Classification(NAMES).counts(torch.tensor([2, 0, 2])) == [1, 0, 2]
    assert Multilabel(NAMES).counts(torch.tensor([[0.0, 1, 1], [1, 0, 1]])) == [1, 1, 2]
    assert Regression(("a", "b")).counts(torch.zeros(7, 2)) == [7, 7]
    assert Segmentation(NAMES).counts(torch.tensor([[[0, 2]], [[2, 2]]])) == [1, 0, 2]


# --- Predictions ---


def test_predictions_are_written_in_the_users_words() -> None:
    outputs = torch.tensor([[0.0, math.log(3)]])
    assert Classification(("cat", "dog")).headings() == ["predicted", "label", "p(cat)", "p(dog)"]
    assert Classification(("cat", "dog")).predictions(outputs, torch.tensor([0])) == [["dog", "cat", "0.25", "0.75"]]
    both = Multilabel(("nodule", "fluid"))
    assert both.predictions(outputs + 1, torch.tensor([[1.0, 1.0]]))[0][:2] == ["nodule; fluid", "nodule; fluid"]
    assert both.predictions(outputs, None) == [["fluid", "", "0.5", "0.75"]]
    grade = Regression(("grade",), (10.0,), (2.0,))
    assert grade.headings() == ["grade", "true grade"]
    assert grade.predictions(torch.tensor([[1.5]]), torch.tensor([[12.25]])) == [["13", "12.25"]]
    assert grade.predictions(torch.tensor([[1.5]]), None) == [["13", ""]]
    lesion = Segmentation(("background", "lesion"))
    pixels = torch.tensor([[[[0.0, 2, 0, 0]], [[1.0, 1, 1, 1]]]])
    assert lesion.headings() == ["share(background)", "share(lesion)", "true share(background)", "true share(lesion)"]
    assert lesion.predictions(pixels, torch.tensor([[[0, 0, 1, 1]]])) == [["0.25", "0.75", "0.5", "0.5"]]


@every_task
def test_a_row_has_a_cell_for_each_heading_with_targets_or_without(task: Task) -> None:
    outputs, y = drawn(task, 4, 0)
    for targets in (y, None):
        rows = task.predictions(outputs, targets)
        assert [len(row) for row in rows] == [len(task.headings())] * 4


# --- Which task is meant ---

WHOLE = np.array([0, 1, 2])


@pytest.mark.parametrize(
    ("y", "task"),
    [
        (WHOLE, Classification),
        (WHOLE.astype(np.uint8)[:, None], Classification),
        (np.array([True, False]), Classification),
        (np.array([0.5, 1.0]), Regression),
        (np.array([[0.5], [1.0]]), Regression),
        (np.array([[0.5, 3.0], [1.0, 2.0]]), Regression),
        (np.array([np.nan, 1.0]), Regression),  # whose own check says which row
        (np.array([[1, 1, 0], [0, 0, 0]]), Multilabel),
        (np.array([[1.0, 1.0], [0.0, 1.0]]), Multilabel),
        (np.array([[True, True], [False, True]]), Multilabel),
        (np.array([[1, 2], [3, 4]]), Classification),  # which then refuses them
        (np.zeros((2, 4, 4), int), Segmentation),
        (np.zeros((2, 4, 4, 4), int), Segmentation),
        (np.array(["cat", "dog"]), Classification),
    ],
)
def test_targets_that_are_obviously_for_one_task(y: Any, task: type[Task]) -> None:
    assert suitable_task(y, "data.npz") is task


@pytest.mark.parametrize(
    ("y", "question"),
    [
        (WHOLE.astype(float), 'whole numbers stored as floats.*task = "classification" or task = "regression"'),
        (np.eye(3), 'a single 1 in each row.*task = "classification" or task = "multilabel"'),
    ],
)
def test_targets_that_may_be_for_two_tasks_ask(y: Any, question: str) -> None:
    with pytest.raises(UserError, match=f"^data.npz: holds {question}$"):
        suitable_task(y, "data.npz")


def test_what_was_asked_can_be_answered_either_way() -> None:
    assert Classification.targets(np.eye(3)[[2, 0]], "y").tolist() == [2, 0]
    assert Multilabel.targets(np.eye(3)[[2, 0]], "y").tolist() == [[0, 0, 1], [1, 0, 0]]
    assert Classification.targets(WHOLE.astype(float), "y").tolist() == [0, 1, 2]
    assert Regression.targets(WHOLE.astype(float), "y").tolist() == [[0], [1], [2]]


# --- Targets ---


@pytest.mark.parametrize(
    ("task", "y", "refusal"),
    [
        (Classification, [0.5, 1.0], "labels must be one whole number each, not float64 of shape (2,)"),
        (Classification, [[1, 1], [0, 1]], "labels must be one whole number each, not int64 of shape (2, 2)"),
        (Classification, [0, -3, 1], "row 1: label -3 is below 0"),
        (Classification, [0, 10_000], "row 1: label 10000 is above 9999, the largest allowed"),
        (Multilabel, [0, 1], "findings must be a 0 or 1 for each sample and finding, n×L, not int64 of shape (2,)"),
        (Multilabel, [[0, 2]], "findings must be a 0 or 1 for each sample and finding, n×L, not int64 of shape (1, 2)"),
        (Multilabel, [[0, np.nan]], "findings must be a 0 or 1"),
        (Regression, [[1.0], [np.nan]], "row 1: the target is not a finite number"),
        (Regression, [1.0, 2.0, 1e39], "row 2: the target is not a finite number"),
        (Regression, ["1", "2"], "expected one or more numbers for each sample, not <U1 of shape (2,)"),
        (Regression, [[[1.0]]], "expected one or more numbers for each sample, not float64 of shape (1, 1, 1)"),
        (Segmentation, [0, 1], "expected a whole number for each pixel, n×h×w, not int64 of shape (2,)"),
        (Segmentation, [[[0.5]]], "expected a whole number for each pixel, n×h×w, not float64 of shape (1, 1, 1)"),
        (Segmentation, [[[0, -1]]], "label -1 of a pixel; expected 0 (background) to 255"),
        (Segmentation, [[[0, 256]]], "label 256 of a pixel; expected 0 (background) to 255"),
    ],
)
def test_targets_that_are_refused(task: type[Task], y: Any, refusal: str) -> None:
    with pytest.raises(UserError, match=f"^y: {re.escape(refusal)}"):
        task.targets(np.array(y), "y")


@pytest.mark.parametrize(
    ("task", "y", "refusal"),
    [
        (Classification(NAMES), torch.tensor([0, 3]), "row 1: label 3, but there are 3 classes from 0"),
        (Multilabel(NAMES), torch.zeros(1, 2), "has 2 findings for each sample, not 3"),
        (Regression(NAMES), torch.zeros(1, 1), "has 1 numbers for each sample, not 3"),
        (Segmentation(NAMES), torch.tensor([[[0, 0]], [[5, 0]]]), "row 1: label 5, but there are 3 classes from 0"),
    ],
)
def test_targets_that_do_not_fit_the_classes_agreed_upon(task: Task, y: Tensor, refusal: str) -> None:
    with pytest.raises(UserError, match=f"^y: {refusal}$"):
        task.check(y, "y")


def test_whole_numbers_are_labels_of_pixels_however_they_are_stored() -> None:
    for kind in (bool, np.uint8, np.int32, np.float32):
        assert Segmentation.targets(np.array([[[0, 1]]], dtype=kind), "y").tolist() == [[[0, 1]]]


def test_classes_without_names_are_numbered() -> None:
    assert Classification.numbered(torch.tensor([0, 2])).classes == ("0", "1", "2")
    assert Multilabel.numbered(torch.zeros(1, 2)).classes == ("0", "1")
    assert Regression.numbered(torch.zeros(1, 1)).classes == ("target",)
    assert Regression.numbered(torch.zeros(1, 2)).classes == ("target 0", "target 1")
    assert Segmentation.numbered(torch.zeros(1, 2, 2, dtype=torch.long)).classes == ("background", "1")
    assert Segmentation.numbered(torch.full((1, 2, 2), 2)).classes == ("background", "1", "2")


@every_task
def test_a_task_comes_back_by_its_name(task: Task) -> None:
    assert TASKS[task.name] is type(task)
    assert task_named(task.name, list(task.classes), task.scale()) == task
