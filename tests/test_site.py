"""The documentation as a site: every link leads somewhere, and it can be read from a folder without a network."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from playwright.sync_api import Browser, expect

import orchard
import orchard.methods
from browser import browser, needs_chromium, reading

__all__ = ["browser"]

ROOT = Path(__file__).parent.parent


def build(site: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    built = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert built.returncode == 0, built.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build(folder)
    return folder


def test_files_at_the_top_are_pages_and_their_links_stay_in_the_site(site: Path) -> None:
    first = (site / "index.html").read_text("utf-8")
    assert 'href="contributing.html#add-a-method-in-one-file"' in first
    assert 'src="report.png"' in first
    assert "core/contract.py" in (site / "contributing.html").read_text("utf-8")
    assert not [page for page in site.rglob("*.html") if 'href="src/' in page.read_text("utf-8")]


@pytest.mark.parametrize(("page", "package"), [("python.html", orchard), ("python-methods.html", orchard.methods)])
def test_all_that_a_package_exports_is_explained(site: Path, page: str, package: ModuleType) -> None:
    explained = set(re.findall(r'<h2 id="([\w.]+)"', (site / page).read_text("utf-8")))
    assert explained == {f"{package.__name__}.{name}" for name in package.__all__}


@needs_chromium
def test_it_is_read_and_searched_from_a_folder_without_a_network(site: Path, browser: Browser) -> None:
    with reading(browser, site / "index.html") as reader:
        reader.page.get_by_role("textbox", name="Search").fill("pathological")
        found = reader.page.locator(".md-search-result__link")
        expect(found.first).to_be_visible()
        assert any("data.html" in str(link.get_attribute("href")) for link in found.all())
        assert all(address.startswith("file:") for address in reader.requests)
        assert not reader.troubles
