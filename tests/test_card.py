"""The model card's figures by class, or by finding, on the client's own test samples."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, confusion_matrix, precision_score, recall_score, roc_auc_score

import orchard
from helpers import small_arrays, small_run
from orchard.data.division import federated_data
from orchard.export.export import export_model
from orchard.runs.result import Result

FAST: dict[str, Any] = {"model": "mlp", "rounds": 2, "epochs": 2, "batch_size": 16, "lr": 0.05, "method": "fedavg-ft"}


def ran(folder: Path, y: NDArray[Any], **settings: Any) -> Result:
    """Run on an .npz of features that tell the classes apart, roughly."""
    draw = np.random.default_rng(0)
    tells = y if y.ndim == 2 else np.eye(y.max() + 1)[y]
    np.savez(folder / "data.npz", x=(tells + draw.normal(0, 0.6, tells.shape)).astype(np.float32), y=y)
    given = {"clients": 2, "partition": "iid", "layout": "features", **settings}
    return orchard.run(dataset=str(folder / "data.npz"), out=folder / "run", **FAST, **given)


def held_out(result: Result, client: int) -> tuple[torch.Tensor, NDArray[Any]]:
    """What the model gives for a client's test samples, and their targets."""
    test = federated_data(result.experiment).clients[client].test
    with torch.inference_mode():
        return result.personalised(client)(test.x), test.y.numpy()


def cells(folder: Path, first: str) -> list[list[str]]:
    """The rows of the card's table that begins so."""
    _, card = export_model(folder / "run", "1", folder / "model.safetensors", "last")
    lines = card.read_text("utf-8").split(f"| {first} | ")[1].split("\n\n")[0].splitlines()
    return [line.strip("| ").split(" | ") for line in lines[2:]]


def test_few_classes_have_a_confusion_matrix(tmp_path: Path) -> None:
    result = ran(tmp_path, np.random.default_rng(1).integers(3, size=200))
    outputs, y = held_out(result, 1)
    named, guessed = [0, 1, 2], outputs.argmax(1).numpy()
    rows = cells(tmp_path, "true ↓ predicted →")
    assert [row[0] for row in rows] == ["0", "1", "2"]
    table = confusion_matrix(y, guessed, labels=named)
    assert [[int(count) for count in row[1:4]] for row in rows] == table.tolist()
    assert [int(row[4]) for row in rows] == np.bincount(y).tolist()
    expected = recall_score(y, guessed, average=None), precision_score(y, guessed, average=None)
    assert [row[5:] for row in rows] == [[f"{r:.4f}", f"{p:.4f}"] for r, p in zip(*expected, strict=True)]


def test_many_classes_have_recall_and_precision_alone(tmp_path: Path) -> None:
    result = ran(tmp_path, np.append(np.random.default_rng(1).integers(12, size=300), 12))
    _, y = held_out(result, 1)
    rows = cells(tmp_path, "class")
    assert [row[1] for row in rows] == [str(count) for count in np.bincount(y, minlength=13)]
    assert rows[12] == ["12", "0", "–", "–"]  # no test sample is of that class, and none is taken for one
    assert all(len(row) == 4 for row in rows)


def test_findings_have_measures_of_their_own(tmp_path: Path) -> None:
    y = (np.random.default_rng(1).random((200, 3)) < (0.5, 0.3, 0)).astype(int)
    result = ran(tmp_path, y, task="multilabel")
    outputs, having = held_out(result, 1)
    rows = cells(tmp_path, "finding")
    for k, row in enumerate(rows[:2]):
        known, scores = having[:, k], outputs[:, k].numpy()
        measured = roc_auc_score(known, scores), average_precision_score(known, scores)
        assert row == [str(k), str(int(known.sum())), *(f"{value:.4f}" for value in measured)]
    assert rows[2] == ["2", "0", "–", "–"]


def test_without_the_runs_data_the_card_says_that_such_figures_are_missing(tmp_path: Path) -> None:
    def card(folder: Path) -> str:
        return export_model(folder / "run", "1", folder / "model.safetensors")[1].read_text("utf-8")

    missing = "There are no figures by class: the test data were not at hand, or had changed"
    ran(tmp_path, np.arange(200) % 3)
    assert missing not in card(tmp_path)
    with np.load(tmp_path / "data.npz") as arrays:
        np.savez(tmp_path / "data.npz", x=arrays["x"] + 1, y=arrays["y"])
    assert missing in card(tmp_path)
    (tmp_path / "data.npz").unlink()
    assert missing in card(tmp_path)
    small_run(small_arrays(), out=tmp_path / "handed" / "run")
    assert missing in card(tmp_path / "handed")


def test_numbers_have_no_classes(tmp_path: Path) -> None:
    ran(tmp_path, np.random.default_rng(1).normal(size=(200, 1)), task="regression")
    _, card = export_model(tmp_path / "run", "1", tmp_path / "model.safetensors")
    assert "by target" not in card.read_text("utf-8")
    assert "recall" not in card.read_text("utf-8")
