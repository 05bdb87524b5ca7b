"""A real browser without a window, cut off from the network."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NO_NETWORK = ["--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", *NO_NETWORK]
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield opened
        opened.close()


class Reader:
    """Somebody who looks at a page; whatever goes wrong on it, or is asked of the network, is noted."""

    def __init__(self, context: BrowserContext) -> None:
        self.page: Page = context.new_page()
        self.troubles: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.troubles.append(message.text))
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("dialog", self.dismiss)
        self.page.on("request", lambda request: self.requests.append(request.url))

    def dismiss(self, dialog: Dialog) -> None:
        self.troubles.append(f"a dialogue: {dialog.message}")
        dialog.dismiss()

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector).replace("\u00a0", " ")  # a space where no line may end

    def lines(self, chart: str) -> dict[str, str]:
        """Return what is drawn of each series of a chart."""
        script = "all => Object.fromEntries(all.map(e => [e.dataset.series, e.getAttribute('d')]))"
        drawn: dict[str, str] = self.page.eval_on_selector_all(f"{chart} path[data-series]", script)
        return drawn

    def cells(self, chart: str) -> list[str]:
        script = "all => all.map(e => e.getAttribute('fill') + e.getAttribute('fill-opacity'))"
        drawn: list[str] = self.page.eval_on_selector_all(f"{chart} [data-cell]", script)
        return drawn

    def choose(self, box: str, label: str) -> None:
        self.page.locator(f"{box} label", has_text=label).first.locator("input").click()

    def sideways(self) -> int:
        """Return by how much the page is wider than the window."""
        beyond: int = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        return beyond


@contextmanager
def reading(browser: Browser, address: str | Path, *, width: int = 1280, dark: bool = False) -> Iterator[Reader]:
    """Open a page; a file is read without any network at all."""
    scheme = "dark" if dark else "light"
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
    context.set_offline(isinstance(address, Path))
    reader = Reader(context)
    reader.page.goto(address.as_uri() if isinstance(address, Path) else address)
    yield reader
    context.close()
