"""The documentation as a site: every link leads somewhere, and it can be read from a folder without a network."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock
from playwright.sync_api import Browser, expect

import orchard
import orchard.methods
from browser import browser, needs_chromium, reading
from test_documents import code_blocks

__all__ = ["browser"]

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Build the site as `make docs` does, notebooks run and all; once, however many processes test."""
    own = tmp_path_factory.getbasetemp()
    folder = (own if worker_id == "master" else own.parent) / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            built = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
            assert built.returncode == 0, built.stderr
    return folder


def test_files_at_the_top_are_pages_and_their_links_stay_in_the_site(site: Path) -> None:
    first = (site / "index.html").read_text("utf-8")
    assert 'href="contributing.html#add-a-method-in-one-file"' in first
    assert 'src="report.png"' in first
    assert "core/contract.py" in (site / "contributing.html").read_text("utf-8")
    assert not [page for page in site.rglob("*.html") if 'href="src/' in page.read_text("utf-8")]


def test_all_that_is_exported_is_explained(site: Path) -> None:
    pages = [(site / page).read_text("utf-8") for page in ("python.html", "python-methods.html")]
    explained = {name for page in pages for name in re.findall(r'<h2 id="orchard\.(?:methods\.)?(\w+)"', page)}
    assert explained == {*orchard.__all__, *orchard.methods.__all__}


@needs_chromium
def test_it_is_read_and_searched_from_a_folder_without_a_network(site: Path, browser: Browser) -> None:
    with reading(browser, site / "index.html") as reader:
        box = reader.page.get_by_role("textbox", name="Search")
        box.click()
        # What is typed while the index is still being read is looked for at the next key only.
        expect(reader.page.locator(".md-search-result__meta")).to_have_text("Type to start searching")
        box.press_sequentially("pathological")
        found = reader.page.locator(".md-search-result__link")
        expect(found.first).to_be_visible()
        assert any("data.html" in str(link.get_attribute("href")) for link in found.all())
        assert all(address.startswith("file:") for address in reader.requests)
        assert not reader.troubles


@needs_chromium
def test_notebooks_show_what_came_out(site: Path, browser: Browser) -> None:
    notebooks = site / "notebooks"
    assert len(list(notebooks.glob("*.html"))) == len(list((ROOT / "docs" / "notebooks").glob("*.py")))
    assert "<th>balanced_accuracy</th>" in (notebooks / "hospital_tables.html").read_text("utf-8")
    assert re.search(r"keep 0\.5: \d\d\.\d%", (notebooks / "own_method.html").read_text("utf-8"))
    with reading(browser, notebooks / "first_federation.html") as reader:
        assert "graft: round 8/8" in reader.text("article")
        assert reader.page.locator("polyline").count() == 8
        assert reader.page.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
        assert not reader.troubles


def test_the_method_in_the_notebook_is_that_of_the_guide() -> None:
    notebook = (ROOT / "docs" / "notebooks" / "own_method.py").read_text("utf-8")
    (code,) = code_blocks(ROOT / "CONTRIBUTING.md")
    _, _, classes = code.partition("\nclass ")
    assert classes in notebook
