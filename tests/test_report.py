"""What the report takes from runs: seeds as one method, gains over training alone, labels, what is left out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import orchard
from orchard.cli import app
from orchard.report.content import contents_of
from orchard.report.story import overview, story
from orchard.report.views import Values
from orchard.runs.comparison import Spread
from orchard.runs.folder import RunFolder
from synthetic import SyntheticRun, shown


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    return [SyntheticRun(root / method, method).finish() for method in ("apple", "fedavg-ft", "separate")]


def test_content_is_what_the_results_say(compared: list[Path]) -> None:
    result, run = RunFolder(compared[0]).result(), shown(*compared).methods[0]
    assert np.array(run.scores) == pytest.approx(result.scores(), abs=1e-5)
    figures = result.figures()
    chosen = (figures.best.score, figures.last.score, figures.validation_selected.score, min(figures.clients))
    assert tuple(one and one.mean for one in (run.best, run.last, run.validation, run.worst)) == chosen
    assert run.helpers == [client.strongest_helpers for client in result.clients]
    assert run.relationships is not None
    assert run.relationships.rounds == [0, 1, 2, 3, 4, 5]
    assert np.array(run.relationships.matrices) == pytest.approx(result.relationships, abs=1e-4)
    assert run.traffic == [4e6, 8e6, 12e6, 16e6, 20e6]


def test_training_loss_is_of_all_samples_each_by_its_own_clients_model(compared: list[Path]) -> None:
    samples = [123, 126, 129, 132]  # 40 + i + k of class k
    first = sum(n * (2 + i / 10) for i, n in enumerate(samples)) / sum(samples)
    assert shown(compared[0]).methods[0].loss[0] == pytest.approx(first, abs=1e-6)


@pytest.fixture
def seeded(tmp_path: Path) -> list[Path]:
    """Runs of two methods with three seeds each."""
    return [
        SyntheticRun(tmp_path / f"{method}{seed}", method, seed=seed).finish()
        for method in ("separate", "apple")
        for seed in (1, 2, 3)
    ]


def test_runs_that_differ_in_the_seed_alone_are_one_method_with_mean_and_deviation(seeded: list[Path]) -> None:
    content, results = shown(*seeded), [RunFolder(run).result() for run in seeded[3:]]
    assert [(view.label, view.seeds) for view in content.methods] == [("separate", [1, 2, 3]), ("apple", [1, 2, 3])]
    apple = content.methods[1]
    bests = [result.bmcta for result in results]
    assert apple.best == Spread.of(bests)
    assert np.array(apple.scores) == pytest.approx(np.mean([result.scores() for result in results], axis=0), abs=1e-5)
    means = [result.scores().mean(axis=1) for result in results]
    assert apple.score_deviations == pytest.approx(np.std(means, axis=0, ddof=1).tolist(), abs=1e-4)
    assert apple.clients == pytest.approx(np.mean([r.figures().clients for r in results], axis=0).tolist(), abs=1e-5)
    assert apple.relationships is not None
    assert np.array(apple.relationships.matrices) == pytest.approx(results[0].relationships, abs=1e-3)
    assert [(run.label, run.seeds, run.best) for run in apple.runs] == [
        ("apple", [seed], Spread(best, None)) for seed, best in zip((1, 2, 3), bests, strict=True)
    ]
    assert len(apple.commands) == 3
    assert story(content, apple)[0].endswith("trained together by apple for 5 rounds, with 3 seeds.")


def test_the_best_seed_of_a_method_does_not_win_the_headline(tmp_path: Path) -> None:
    levels = {("fedavg", 1): 0.70, ("fedavg", 2): 0.95, ("ditto", 1): 0.85, ("ditto", 2): 0.87}
    runs = [
        SyntheticRun(tmp_path / f"{method}{seed}", method, seed=seed, accuracy=[level] * 4).finish()
        for (method, seed), level in levels.items()
    ]
    content = shown(*runs)
    assert overview(content)[0] == (
        "Of the 3 methods compared here, ditto has the best mean: 86.0 % (mean of 2 seeds)."
    )


def difference(one: Values, other: Values) -> list[float]:
    gains: list[float] = (np.array(one, dtype=np.float64) - np.array(other, dtype=np.float64)).tolist()
    return gains


def test_gains_are_over_training_alone_with_the_same_seed(seeded: list[Path]) -> None:
    alone, apple = shown(*seeded).methods
    assert alone.gains is None
    for one, other in zip(apple.runs, alone.runs, strict=True):
        assert one.gains == pytest.approx(difference(one.clients, other.clients))
        assert other.best is not None
        assert one.alone == other.best.mean
    assert apple.gains == pytest.approx(difference(apple.clients, alone.clients), abs=2e-5)


def test_methods_that_anothers_run_gives_are_shown_too(compared: list[Path]) -> None:
    assert [run.label for run in shown(*compared).methods] == [
        "apple",
        "fedavg-ft",
        "separate",
        "fedavg",
        "fedavg-local",
    ]
    assert [run.label for run in shown(compared[1]).methods] == ["fedavg-ft"]


def test_a_label_tells_runs_of_one_method_apart(tmp_path: Path) -> None:
    methods: list[str | dict[str, object]] = ["apple", {"name": "apple", "mu": 0.5}]
    runs = [SyntheticRun(tmp_path / str(k), method).finish() for k, method in enumerate(methods)]
    slower = SyntheticRun(tmp_path / "slower", rounds=6).finish()
    stopped = SyntheticRun(tmp_path / "stopped", rounds=6).run(4).folder.path
    assert [view.label for view in shown(*runs, slower, stopped).methods] == [
        "apple, rounds=5",
        "apple:mu=0.5",
        "apple, rounds=6",
        "apple, rounds=6, 4 of 6 rounds",
    ]


def test_a_run_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    runs = [SyntheticRun(tmp_path / name, "apple", seed=seed).finish() for name, seed in (("a", 1), ("b", 2), ("c", 1))]
    content = shown(*runs)
    assert [view.seeds for view in content.methods] == [[1, 2]]
    assert content.left_out == [f"{runs[2]}: repeats {runs[0]}"]


# --- Runs that cannot be shown ---


def test_runs_that_failed_or_have_no_figures_are_left_out_and_said_to_be(compared: list[Path], tmp_path: Path) -> None:
    failed = SyntheticRun(tmp_path / "failed", "fedprox").run(3)
    failed.folder.write_failed(failed.result, "out of memory")
    begun = SyntheticRun(tmp_path / "begun", "fedavg").folder.path
    (tmp_path / "nothing").mkdir()
    left_out = [failed.folder.path, begun, tmp_path / "nothing"]
    content = shown(compared[0], *left_out)
    assert [view.label for view in content.methods] == ["apple"]
    assert content.left_out == [
        f"{begun}: no round has been measured yet; orchard watch shows it while it goes on",
        f"{tmp_path / 'nothing'}: is not the folder of a run: it has no experiment.toml",
        f"{failed.folder.path}: the run failed",
    ]
    alone = shown(failed.folder.path)  # there is nothing else to look at
    assert "the run failed after 3 of 5 rounds" in story(alone, alone.methods[0])[0]


def test_a_folder_of_runs_stands_for_the_runs_in_it(seeded: list[Path], tmp_path: Path) -> None:
    SyntheticRun(tmp_path / "zoo", "fedavg")
    file = tmp_path / "all.html"
    made = CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(file)], catch_exceptions=False)
    assert made.stdout == f"written to {file}\n"
    note = f"{tmp_path / 'zoo'}: no round has been measured yet; orchard watch shows it while it goes on"
    assert made.stderr == f"left out: {note}\n"
    assert note in file.read_text("utf-8")
    made = CliRunner().invoke(app, ["figures", str(tmp_path), "-o", str(tmp_path / "drawn")], catch_exceptions=False)
    assert (made.exit_code, made.stderr) == (0, f"left out: {note}\n")


# --- Runs on different data ---


def test_runs_on_other_data_stand_apart_the_most_runs_first(tmp_path: Path) -> None:
    other = SyntheticRun(tmp_path / "a", names=["up", "down"]).finish()
    runs = [SyntheticRun(tmp_path / m, m).finish() for m in ("separate", "ditto")]
    failed = SyntheticRun(tmp_path / "failed", "fedprox", names=["up", "down"]).run(3)
    failed.folder.write_failed(failed.result, "out of memory")
    contents = contents_of([RunFolder(run) for run in (other, *runs, failed.folder.path)])
    assert [[view.label for view in content.methods] for content in contents] == [["separate", "ditto"], ["apple"]]
    assert [content.title for content in contents] == [
        "digits, iid split, 4 silos with 750 samples",
        "digits, iid split, 2 silos with 357 samples",
    ]
    assert all(content.left_out == [f"{failed.folder.path}: the run failed"] for content in contents)


def test_figures_of_runs_on_other_data_are_in_folders_of_their_own(tmp_path: Path) -> None:
    for name, dataset in (("one", "digits"), ("two", "mnist")):
        SyntheticRun(tmp_path / "runs" / name, "ditto", dataset=dataset).finish()
    drawn = tmp_path / "drawn"
    CliRunner().invoke(app, ["figures", str(tmp_path / "runs"), "-o", str(drawn)], catch_exceptions=False)
    assert {str(file.relative_to(drawn)) for file in drawn.rglob("*.pdf")} == {
        f"{data}-iid-split/{name}.pdf" for data in ("digits", "mnist") for name in ("convergence", "clients", "data")
    }


def test_the_title_says_how_groups_of_clients_differ(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "dataset": "digits",
        "partition": "iid",
        "shift": "labels",
        "model": "mlp",
        "epochs": 1,
        "rounds": 1,
    }
    orchard.run(**settings, method="separate", out=tmp_path / "run")
    assert shown(tmp_path / "run").title == "digits, iid split, shift: labels"
