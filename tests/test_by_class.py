"""What a run keeps of each client's model by class: at the best round, on the client's own test samples."""

import json
from pathlib import Path
from typing import Any

import pytest

import orchard
from helpers import method, small_arrays, small_run
from orchard.report.content import contents_of
from orchard.report.views import together
from orchard.runs.by_class import Rows, read_by_class
from orchard.runs.folder import RunFolder
from task_data import SETTINGS, task_arrays

METHODS = ["apple", "fedavg-ft", method("apfl", alpha=0.5)]  # three moments of evaluation


def kept(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "by_class.json").read_text("utf-8"))
    return content


@pytest.mark.parametrize("settings", METHODS, ids=["apple", "fedavg-ft", "apfl"])
def test_the_counts_are_those_behind_each_clients_accuracy(settings: Any, tmp_path: Path) -> None:
    result = small_run(method=settings, out=tmp_path / "run")
    found = kept(tmp_path / "run")
    assert found["round"] == result.figures().best.round
    for i, rows in enumerate(found["clients"]):
        held = result.distribution.counts["test"][i]
        assert [sum(n for true, _, n in rows if true == k) for k in range(3)] == held
        assert sum(n for true, given, n in rows if true == given) / sum(held) == result.figures().clients[i]
        assert all(n > 0 for _, _, n in rows)


def test_a_resumed_run_keeps_the_same(tmp_path: Path) -> None:
    small_run(method="fedavg-ft", out=tmp_path / "whole")
    with pytest.raises(orchard.Stopped):
        small_run(method="fedavg-ft", out=tmp_path / "run", stop=iter([False, False, True]).__next__)
    assert not (tmp_path / "run" / "by_class.json").exists()
    orchard.resume(tmp_path / "run", small_arrays())
    assert kept(tmp_path / "run") == kept(tmp_path / "whole")


def test_findings_have_a_row_each_and_numbers_have_none(tmp_path: Path) -> None:
    result = orchard.run(
        data=task_arrays("multilabel"), **SETTINGS["multilabel"], method="fedavg", out=tmp_path / "many"
    )
    best, labels = result.figures().best, len(result.task.classes)
    for rows, client in zip(kept(tmp_path / "many")["clients"], result.clients, strict=True):
        assert len(rows) == labels
        defined = [auroc for _, auroc, _ in rows if auroc is not None]
        assert sum(defined) / len(defined) == pytest.approx(client.measures["auroc"])
    assert kept(tmp_path / "many")["round"] == best.round
    orchard.run(data=task_arrays("regression"), **SETTINGS["regression"], method="fedavg", out=tmp_path / "number")
    assert not (tmp_path / "number" / "by_class.json").exists()


def test_what_does_not_fit_the_run_is_not_shown(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    result = small_run(out=folder.path)
    whole = kept(folder.path)
    assert read_by_class(folder, result) == whole["clients"]
    for wrong in (
        {**whole, "round": whole["round"] + 1},
        {**whole, "clients": whole["clients"][1:]},
        {**whole, "clients": [[[0, 3, 1]], *whole["clients"][1:]]},
        {**whole, "clients": [[[0, 1]], *whole["clients"][1:]]},
        {**whole, "clients": ["<b>", *whole["clients"][1:]]},
        {},
    ):
        folder.write("by_class.json", wrong)
        assert read_by_class(folder, result) is None
        assert contents_of([folder])[0].methods[0].by_class is None
    (folder.path / "by_class.json").write_text("{")
    assert read_by_class(folder, result) is None


def test_seeds_together() -> None:
    one: Rows = [[0, 0, 3], [0, 1, 1]]
    other: Rows = [[0, 0, 2], [1, 1, 4]]
    assert together([[one, None], [other, one]], summed=True) == [[[0, 0, 5], [0, 1, 1], [1, 1, 4]], None]
    assert together([[[[7, 0.5, None]]], [[[7, 0.75, 0.5]]]], summed=False) == [[[7, 0.625, None]]]
    assert together([[one], None], summed=True) is None
