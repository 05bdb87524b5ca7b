"""Every task from its data to a model that predicts: the same run, resumed, in more workers, read back, exported."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import orchard
from crashing import same
from helpers import SMALL, method
from orchard.errors import Stopped, UserError
from orchard.export.export import export_model
from orchard.export.predict import batches, load_predictor, predict
from orchard.runs.folder import RunFolder
from orchard.runs.result import Result
from orchard.runs.run import resume
from orchard.tasks.task import Measures
from task_data import SETTINGS, task_arrays

NEW = ("multilabel", "regression", "segmentation")
every_task = pytest.mark.parametrize("task", NEW)
METHODS: dict[str, dict[str, object]] = {
    "apple": method("apple", initial="shared"),
    "fedavg-ft": method("fedavg-ft"),
    "fedfomo": method("fedfomo"),
    "graft": method("graft"),
}
GOOD = {"multilabel": 0.9, "regression": 0.2, "segmentation": 0.8}
"""Scores that guessing is far from: it has AUROC 0.5, R² 0 and a Dice of the strokes of at most 0.5."""


def task_run(task: str, **changes: Any) -> Result:
    """Run a task on its small federation."""
    return orchard.run(data=task_arrays(task), **{**SMALL, **SETTINGS[task], "method": METHODS["graft"], **changes})


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Result, Path]]:
    """Return a task's run and its folder; each is run once."""
    root, known = tmp_path_factory.mktemp("runs"), dict[str, Result]()

    def run(task: str) -> tuple[Result, Path]:
        if task not in known:
            known[task] = task_run(task, out=root / task)
        return known[task], root / task

    return run


Ran = Callable[[str], tuple[Result, Path]]


@pytest.mark.parametrize("name", METHODS)
@every_task
def test_methods_learn_it(task: str, name: str) -> None:
    result = task_run(task, method=METHODS[name])
    figures = result.figures()
    assert result.task.name == task
    assert figures.best.score > GOOD[task]
    assert figures.best.score >= figures.last.score
    assert figures.validation_selected.score > GOOD[task] - 0.1
    assert figures.best.measures.keys() == result.task.measures.keys()
    assert figures.best.measures[result.task.score] == pytest.approx(figures.best.score)
    assert result.undefined_measures() == {}


@every_task
def test_a_run_that_was_interrupted_goes_on_to_the_same_result(task: str, ran: Ran, tmp_path: Path) -> None:
    asked = iter([False])
    with pytest.raises(Stopped):
        task_run(task, out=tmp_path / "run", stop=lambda: next(asked, True))
    assert same(resume(tmp_path / "run", task_arrays(task)), ran(task)[0])


@every_task
def test_the_number_of_workers_changes_nothing(task: str) -> None:
    assert same(*(task_run(task, method="fedfomo", rounds=2, workers=workers) for workers in (1, 2)))


@every_task
def test_a_run_is_read_back_with_its_task(task: str, ran: Ran) -> None:
    result, folder = ran(task)
    loaded = orchard.load(folder)
    assert loaded.task == result.task
    assert loaded.summary() == result.summary()
    assert RunFolder(folder).read("summary.json") == {"state": "finished", **result.summary()}


def test_numbers_have_the_mean_and_deviation_of_all_training_targets(ran: Ran) -> None:
    result, _ = ran("regression")
    agreed = result.distribution.scale
    assert agreed is not None
    ((mean,), (deviation,)) = agreed
    every = np.concatenate([given.y_train for given in task_arrays("regression")])
    assert mean == pytest.approx(every.mean(), rel=0.05)  # of 85 % of them: the rest is for validation
    assert deviation == pytest.approx(every.std(), rel=0.1)


def test_targets_that_do_not_tell_their_task_ask_for_it() -> None:
    arrays = task_arrays("regression")
    with pytest.raises(UserError, match=r'^y_train: holds whole numbers stored as floats.*task = "regression"$'):
        orchard.run(data=arrays, **SMALL)
    found = [
        orchard.run(data=task_arrays(task), **{**SMALL, "model": model, "rounds": 1}).task.name
        for task, model in (("multilabel", "mlp"), ("segmentation", "unet"))
    ]
    assert found == ["multilabel", "segmentation"]


def test_a_finding_that_a_client_lacks_is_left_out_and_a_client_without_any_is_named() -> None:
    arrays = task_arrays("multilabel")
    arrays[1].y_test[:, 2] = False
    arrays[2].y_test[:] = True
    result = orchard.run(data=arrays, **{**SMALL, **SETTINGS["multilabel"], "method": "separate"})
    assert result.undefined_measures() == {"auroc": ["client 2"], "average_precision": ["client 2"]}
    scores = result.scores()
    assert np.isnan(scores[:, 2]).all()
    assert result.last.score == pytest.approx(np.delete(scores[-1], 2).mean())
    assert result.last.score > 0.9


# --- Export ---


def measured(model: Path, task: str, client: int) -> Measures:
    """What `predict` measures on a client's test data."""
    given, file = task_arrays(task)[client], model.with_suffix(".npz")
    np.savez(file, x=given.x_test, y=given.y_test)
    predictor = load_predictor(model)
    count, found = predict(predictor, batches([file], predictor), io.StringIO())
    assert count == 30
    assert found is not None
    return found


@every_task
def test_an_exported_model_measures_what_its_run_did(task: str, ran: Ran, tmp_path: Path) -> None:
    result, folder = ran(task)
    scores = getattr(result.rounds[-1], result.experiment.method.moment)[1]
    export_model(folder, "1", tmp_path / "model.safetensors", "last")
    assert measured(tmp_path / "model.safetensors", task, 1) == scores.test
    export_model(folder, "1", tmp_path / "model.onnx", "last")
    assert measured(tmp_path / "model.onnx", task, 1) == pytest.approx(scores.test, rel=1e-4)


CARDS = {
    "multilabel": [
        "| on its own | samples | AUROC | average precision |",
        "This client's samples with each finding:",
        "a score for each finding; its sigmoid is a probability. Findings, in order: 0, 1, 2.",
    ],
    "regression": [
        "| on its own | samples | R² | MAE |",
        "This client's samples:",
        "prediction = mean + deviation·output. Targets, in order: target.",
        "- Mean: 15",
    ],
    "segmentation": [
        "| on its own | samples | Dice | IoU |",
        "This client's samples that hold each class:",
        "a score for each class and pixel; the highest is the pixel's class. Classes, in order: background, 1.",
    ],
}


@every_task
def test_the_card_says_what_the_outputs_mean(task: str, ran: Ran, tmp_path: Path) -> None:
    _, card = export_model(ran(task)[1], "0", tmp_path / "model.safetensors", "validation")
    text = card.read_text("utf-8")
    for words in CARDS[task]:
        assert words in text
    assert "accuracy" not in text


def test_predictions_are_in_the_targets_units(ran: Ran, tmp_path: Path) -> None:
    result, folder = ran("regression")
    export_model(folder, "0", tmp_path / "model.safetensors", "last")
    given = task_arrays("regression")[0]
    np.savez(tmp_path / "new.npz", x=given.x_test)
    predictor, table = load_predictor(tmp_path / "model.safetensors"), io.StringIO()
    assert predict(predictor, batches([tmp_path / "new.npz"], predictor), table)[1] is None
    head, *rows = table.getvalue().splitlines()
    assert head == "sample,target,true target"
    with torch.no_grad():
        outputs = result.personalised(0)(torch.from_numpy(given.x_test))
    expected = result.task.predictions(outputs, None)
    assert [row.split(",")[1:] for row in rows] == expected
    assert 50 < float(expected[0][0]) < 350
