"""What the report says of runs in sentences, and what it calls chance."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orchard.errors import UserError
from orchard.report.page import page, page_data
from orchard.report.ranking import gain_in_cases, intervals, ranking
from orchard.report.story import overview, story
from orchard.report.views import Content, Relationships
from orchard.runs.comparison import Spread
from orchard.runs.uncertainty import wilson
from synthetic import SyntheticRun, shown


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    return [SyntheticRun(root / method, method).finish() for method in ("apple", "fedavg-ft", "separate")]


# --- What is chance ---


def of_levels(tmp_path: Path, levels: dict[str, list[float]]) -> Content:
    """Runs whose clients have these accuracies, with 12, 15, 18, … test cases."""
    names = [f"client {i}" for i in range(len(next(iter(levels.values()))))]
    return shown(
        *[SyntheticRun(tmp_path / m, m, names=names, accuracy=values).finish() for m, values in levels.items()]
    )


def test_a_method_is_ahead_only_of_those_it_is_really_apart_from(tmp_path: Path) -> None:
    best = [0.9, 0.8, 0.9, 0.7, 0.9, 0.8]
    clearly = [v - d for v, d in zip(best, [0.2, 0.22, 0.19, 0.21, 0.2, 0.2], strict=True)]
    hardly = [v + d for v, d in zip(best, [0.1, -0.2, 0.05, -0.1, 0.1, 0.0], strict=True)]
    content = of_levels(tmp_path, {"ditto": best, "separate": clearly, "fedfomo": hardly})
    ranks = ranking(content)
    assert ranks is not None
    assert (ranks.best, ranks.ahead, ranks.level) == ("ditto", ["separate"], ["fedfomo"])
    assert overview(content) == [
        "Of the 3 methods compared here, ditto has the best mean: 83.3 %.",
        "It is ahead of separate.",
        "It is level with fedfomo: the difference is within noise.",
    ]
    alone = "training alone it is right in 63.0 %"
    assert f"{alone}." in " ".join(story(content, content.methods[0]))


def test_gains_within_noise_are_said_to_be(tmp_path: Path) -> None:
    content = of_levels(tmp_path, {"separate": [20 / 33, 20 / 36], "ditto": [22 / 33, 36 / 36]})
    ditto = content.methods[1]
    assert content.distribution.samples["test"] == [33, 36]
    assert gain_in_cases(content, ditto, 0) == "2 of 33 test cases: within noise"
    assert gain_in_cases(content, ditto, 1) == "16 of 36 test cases"
    found = intervals(content, ditto)
    assert found is not None
    assert found[0] == pytest.approx(wilson(22 / 33, 33), abs=1e-4)
    assert "level: the difference is within noise" in " ".join(story(content, ditto))


def test_many_clients_do_not_make_the_page_large(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "many", names=[f"hospital {i}" for i in range(120)], rounds=60).finish()
    content = shown(run)
    relationships = content.methods[0].relationships
    assert relationships is not None
    assert relationships.rounds[0] == 0
    assert relationships.rounds[-1] == 60
    assert 30 < len(relationships.rounds) < 60
    assert len(page(page_data(content))) < 8e6


# --- Sentences ---


@pytest.mark.parametrize(
    ("matrix", "said"),
    [
        ([[1, 0.2, 0, 0], [0, 1, 0, 0], [0, 0, 1, -0.1], [0, 0, 0, 1]], "north, south; east, west."),
        ([[1, 0.2, 0, 0], [0.2, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], "north, south."),
        ([[1, 0.2, 0, 0], [0, 1, 0.1, 0], [0, 0, 1, 0.1], [0, 0, 0, 1]], ""),
        ([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], ""),
    ],
)
def test_groups_that_learn_among_themselves_are_named(
    compared: list[Path], matrix: list[list[float]], said: str
) -> None:
    content = shown(*compared)
    content = replace(content, distribution=replace(content.distribution, clients=["north", "south", "east", "west"]))
    told = story(content, replace(content.methods[0], relationships=Relationships([5], [matrix])))
    assert (f"These learn only from one another: {said}" in told) == bool(said)
    assert any("only from one another" in sentence for sentence in told) == bool(said)


def test_the_story_of_a_run_beside_training_alone(compared: list[Path]) -> None:
    content = shown(*compared)
    run = replace(content.methods[0], clients=[0.9] * 4, gains=[3 / 33, -1 / 36, 0.0, 0.01], alone=0.875)
    run = replace(run, helpers=[["east"], [], [], []], best=Spread(0.9, None))
    assert " ".join(story(content, run)) == (
        "4 silos with 510 training samples between them (and 90 for validation, 150 test cases) trained together by "
        "apple for 5 rounds. "
        "On average a silo's model is right in 90.0 % of its own test cases; "
        "training alone it is right in 87.5 %, which is level: the difference is within noise. "
        "The most is gained by north (+9.1 points, 3 of 33 test cases: within noise; helped most by east). "
        "Worse than alone: south (−2.8 points, 1 of 36 test cases: within noise)."
    )
    assert story(content, replace(run, gains=[0.1, 0, 0, 0]))[-1] == "No silo does worse than alone."
    many = story(content, replace(run, clients=[0.7] * 4, gains=[-0.1, -2 / 9, -0.1, -0.1]))
    assert many[-1] == "4 silos do worse than alone, south most (−22.2 points, 8 of 36 test cases)."


def test_the_story_of_a_run_by_itself(compared: list[Path]) -> None:
    content = shown(compared[0])
    run = replace(content.methods[0], clients=[0.5, 0.9, 0.7, 0.8], helpers=[["west"], [], [], []])
    assert story(content, run)[-1] == "From 50.0 % (north, helped most by west) to 90.0 % (south)."
    assert overview(content) == []
    alike = replace(run, helpers=[["west", "east"], [], [], []])
    assert story(content, alike)[-1] == "From 50.0 % (north, helped alike by 2 others) to 90.0 % (south)."


def test_a_run_that_has_only_begun_can_be_watched_but_not_reported(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "new").folder.path
    content = shown(run, live=True)
    assert story(content, content.methods[0])[-1] == (
        "There are no figures yet: the first come when the second round has ended."
    )
    assert '"best":null' in page(page_data(content))
    with pytest.raises(UserError, match="new: no round has been measured yet; orchard watch shows it while it goes on"):
        shown(run)


def test_a_round_whose_exchange_is_not_measured_yet_has_no_figures(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run", "fedavg").run(3)
    lines = (run.folder.path / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    last["after_aggregation"] = {
        part: {m: [None] * 4 for m in values} for part, values in last["after_aggregation"].items()
    }
    (run.folder.path / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    content = shown(run.folder.path)
    (entry,) = content.methods
    assert entry.scores[2] == [None] * 4
    assert entry.last is None
    assert entry.best is not None
    assert entry.best.mean == pytest.approx(np.mean([v for v in entry.scores[1] if v is not None]), abs=1e-5)
    assert "was interrupted after 3 of 5 rounds" in story(content, entry)[0]
    page(page_data(content))  # it is valid JSON, without NaN
