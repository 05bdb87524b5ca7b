"""The benchmarks are not run here, but what they import and time must exist."""

import importlib
from pathlib import Path

import pytest

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
