"""The command `audit`: one table, what is kept and not measured again, the page and the report, and refusals."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser
from safetensors.torch import load_file
from typer.testing import CliRunner

import orchard
from browser import browser, needs_chromium, reading
from helpers import ROOT, SMALL, small_arrays
from orchard.audit.audit import audit
from orchard.audit.document import document, keep
from orchard.audit.findings import Plan, read_audit
from orchard.audit.table import table_of
from orchard.cli import app
from orchard.errors import Stopped, UserError
from orchard.report.content import contents_of
from orchard.report.page import whole_page, write_report
from orchard.runs.folder import RunFolder
from synthetic import SyntheticRun

__all__ = ["browser"]

TINY: dict[str, Any] = {"dataset": "digits", "clients": 3, "model": "mlp", "rounds": 3, "epochs": 1, "fraction": 0.3}


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Two runs with audits, and what the command printed."""
    root = tmp_path_factory.mktemp("runs")
    for name, method in {"a": "apple:budget=1", "b": "separate"}.items():
        kind, _, budget = method.partition(":budget=")
        parameters = {"name": kind, "budget": int(budget)} if budget else kind
        orchard.run(**TINY, method=parameters, out=root / name, workers=1)
    said = CliRunner().invoke(app, ["audit", str(root), "--shadows", "2", "--canaries", "24"])
    assert said.exit_code == 0, said.output
    return root, said.stdout


def test_the_command_prints_one_table_and_keeps_it(audited: tuple[Path, str]) -> None:
    root, printed = audited
    head, *rows = printed.splitlines()
    assert head.split() == ["what", "is", "measured", "apple:budget=1", "separate"]
    assert [row.rstrip()[-1] for row in rows if row.startswith("loss threshold, the last upload: AUC")] == ["–"]
    assert "labels of single samples" in printed
    assert "separate: labels not measured: only a part of the model travels, or nothing" in printed
    found = read_audit(root / "a")
    assert found is not None
    assert found.same_figures
    assert {one.sees for one in found.membership} >= {"last", "uploads", "personalised"}
    assert {one.attack for one in found.membership} == {"threshold", "likelihood"}
    assert found.labels is not None
    assert found.labels.right == 20
    assert found.images[0].exactly
    assert found.wanted is not None
    alone = read_audit(root / "b")
    assert alone is not None
    assert (alone.wanted, alone.labels, alone.images) == (None, None, [])
    assert {one.sees for one in alone.membership} == {"personalised"}
    assert [cells[1] != "–" for cells in table_of([("b", alone)])[1]] == [True] * 6
    assert (root / "a" / "audit" / "recovered.png").read_bytes().startswith(b"\x89PNG")
    assert not (root / "b" / "audit" / "recovered.png").exists()


def test_what_was_measured_is_not_measured_again(audited: tuple[Path, str]) -> None:
    root, _ = audited
    file = root / "b" / "audit" / "shadow-1.safetensors"
    losses, before = load_file(file), file.stat().st_mtime_ns
    first = read_audit(root / "b")
    assert audit(root / "b", Plan(2, 24)) == first
    assert file.stat().st_mtime_ns == before
    file.write_bytes(b"damaged")
    assert audit(root / "b", Plan(2, 24)) == first
    assert load_file(file).keys() == losses.keys()
    audit(root / "b", Plan(2, 24, seed=1))  # another plan: nothing that is kept fits it
    assert file.stat().st_mtime_ns != before


def test_the_page_of_the_documentation_is_made_from_what_is_kept(audited: tuple[Path, str], tmp_path: Path) -> None:
    (tmp_path / "audit.md").write_text("one\n\n{TABLE}\n\n{NOTES}\n", "utf-8")
    for label, name in {"apple": "a", "separate": "b"}.items():
        found = read_audit(audited[0] / name)
        assert found is not None
        keep(tmp_path, [(label, found)])
    lines = document(tmp_path).splitlines()
    assert lines[2] == "| what is measured | apple | separate |"
    assert lines[-1].startswith("- separate: samples not measured")
    assert document(ROOT / "results") == (ROOT / "docs" / "audit.md").read_text("utf-8")


def test_it_is_on_the_report(audited: tuple[Path, str]) -> None:
    root, _ = audited
    content = contents_of([RunFolder(root / "a"), RunFolder(root / "b")])[0]
    assert content.leaks is not None
    assert list(content.leaks.head) == ["what is measured", "apple:budget=1", "separate"]
    assert [label for label, _ in content.leaks.pictures] == ["apple:budget=1"]
    text = whole_page([content])
    assert "data:image/png;base64," in text
    assert "labels of single samples" in text


@needs_chromium
def test_a_reader_sees_it_where_there_is_an_audit(browser: Browser, audited: tuple[Path, str], tmp_path: Path) -> None:
    write_report([audited[0]], tmp_path / "audited.html")
    with reading(browser, tmp_path / "audited.html") as reader:
        assert "labels of single samples" in reader.text("#leaks-table")
        assert reader.page.locator("#recovered img").evaluate("image => image.naturalWidth") > 500
        assert "Attacks are lower bounds" in reader.text("#leaks-notes")
        assert reader.troubles == []
    write_report([SyntheticRun(tmp_path / "run").finish()], tmp_path / "plain.html")
    with reading(browser, tmp_path / "plain.html") as reader:
        assert not reader.page.locator("#leaks").is_visible()
        assert reader.troubles == []


def test_an_audit_that_is_stopped_says_how_to_go_on(audited: tuple[Path, str], tmp_path: Path) -> None:
    shutil.copytree(audited[0] / "b", tmp_path / "run")
    before = (tmp_path / "run" / "audit.json").read_text()
    with pytest.raises(Stopped, match="the same command goes on from there"):
        audit(tmp_path / "run", Plan(2, 24), stop=lambda: True)
    assert (tmp_path / "run" / "audit.json").read_text() == before


def test_an_audit_may_leave_shadows_and_canaries_out(audited: tuple[Path, str]) -> None:
    root, _ = audited
    nothing = ["--shadows", "0", "--canaries", "0", "--format", "markdown"]
    said = CliRunner().invoke(app, ["audit", str(root / "b"), *nothing])
    assert said.exit_code == 0, said.output
    assert said.stdout.splitlines()[0] == "| what is measured | separate |"
    assert len(said.stdout.splitlines()) == 4


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--shadows", "3"], "--shadows 3: an even number"),
        (["--shadows", "-2"], "--shadows -2: an even number"),
        (["--canaries", "4"], "--canaries 4: at least 8"),
        (["--seed", "-1"], "--seed -1: not below 0"),
    ],
)
def test_plans_that_make_no_sense_are_refused(audited: tuple[Path, str], options: list[str], reason: str) -> None:
    refused(audited[0] / "b", reason, *options)


def refused(run: Path, reason: str, *options: str) -> None:
    said = CliRunner().invoke(app, ["audit", str(run), *options])
    assert isinstance(said.exception, UserError)
    assert reason in str(said.exception)


def test_a_run_between_sites_is_refused(audited: tuple[Path, str], tmp_path: Path) -> None:
    shutil.copytree(audited[0] / "b", tmp_path / "run")
    (tmp_path / "run" / "plan.json").write_text("{}")
    refused(tmp_path / "run", "was run between sites, and an audit needs the data of all of them; rehearse with")


def test_runs_that_cannot_be_repeated_are_refused(audited: tuple[Path, str], tmp_path: Path) -> None:
    orchard.run(data=small_arrays(), **SMALL, out=tmp_path / "python")
    refused(tmp_path / "python", "its data were handed over in Python")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "is neither the folder of a run")
    shutil.copytree(audited[0] / "b", tmp_path / "run")
    about = json.loads((tmp_path / "run" / "environment.json").read_text())
    (tmp_path / "run" / "environment.json").write_text(json.dumps({**about, "data": "others"}))
    refused(tmp_path / "run", "the data are not those that it was run on")
    (tmp_path / "run" / "summary.json").unlink()
    refused(tmp_path / "run", "is not finished; what was saved is safe; go on with: orchard resume")


def test_code_that_a_run_names_is_not_run_unasked(audited: tuple[Path, str], tmp_path: Path) -> None:
    shutil.copytree(audited[0] / "b", tmp_path / "run")
    file = tmp_path / "run" / "experiment.toml"
    file.write_text(file.read_text().replace('model = "mlp"', 'model = "theirs:net"'))
    refused(tmp_path / "run", "its model 'theirs:net' is a program")


def test_an_audit_that_is_damaged_or_newer_is_refused(audited: tuple[Path, str], tmp_path: Path) -> None:
    shutil.copytree(audited[0] / "b", tmp_path / "run")
    file = tmp_path / "run" / "audit.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "format": 99}))
    with pytest.raises(UserError, match="is a leakage report of format 99"):
        read_audit(tmp_path / "run")
    file.write_text(json.dumps({**content, "membership": 3}))
    with pytest.raises(UserError, match="cannot be read"):
        read_audit(tmp_path / "run")
    file.unlink()
    assert read_audit(tmp_path / "run") is None
