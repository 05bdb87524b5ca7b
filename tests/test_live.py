"""The page while a run goes on, in a real browser; and how it is served."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser

from browser import browser, needs_chromium, reading
from orchard.report import live
from orchard.report.live import live_page
from orchard.report.page import write_report
from synthetic import SyntheticRun

__all__ = ["browser"]

MAIN = "from orchard.cli import main; main()"


@needs_chromium
def test_the_page_follows_a_run_and_nobody_loses_their_place(browser: Browser, tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run", rounds=6)
    with run.folder.locked(), live_page(run.folder.path) as address, reading(browser, address) as reader:
        page = reader.page
        page.locator("#status", has_text="live").wait_for()
        assert "There are no figures yet" in reader.text("#story")
        run.run(3)
        page.locator("#round-text", has_text="after round 3 of 6").wait_for()  # the slider follows the last round
        page.select_option("#client", label="east")
        page.locator("#round").fill("1")
        reader.choose("#peers", "south")
        page.evaluate("scrollTo(0, 900)")
        selves = reader.lines("#selves")
        run.round()
        page.locator("#tiles", has_text="4 of 6").wait_for()
        assert reader.lines("#selves") != selves
        assert reader.lines("#selves").keys() == {"north", "east", "west"}
        assert page.input_value("#client") == "2"
        assert reader.text("#whose") == "east"
        assert reader.text("#round-text") == "after round 1 of 6"
        assert page.evaluate("scrollY") == 900
        assert page.evaluate("document.activeElement.type") == "checkbox"  # what had the focus has it still
        assert {urlsplit(url).hostname for url in reader.requests if url.startswith("http")} == {"127.0.0.1"}
        assert reader.troubles == []


@needs_chromium
def test_a_finished_run_looks_the_same_as_its_report(browser: Browser, tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run").finish()
    write_report([run], tmp_path / "report.html")
    looks = []
    with live_page(run) as address:
        for place in (address, tmp_path / "report.html"):
            with reading(browser, place) as reader:
                reader.page.locator("#matrix svg").wait_for()
                looks.append((reader.text("#story"), reader.page.inner_html("main")))
    assert looks[0] == looks[1]


@needs_chromium
def test_a_page_stays_when_its_server_is_gone(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LAST_LOOK", 30.0)  # on a busy machine a browser may need more than the usual 3 s
    run = SyntheticRun(tmp_path / "run").run(2)
    with live_page(run.folder.path) as address:
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        page.locator("#status", has_text="interrupted").wait_for()  # nobody holds the folder
        run.finish()
    page.locator("#story", has_text="for 5 rounds").wait_for()  # the server waited until the page had seen the end
    page.locator("#status", has_text="no longer live").wait_for()
    assert page.locator("#matrix svg").is_visible()
    context.close()


def answer(address: str, path: str, **headers: str) -> int:
    url = urlsplit(address)
    connection = http.client.HTTPConnection("127.0.0.1", url.port or 0, timeout=10)
    connection.request("GET", path, headers=headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_the_page_is_for_this_machine_and_whoever_has_its_address(tmp_path: Path) -> None:
    with live_page(SyntheticRun(tmp_path / "run").finish()) as address:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{16}/", address)
        path = urlsplit(address).path
        assert answer(address, path) == 200
        assert answer(address, "/") == answer(address, "/data") == answer(address, f"{path}../run") == 404
        assert answer(address, path, Host="elsewhere.example") == 403


def test_what_has_not_changed_is_not_sent_again(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run").run(2)
    with live_page(run.folder.path) as address:
        with urllib.request.urlopen(f"{address}data") as first:  # noqa: S310
            version = re.search(rb'"version": "([^"]+)"', first.read())
        assert version is not None
        have = f"{urlsplit(address).path}data?have={version[1].decode().replace(' ', '+')}"
        assert answer(address, have) == 204
        run.round()
        assert answer(address, have) == 200


def test_a_page_can_be_asked_for_before_its_run_begins(tmp_path: Path) -> None:
    with live_page(tmp_path / "later") as address, urllib.request.urlopen(address) as page:  # noqa: S310
        assert b"The run is about to begin." in page.read()


def listening(folder: Path) -> dict[str, str]:
    """Return an environment in which the browser is a program that writes down its argument, and what is there."""
    browser = folder / "browser"
    look = 'file="${1#file://}"; echo "$1"; stat -c %a "$(dirname "$file")"; cat "$file"; echo'
    browser.write_text(f'#!/bin/sh\n{{ {look}; }} > "$0.opened"\n')
    browser.chmod(0o755)
    return {**os.environ, "BROWSER": str(browser)}


def hearing_ctrl_c() -> None:
    """Do not go deaf with the tests, which somebody may have sent into the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def opened(folder: Path) -> str:
    """Return the address of the page that the browser was led to."""
    for _ in range(400):
        if (folder / "browser.opened").exists() and (text := (folder / "browser.opened").read_text()).endswith("\n\n"):
            place, mode, page = text.split("\n", 2)
            assert place.startswith("file:///")  # all that others can see of it
            assert mode == "700"
            return page.partition("url=")[2].partition('"')[0]
        time.sleep(0.05)
    return "no browser was opened"


def arguments_of_all_processes() -> str:
    return " ".join(path.read_text(errors="replace") for path in Path("/proc").glob("[0-9]*/cmdline"))


def test_half_a_request_holds_nothing_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.LiveHandler, "timeout", 0.2)
    with live_page(SyntheticRun(tmp_path / "run").finish()) as address:
        url = urlsplit(address)
        waiting = [socket.create_connection(("127.0.0.1", url.port or 0), timeout=20) for _ in range(20)]
        for connection in waiting:
            connection.sendall(b"GET / HT")
        assert {connection.recv(1) for connection in waiting} == {b""}  # the server has hung up
        assert answer(address, url.path) == 200
        for connection in waiting:
            connection.close()


def test_watching_opens_a_browser_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run").finish()
    command = [sys.executable, "-c", MAIN, "watch", str(run)]
    with subprocess.Popen(
        command, env=listening(tmp_path), stdout=subprocess.PIPE, text=True, preexec_fn=hearing_ctrl_c
    ) as watch:
        assert watch.stdout is not None
        address = watch.stdout.readline().split()[2].rstrip(";")
        seen = arguments_of_all_processes()
        found = opened(tmp_path)
        if found != address or address in seen:
            watch.kill()
        assert found == address
        assert address not in seen
        with urllib.request.urlopen(address) as page:  # noqa: S310
            assert b"digits, iid split" in page.read()
        watch.send_signal(signal.SIGINT)
        assert watch.wait(10) == 0


@pytest.mark.parametrize("browser_there", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_run_opens_its_page_and_runs_all_the_same_where_it_cannot(tmp_path: Path, browser_there: bool) -> None:
    environment = listening(tmp_path) if browser_there else {**os.environ, "BROWSER": "/nowhere/browser"}
    quick = ["--rounds", "1", "--set", "epochs=1", "--set", "model=mlp", "--out", "kept"]
    command = [sys.executable, "-c", MAIN, "run", *quick, "--open"]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    _advice, live, progress = run.stderr.splitlines()
    assert live.startswith("live at http://127.0.0.1:")
    assert progress.startswith("round 1/1")
    assert (tmp_path / "kept/summary.json").exists()
    if browser_there:
        assert opened(tmp_path) == live.removeprefix("live at ")
