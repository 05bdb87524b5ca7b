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
    attacks = importlib.import_module("attacks")
    root = FOLDER.parent
    text = (root / "docs" / "dishonest.md").read_text("utf-8")
    assert all(mark in text for mark in attacks.MARKS)
    assert attacks.document(json.loads((root / "results" / "attacks.json").read_text("utf-8")), text) == text


def test_an_attack_is_what_it_says() -> None:
    attacks = importlib.import_module("attacks")
    before, honest, draw = torch.tensor([1.0, 1.0]), torch.tensor([1.5, 0.0]), np.random.default_rng(0)
    sent = {name: falsify(honest, before, draw) for name, falsify in attacks.UPLOADS.items()}
    assert sent["negation"].tolist() == [-1.5, 0]
    assert sent["scaling"].tolist() == [-45, 0]
    assert sent["reversal"].tolist() == [-0.5, 4]
    assert 0 < (sent["noise"] - before).norm() < 12 * (honest - before).norm()
