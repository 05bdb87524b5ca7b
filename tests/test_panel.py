"""The panel: methods on federations that differ in kind."""

import csv
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import orchard
from helpers import ROOT
from orchard.cli import app
from orchard.experiment import RunOptions, load_experiment
from orchard.report.panel import (
    accuracy_rows,
    as_csv,
    as_markdown,
    as_page,
    as_text,
    document,
    regret_rows,
    tables,
)
from orchard.runs import panel
from orchard.runs.comparison import Spread
from orchard.runs.folder import RunFolder
from orchard.runs.panel import FEDERATIONS, Panel, PanelCell, check_federations, run_panel
from test_comparison import Log

TINY = {"dataset": "digits", "model": "mlp", "rounds": 2, "epochs": 1, "batch_size": 32, "clients": 3}
SMALL = {
    "alike": {**TINY, "partition": "iid"},
    "unlike": {**TINY, "partition": "iid", "shift": "labels"},
    "elsewhere": {**TINY, "dataset": "mnist"},
}
METHODS = ["separate", "fedavg-ft", "apple"]


@pytest.fixture
def _small_federations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel, "FEDERATIONS", SMALL)


def run_small(root: Path, methods: list[str] = METHODS, watcher: Log | None = None) -> Panel:
    (root / "no data").mkdir(parents=True, exist_ok=True)
    return run_panel(methods, [1, 2], list(SMALL), RunOptions(data_dir=root / "no data"), root, watcher or Log())


@pytest.mark.usefixtures("_small_federations")
def test_a_panel_is_what_its_runs_gave(tmp_path: Path) -> None:
    found = run_small(tmp_path)
    assert list(found.cells) == METHODS
    assert found.left_out == {"elsewhere": "elsewhere: the files of mnist are not there"}
    for method in METHODS:
        assert list(found.cells[method]) == ["alike", "unlike"]
    for federation in ("alike", "unlike"):
        shift = SMALL[federation].get("shift")
        accuracy = {}
        for method in METHODS:
            folders = [RunFolder(file.parent) for file in tmp_path.glob("*/summary.json")]
            results = [
                folder.result()
                for folder in folders
                if folder.experiment().method.name == method and (folder.experiment().shift is not None) == bool(shift)
            ]
            assert len(results) == 2
            accuracy[method] = sum(result.validation_selected.score for result in results) / 2
            assert found.cells[method][federation].accuracy.mean == pytest.approx(accuracy[method])
            settled = [result.scores().mean() for result in results]  # both rounds are among the last five
            assert found.cells[method][federation].settled.mean == pytest.approx(sum(settled) / 2)
        for method in METHODS:
            best_other = max(value for other, value in accuracy.items() if other != method)
            assert found.cells[method][federation].regret == pytest.approx(best_other - accuracy[method])
        assert found.cells["separate"][federation].worse_than_alone == 0


@pytest.mark.usefixtures("_small_federations")
def test_finished_runs_are_reused(tmp_path: Path) -> None:
    first = run_small(tmp_path, ["separate", "fedavg-local"])
    log = Log()
    assert run_small(tmp_path, ["separate", "fedavg-local"], log) == first
    assert log.begun == []


def cell(accuracy: float, regret: float, worse: int | None = 1) -> PanelCell:
    chosen = Spread(accuracy, 0.01), Spread(accuracy - 0.1, None), regret
    return PanelCell(*chosen, Spread(accuracy + 0.01, 0.02), regret / 2, worse, 8)


BY_HAND = Panel(
    {
        "a": {"x": cell(0.9, -0.02), "y": cell(0.7, 0.05)},
        "b:mu=1": {
            "x": cell(0.88, 0.02, None),
            "y": PanelCell(Spread(0.75, None), None, -0.05, Spread(0.76, None), 0, None, 8),
        },
    },
    {"z": "z: the files of z are not there"},
    [0, 1],
)


def test_regrets_by_hand() -> None:
    assert BY_HAND.regrets("a") == [-0.02, 0.05]
    assert BY_HAND.regrets("a", settled=True) == [-0.01, 0.025]
    assert BY_HAND.ranking() == ["b:mu=1", "a"]
    assert BY_HAND.worse_than_alone("a") == 2
    assert BY_HAND.worse_than_alone("b:mu=1") is None


class Fake:
    """A run of two clients with 100 and 4 test cases, at the round that validation chooses."""

    def __init__(self, first: float, second: float) -> None:
        self.accuracies = [first, second]


def test_worse_than_alone_means_beyond_the_noise_of_a_test_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 cases 90 % are right alone: two standard errors are 6 points; of 4 cases nothing can be said."""
    monkeypatch.setattr(panel, "_by_client", lambda run: np.array(run.accuracies))
    monkeypatch.setattr(
        Fake, "result", SimpleNamespace(distribution=SimpleNamespace(samples={"test": [100, 4]})), raising=False
    )
    alone: Any = [Fake(0.9, 0.75)]
    for first, second, worse in [(0.9, 0.75, 0), (0.85, 0.5, 0), (0.83, 0.5, 1)]:
        mine: Any = [Fake(first, second)]
        assert panel._worse(mine, alone) == worse
    both: Any = [Fake(0.80, 0.75), Fake(0.90, 0.75)]  # the mean over seeds counts
    assert panel._worse(both, alone * 2) == 0


def test_as_text_markdown_and_page() -> None:
    text = as_text(BY_HAND)
    assert text.startswith(
        "Over all federations\n"
        "method  mean regret  largest  settled: mean  largest  worse than alone\n"
        "b:mu=1        -1.50    +2.00          +0.50    +1.00                 –\n"
        "a             +1.50    +5.00          +0.75    +2.50                 2\n"
    )
    rows = [line.split() for line in text.splitlines()]
    assert ["b:mu=1", "75.00", "–", "–", "-5.00", "76.00", "+0.00", "–"] in rows
    assert "| a | +1.50 | +5.00 | +0.75 | +2.50 | 2 |\n" in as_markdown(BY_HAND)
    page = as_page(BY_HAND)
    assert "<td>b:mu=1<td>-1.50" in page
    assert "Left out: z: the files of z are not there" in page


def test_a_panel_is_written_and_read_back(tmp_path: Path) -> None:
    BY_HAND.write(tmp_path / "panel.json")
    assert Panel.read(tmp_path / "panel.json") == BY_HAND


def test_the_document_is_made_from_the_stored_panel() -> None:
    assert document(ROOT / "results") == (ROOT / "docs" / "choosing.md").read_text("utf-8")


def test_as_csv() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(BY_HAND))))
    assert [(row["method"], row["federation"]) for row in rows] == [
        ("a", "x"),
        ("a", "y"),
        ("b:mu=1", "x"),
        ("b:mu=1", "y"),
    ]
    assert float(rows[0]["accuracy"]) == 0.9
    assert rows[3]["balanced_accuracy"] == rows[3]["worse_than_alone"] == ""


@pytest.mark.usefixtures("_small_federations")
def test_the_command(tmp_path: Path) -> None:
    words = ["panel", "--methods", "separate,fedavg", "--seeds", "3", "--federations", "alike", "--format", "csv"]
    words += ["--results", str(tmp_path)]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path), "--quiet"], catch_exceptions=False)
    assert done.exit_code == 0
    assert [row["method"] for row in csv.DictReader(io.StringIO(done.stdout))] == ["separate", "fedavg"]
    assert list(Panel.read(tmp_path / "panel.json").cells) == ["separate", "fedavg"]


def test_what_cannot_be_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(orchard.UserError, match="there is no 'digits-scaners'; did you mean 'digits-scanners'"):
        check_federations(["digits-scaners"])
    with pytest.raises(orchard.UserError, match="at least two methods"):
        run_panel(["apple", "apple"], [0], ["digits-scanners"], RunOptions(), tmp_path, Log())
    with pytest.raises(orchard.UserError, match="the data of none of these are at hand"):
        run_panel(["apple", "apfl"], [0], ["mnist-practical"], RunOptions(data_dir=tmp_path), tmp_path, Log())


def test_every_federation_can_be_made() -> None:
    assert check_federations([]) == list(FEDERATIONS)
    experiments = {name: load_experiment(overrides=settings) for name, settings in FEDERATIONS.items()}
    assert experiments["digits-writers"].clients == 14
    assert {experiment.model for experiment in experiments.values()} == {"small-cnn", "logistic"}
    assert experiments["heart-all"].clients == 4


def test_a_kept_panel_takes_in_what_was_measured_anew() -> None:
    def cell(accuracy: float, settled: float) -> PanelCell:
        return PanelCell(Spread(accuracy, None), None, 0.0, Spread(settled, None), 0.0, 0, 4)

    kept = Panel(
        {"a": {"x": cell(0.9, 0.8), "y": cell(0.7, 0.7)}, "b": {"x": cell(0.8, 0.9), "y": cell(0.6, 0.6)}}, {}, [1]
    )
    newer = Panel({"b": {"x": cell(0.95, 0.7)}, "c": {"x": cell(0.5, 0.5), "y": cell(0.8, 0.5)}}, {}, [1])
    found = kept.updated(newer)
    assert list(found.cells) == ["a", "b", "c"]
    assert found.regrets("a") == pytest.approx([0.95 - 0.9, 0.8 - 0.7])
    assert found.regrets("b") == pytest.approx([0.9 - 0.95, 0.8 - 0.6])
    assert found.regrets("b", settled=True) == pytest.approx([0.8 - 0.7, 0.7 - 0.6])
    with pytest.raises(orchard.UserError, match=r"has the seeds \[1\]; measure with the same"):
        kept.updated(Panel(newer.cells, {}, [1, 2]))


def test_a_method_that_is_not_measured_everywhere_has_no_figure_over_all() -> None:
    kept = Panel(
        {"a": {"x": cell(0.9, 0.8), "y": cell(0.7, 0.7)}, "b": {"x": cell(0.8, 0.9), "y": cell(0.6, 0.6)}}, {}, [1]
    )
    found = kept.updated(Panel({"c": {"y": cell(0.8, 0.5)}}, {}, [1]))
    assert found.regrets("c") == pytest.approx([0.7 - 0.8])
    assert found.regrets("a") == pytest.approx([0.8 - 0.9, 0.8 - 0.7]), "it counts where it was measured"
    assert found.ranking() == ["a", "b", "c"]
    assert regret_rows(found)[-1] == ["c", "–", "–", "–", "–", "–"]
    assert accuracy_rows(found)[-1] == ["c", "–", "80.0"]
    (_, (_, x), (_, y)) = tables(found)
    assert [row[0] for row in x] == ["method", "a", "b"]
    assert [row[0] for row in y] == ["method", "c", "a", "b"]
