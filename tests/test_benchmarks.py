"""The benchmarks are not run here, but what they import and time must exist."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def _beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.parametrize("name", sorted(file.stem for file in FOLDER.glob("*.py") if file.stem != "__main__"))
def test_a_benchmark_can_be_imported(name: str) -> None:
    importlib.import_module(name)


def test_what_the_benchmark_of_rounds_times_exists() -> None:
    rounds = importlib.import_module("rounds")
    for owner, name in [
        *((o, n) for o, n, _ in rounds.WORK),
        *(pair for own in rounds.OWN_WORK.values() for pair in own),
    ]:
        assert callable(getattr(owner, name))


def test_the_tables_of_attacks_are_those_that_were_measured() -> None:
    tables = importlib.import_module("attack_tables")
    root = FOLDER.parent
    text = (root / "docs" / "dishonest.md").read_text("utf-8")
    assert all(mark in text for mark in tables.MARKS)
    assert tables.document(json.loads((root / "results" / "attacks.json").read_text("utf-8")), text) == text


def test_an_attack_is_what_it_says() -> None:
    attacks = importlib.import_module("attacks")
    before, honest, draw = torch.tensor([1.0, 1.0]), torch.tensor([1.5, 0.0]), np.random.default_rng(0)
    sent = {name: falsify(honest, before, draw) for name, falsify in attacks.UPLOADS.items()}
    assert sent["negation"].tolist() == [-1.5, 0]
    assert sent["scaling"].tolist() == [-45, 0]
    assert sent["reversal"].tolist() == [-0.5, 4]
    assert 0 < (sent["noise"] - before).norm() < 12 * (honest - before).norm()


def test_a_little_is_within_the_spread_on_the_side_from_which_uploads_come() -> None:
    """Of 1 and 3 the deviation is 1; of 4 and 4 it is 0."""
    attacks = importlib.import_module("attacks")
    honest = [torch.tensor([1.0, 4.0]), torch.tensor([3.0, 4.0])]
    assert attacks.little(honest, torch.zeros(2)).tolist() == [0.5, 4]
    assert attacks.little(honest, torch.full((2,), 9.0)).tolist() == [3.5, 4]


def test_an_attack_that_knows_the_bounds_goes_as_far_as_they_let_it(monkeypatch: pytest.MonkeyPatch) -> None:
    attacks = importlib.import_module("attacks")
    monkeypatch.setattr(attacks, "BASE", {**attacks.BASE, "rounds": 3, "epochs": 1})
    refused: list[bool] = []
    ask = attacks.AttackedEngine._refused

    def asked(engine: object, *what: object) -> bool:
        refused.append(ask(engine, *what))
        return refused[-1]

    monkeypatch.setattr(attacks.AttackedEngine, "_refused", asked)
    setting = attacks.SETTINGS["iid-1-of-4"]
    reached = {
        attack: attacks.honest_accuracy(setting, "fedavg", attack, "bounds", 0) for attack in ("none", "tailored")
    }
    assert {True, False} == set(refused)
    assert reached["tailored"] < reached["none"] - 0.1


def test_a_table_has_mean_and_deviation_and_says_how_often_a_run_ends() -> None:
    attacks, tables = importlib.import_module("attacks"), importlib.import_module("attack_tables")
    cells = ["/".join(map(str, cell)) for cell in attacks.cells() if cell[:2] == ("iid-1-of-4", "apple")]
    found = {cell: {"1": 0.9, "2": 0.91, "3": 0.92}[cell[-1]] for cell in cells}
    what = ("iid-1-of-4", "apple", "scaling", "none")
    assert tables._cell(found, *what) == "91.0 ± 1.0"
    assert tables._cell({**found, "/".join([*what, "2"]): None}, *what) == "ends in 1 of 3"
    del found["/".join([*what, "3"])]  # not all of this seed is measured: none of it counts
    assert tables._cell(found, *what) == "90.5 ± 0.7"
    assert "| 1 of 4, alike | apple | 0.0 ± 0.0 |" in tables.losses(found)
    assert tables._cell({}, *what) == ""
