"""What people see of tasks other than classification: the page, figures, tables, lists, TensorBoard."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

import orchard
from browser import browser, needs_chromium, reading
from helpers import SMALL
from orchard.cli import app
from orchard.report.figures import write_figures
from orchard.report.page import write_report
from task_data import SETTINGS, task_arrays

__all__ = ["browser"]

METHODS = ("separate", "apple")
EXPECTED = {
    "multilabel": ("AUROC", "Mean AUROC, best round", "Where each finding goes"),
    "regression": ("R²", "Mean R², best round", ""),
    "segmentation": ("Dice", "Mean Dice, best round", "Where each class goes"),
}
every_task = pytest.mark.parametrize("task", EXPECTED)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a folder for each task, which holds a run of each method."""
    root = tmp_path_factory.mktemp("tasks")
    for task in EXPECTED:
        for name in METHODS:
            settings = {**SMALL, **SETTINGS[task], "method": name, "rounds": 2}
            orchard.run(data=task_arrays(task, 24, 12), **settings, out=root / task / name)
    return root


def invoked(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


# --- The page ---


@needs_chromium
@every_task
def test_the_page_speaks_of_the_tasks_own_score(task: str, runs: Path, browser: Browser, tmp_path: Path) -> None:
    title, best, goes = EXPECTED[task]
    write_report([runs / task / name for name in METHODS], tmp_path / "report.html")
    with reading(browser, tmp_path / "report.html") as reader:
        reader.page.locator("details").first.evaluate("box => box.open = true")
        text = reader.text("body")
        assert reader.text("#score-title") == f"Test {title}"
        assert reader.text("#traffic-title") == f"Test {title} against traffic"
        assert best in " ".join(reader.text("#headline").split())
        assert "accuracy" not in text.lower()
        assert reader.page.locator("#holdings").is_visible() == bool(goes)
        assert goes in text
        for part in ("#headline", "#tiles", "#score", "#clients", "#clients-table", "#traffic"):
            assert ("%" in (reader.page.text_content(part) or "")) == (task == "segmentation"), part
        assert reader.troubles == []


@needs_chromium
def test_gains_in_r2_are_no_percentage_points(runs: Path, browser: Browser, tmp_path: Path) -> None:
    results = {name: orchard.load(runs / "regression" / name) for name in METHODS}
    mine, alone = (np.array(results[name].figures().clients).round(5) for name in ("apple", "separate"))
    write_report([runs / "regression" / name for name in METHODS], tmp_path / "report.html")
    with reading(browser, tmp_path / "report.html") as reader:
        reader.page.locator("details").first.evaluate("box => box.open = true")
        cells = reader.page.locator("#clients-table small").all_inner_texts()
        gain = [f"({value:+.3f})".replace("-", "−") for value in mine - alone]
        assert [cell.strip() for cell in cells] == gain
        reader.choose("#modes", "gain")
        assert "percentage" not in reader.text("body")


@needs_chromium
def test_one_failing_model_does_not_flatten_the_chart(runs: Path, browser: Browser, tmp_path: Path) -> None:
    arrays = task_arrays("regression", 24, 12)
    np.asarray(arrays[3].y_test)[:] = 1e5 + np.arange(12)  # far from anything that it trained on
    orchard.run(data=arrays, **{**SMALL, **SETTINGS["regression"], "method": "separate"}, out=tmp_path / "run")
    write_report([tmp_path / "run"], tmp_path / "report.html")
    with reading(browser, tmp_path / "report.html") as reader:
        for chart in ("#clients", "#score"):
            texts = reader.page.locator(f"{chart} .tick").all_text_contents()
            ticks = [float(text) for text in texts if "client" not in text]
            assert min(ticks) >= -1, chart
        assert "−" in reader.text("#tiles")  # what it is really is said
        assert reader.troubles == []
    assert write_figures([tmp_path / "run"], tmp_path / "figures", "png")


# --- Figures ---


@every_task
def test_figures_name_the_tasks_own_score(task: str, runs: Path, tmp_path: Path) -> None:
    title = EXPECTED[task][0]
    write_figures([runs / task / name for name in METHODS], tmp_path, "svg")
    drawn = {file.stem: file.read_text("utf-8") for file in tmp_path.glob("*.svg")}
    assert f"mean client test {title}" in drawn["convergence"]
    assert f">test {title}<" in drawn["clients"]
    assert (" %<" in drawn["clients"] or "%<" in drawn["clients"]) == (task == "segmentation")


# --- Commands ---


@pytest.fixture
def diabetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with an .npz of numbers to predict."""
    arrays = task_arrays("regression", 60, 20)
    names = ("x_train", "y_train", "x_test", "y_test")
    whole = {name: np.concatenate([getattr(given, name) for given in arrays]) for name in names}
    np.savez(tmp_path / "diabetes.npz", **whole)  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    return tmp_path


OPTIONS = ["--set", "task=regression", "--set", "model=mlp", "--set", "epochs=1", "--set", "lr=0.003"]


def test_comparisons_of_r2_in_every_format(diabetes: Path) -> None:
    words = ["compare", "--dataset", "diabetes.npz", "--partition", "iid", "--clients", "4", "--methods"]
    words += ["separate,fedavg", "--rounds", "2", "--seeds", "1,2", *OPTIONS]
    text = invoked(*words)
    assert "best mean R²" in text
    assert "best mean R²: the best mean over clients of test R²; traffic" in text
    assert "What each client gains over training alone:" in text
    assert "%" not in text
    read = list(csv.DictReader(io.StringIO(invoked(*words, "--format", "csv"))))
    assert [row["method"] for row in read] == ["separate", "fedavg"]
    values = [float(row["bmcta"]) for row in read]
    markdown = invoked(*words, "--format", "markdown")
    latex = invoked(*words, "--format", "latex")
    assert "| best mean R² |" in markdown
    assert "best mean R$^2$" in latex
    assert "²" not in latex
    for value in values:
        assert f"{value:.3f} ± " in markdown
        assert f"{value:.3f} $\\pm$ " in latex


def test_commands_show_r2_without_classes_or_percent(diabetes: Path) -> None:
    words = ["--dataset", "diabetes.npz", "--partition", "iid", "--clients", "4"]
    said = invoked("run", *words, "--method", "separate", "--rounds", "2", "--out", "kept/a", "--tensorboard", *OPTIONS)
    result = orchard.load(diabetes / "kept/a")
    assert f"best mean R² {result.bmcta:.4f} after" in said
    assert "(best mean client test R²)" in said
    assert "holds" not in said
    assert "%" not in said
    listed = invoked("runs", "kept")
    assert f"R² {result.bmcta:.4f}" in listed
    events = EventAccumulator(str(diabetes / "kept/a/tensorboard")).Reload()
    written = [event.value for event in events.Scalars("mean test R²")]
    assert written == pytest.approx(result.scores().mean(axis=1).tolist(), rel=1e-6)
    assert "test R²/client 0" in events.Tags()["scalars"]
    data = invoked("data", "show", *words[1:], "--set", "task=regression")
    assert "targets: target" in data
    assert "class" not in data
