"""The documents say what is so: links lead somewhere, examples run, lists are complete."""

import ast
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import orchard
from helpers import small_run
from orchard.methods.registry import BUILT_IN
from test_architecture import ROOMS

ROOT = Path(__file__).parent.parent
README, CONTRIBUTING, USAGE = ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs" / "usage.md"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def code_blocks(document: Path) -> list[str]:
    return [code for language, code in FENCED.findall(document.read_text("utf-8")) if language == "python"]


def rows(document: Path, section: str) -> list[list[str]]:
    """Return the cells of the rows that name something in code, in a section's table."""
    _, _, rest = document.read_text("utf-8").partition(f"\n## {section}\n")
    text, _, _ = rest.partition("\n## ")
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings: lower case, hyphens for spaces, no punctuation."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", document.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def run_example(code: str, tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "example.py"
    file.write_text(code, "utf-8")
    return runpy.run_path(str(file))


def test_the_readme_is_short() -> None:
    assert len(README.read_text("utf-8").split()) <= 750


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", document.read_text("utf-8")))
    for link in links:
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("document", [README, USAGE, CONTRIBUTING], ids=lambda path: path.name)
def test_code_compiles(document: Path) -> None:
    blocks = code_blocks(document)
    assert blocks
    for code in blocks:
        ast.parse(code)


def test_the_first_example_runs(tmp_path: Path) -> None:
    code, replaced = re.subn(r"rounds=\d+", "rounds=1", code_blocks(README)[0])
    assert replaced == 1
    names = run_example(code, tmp_path)
    assert isinstance(names["result"], orchard.Result)
    assert isinstance(names["model"], nn.Module)


def test_the_example_of_a_method_is_fedavg_if_nothing_is_kept(tmp_path: Path) -> None:
    (code,) = code_blocks(CONTRIBUTING)
    halfway = run_example(code, tmp_path)["Halfway"]
    none_kept, some_kept, fedavg = (
        small_run(method=method).scores(measure="auroc") for method in (halfway(keep=0), halfway(), "fedavg-local")
    )
    assert np.array_equal(none_kept, fedavg)
    assert not np.array_equal(some_kept, fedavg)


def test_the_table_of_methods_is_complete() -> None:
    _, _, rest = README.read_text("utf-8").partition("\n## Methods\n")
    table = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("|")]
    assert sorted(re.findall(r"`([^`]+)`", "".join(table))) == sorted(BUILT_IN)


def test_the_table_of_rooms_is_the_one_that_is_guarded() -> None:
    written = {cells[0].strip("`/"): cells[-1] for cells in rows(CONTRIBUTING, "Rooms")}
    assert written.pop("cli") == "all of them"
    assert ROOMS["cli"] == set(ROOMS) - {"cli"}
    assert {room: set(re.findall(r"\w+", cell)) for room, cell in written.items()} == {
        room: others for room, others in ROOMS.items() if room != "cli"
    }


def test_the_changelog_names_this_version() -> None:
    assert f"\n## [{orchard.__version__}] - " in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_the_citation_names_this_version_and_the_paper_of_every_method() -> None:
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    lines = citation.splitlines()
    assert "cff-version: 1.2.0" in lines
    assert f"version: {orchard.__version__}" in lines
    assert "\t" not in citation
    sources = [file.read_text("utf-8") for file in (ROOT / "src" / "orchard" / "methods").glob("*.py")]
    papers = {paper for source in sources for paper in re.findall(r"https://arxiv\.org/abs/[\d.]+\d", source)}
    assert papers == set(re.findall(r"url: (https://arxiv\.org/\S+)", citation))
    assert citation.count("  - type: ") == len(papers)
