"""A run that has hardly left chance level says so, with what to do."""

from pathlib import Path

import pytest

from helpers import small_arrays, small_experiment
from orchard.data.client_arrays import from_arrays
from orchard.data.clients import DataDistribution
from orchard.runs.advice import advice, guessing
from processes import orchard_command


@pytest.fixture(scope="module")
def held() -> DataDistribution:
    """Two clients with 4 and 10 test cases, 3 and 5 of them of one class."""
    distribution = from_arrays(small_arrays(2), small_experiment(clients=2)).distribution()
    counts = {**distribution.counts, "test": [[3, 1, 0], [0, 5, 5]]}
    return DataDistribution(**{**vars(distribution), "counts": counts})


def test_guessing_by_hand(held: DataDistribution) -> None:
    assert guessing(held) == pytest.approx((0.75 + 0.5) / 2)


def test_who_is_above_chance_is_told_nothing(held: DataDistribution) -> None:
    assert advice("apple", 0.67, held) == ""  # 62.5 % and a tenth of the rest are 66.25 %


def test_where_guessing_is_always_right_nothing_is_said(held: DataDistribution) -> None:
    one_class = DataDistribution(**{**vars(held), "counts": {**held.counts, "test": [[4, 0, 0], [0, 7, 0]]}})
    assert advice("graft", 1.0, one_class) == ""


def test_apple_is_told_why_and_what_to_do(held: DataDistribution) -> None:
    said = advice("apple", 0.66, held)
    assert said.startswith(
        "This has hardly left chance level: always naming a client's commonest class is right in 62.5 %."
    )
    assert said.endswith("Try graft, or --set method.initial=shared.")
    assert "APPLE" not in advice("fedavg", 0.66, held)


def test_the_command_line_says_it(tmp_path: Path) -> None:
    words = ["--partition", "writers", "--rounds", "1", "--set", "model=small-cnn", "--set", "epochs=1"]
    said = orchard_command("run", "--method", "apple", *words, cwd=tmp_path).stdout
    assert "Try graft, or --set method.initial=shared." in said
