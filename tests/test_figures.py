"""The paper's figures, drawn for print."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchard.cli import app
from synthetic import SyntheticRun


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    return [SyntheticRun(root / method, method).finish() for method in ("apple", "fedavg-ft", "separate")]


@pytest.mark.parametrize(("kind", "magic"), [("pdf", b"%PDF"), ("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_papers_figures_are_drawn(compared: list[Path], tmp_path: Path, kind: str, magic: bytes) -> None:
    arguments = ["figures", *map(str, compared), "--format", kind, "-o", str(tmp_path / "drawn")]
    made = CliRunner().invoke(app, arguments, catch_exceptions=False)
    names = [f"{name}.{kind}" for name in ("convergence", "clients", "relationships-apple", "data")]
    assert made.stdout.splitlines() == [f"drawn in {tmp_path / 'drawn' / name}" for name in names]
    for name in names:
        assert (tmp_path / "drawn" / name).read_bytes().startswith(magic)
    if kind == "svg":
        for name, words in (
            ("convergence", ["training loss", "mean client test accuracy", "fedavg-local"]),
            ("clients", ["north", "separate"]),
            ("relationships-apple", ["self-relationships", "of north", "of west"]),
        ):
            text = (tmp_path / "drawn" / f"{name}.svg").read_text("utf-8")
            assert all(f">{word}<" in text for word in words)
    if kind == "pdf":
        content = (tmp_path / "drawn/convergence.pdf").read_bytes()
        assert b"/Subtype /Image" not in content
        assert b"/FontFile2" in content  # TrueType, which publishers' tools can read
        width = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ", content)
        assert width is not None
        assert float(width[1]) == pytest.approx(7 * 72)


def test_odd_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    names = ["$a_b$", "日本医院", "<b>", "x" * 200, "{0}", r"\frac"]
    run = SyntheticRun(tmp_path / "run", names=names).finish()
    CliRunner().invoke(app, ["figures", str(run), "--format", "svg", "-o", str(tmp_path)], catch_exceptions=False)
    text = (tmp_path / "clients.svg").read_text("utf-8")
    assert all(f">{name}<" in text for name in ("$a_b$", "&lt;b&gt;", "{0}", r"\frac", "x" * 17 + "…"))
