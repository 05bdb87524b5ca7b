"""The panel: methods on federations that differ in kind."""

import csv
import io
from pathlib import Path

import pytest
from typer.testing import CliRunner

import orchard
from helpers import small_experiment
from orchard.cli import app
from orchard.cli.panel import as_csv, as_tables
from orchard.experiment import RunOptions, load_experiment
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
            accuracy[method] = sum(result.validation_selected.accuracy for result in results) / 2
            assert found.cells[method][federation].accuracy.mean == pytest.approx(accuracy[method])
        for method in METHODS:
            best_other = max(value for other, value in accuracy.items() if other != method)
            assert found.cells[method][federation].regret == pytest.approx(best_other - accuracy[method])
        assert found.cells["separate"][federation].worse_than_alone == 0
        worse = found.cells["apple"][federation].worse_than_alone
        assert worse is not None
        assert 0 <= worse <= 3


@pytest.mark.usefixtures("_small_federations")
def test_finished_runs_are_reused(tmp_path: Path) -> None:
    first = run_small(tmp_path, ["separate", "fedavg-local"])
    log = Log()
    assert run_small(tmp_path, ["separate", "fedavg-local"], log) == first
    assert log.begun == []


def cell(accuracy: float, regret: float, worse: float | None = 1.5) -> PanelCell:
    return PanelCell(Spread(accuracy, 0.01), Spread(accuracy - 0.1, None), regret, worse, 8)


BY_HAND = Panel(
    {
        "a": {"x": cell(0.9, -0.02), "y": cell(0.7, 0.05)},
        "b:mu=1": {"x": cell(0.88, 0.02, None), "y": PanelCell(Spread(0.75, None), None, -0.05, None, 8)},
    },
    {},
)


def test_regrets_by_hand() -> None:
    assert BY_HAND.mean_regret("a") == pytest.approx(0.015)
    assert BY_HAND.largest_regret("a") == 0.05
    assert BY_HAND.largest_regret("b:mu=1") == 0.02


def test_as_text_and_markdown() -> None:
    text = as_tables(BY_HAND, markdown=False)
    assert text.startswith(
        "x\n"
        "method      accuracy  balanced  regret  worse than alone\n"
        "a       90.00 ± 1.00     80.00   -2.00          1.5 of 8\n"
        "b:mu=1  88.00 ± 1.00     78.00   +2.00                 –\n"
    )
    assert "Over all of them\nmethod  mean regret  largest regret\na             +1.50           +5.00\n" in text
    assert "| a | +1.50 | +5.00 |\n" in as_tables(BY_HAND, markdown=True)
    assert "b:mu=1         75.00         –   -5.00                 –\n" in text


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
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path), "--quiet"], catch_exceptions=False)
    assert done.exit_code == 0
    assert [row["method"] for row in csv.DictReader(io.StringIO(done.stdout))] == ["separate", "fedavg"]


def test_what_cannot_be_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(orchard.UserError, match="there is no 'digits-scaners'; did you mean 'digits-scanners'"):
        check_federations(["digits-scaners"])
    with pytest.raises(orchard.UserError, match="at least two methods"):
        run_panel(["apple"], [0], ["digits-scanners"], RunOptions(), tmp_path, Log())
    with pytest.raises(orchard.UserError, match="the data of none of these are at hand"):
        run_panel(["apple", "apfl"], [0], ["mnist-practical"], RunOptions(data_dir=tmp_path), tmp_path, Log())


def test_every_federation_can_be_made() -> None:
    assert check_federations([]) == list(FEDERATIONS)
    experiments = {name: load_experiment(overrides=settings) for name, settings in FEDERATIONS.items()}
    assert experiments["digits-writers"].clients == 14
    assert {experiment.model for experiment in experiments.values()} == {"small-cnn", "logistic"}
    assert experiments["heart-all"].clients == 4
    assert small_experiment() not in experiments.values()
