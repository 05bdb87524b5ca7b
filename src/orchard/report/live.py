"""The live page of a run: served only to this machine, at an address that cannot be guessed."""

import json
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from orchard.errors import UserError
from orchard.report.content import contents_of
from orchard.report.page import page, pages_data
from orchard.runs.folder import RunFolder
from orchard.text import readable

LOOPBACK = "127.0.0.1"
CHANGING = ("federation.json", "metrics.jsonl", "summary.json")
WATCHED_WITHIN = 5.0
"""A page counts as open if it asked for data within so many seconds."""
REQUEST_SECONDS = 10.0
"""A request that is not complete after so many seconds without a byte is dropped."""
LAST_LOOK = 3.0
"""Seconds that the server waits for open pages to fetch the end of a run."""


class LiveServer(ThreadingHTTPServer):
    """Serves one run's page and its data."""

    def __init__(self, run: Path) -> None:
        super().__init__((LOOPBACK, 0), LiveHandler)
        self.folder = RunFolder(run)
        self.key = secrets.token_urlsafe(12)
        self.delivered, self.last_asked = "", float("-inf")

    def server_bind(self) -> None:
        """Bind to a free port, without looking up the machine's name, which can take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = LOOPBACK, self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: a browser that has gone away must not disturb the run's output."""

    @property
    def address(self) -> str:
        """Return the page's address."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.key}/"

    def version(self) -> str:
        """Return a text that changes whenever there is something new to show."""
        marks: list[str] = [self.folder.state()]
        for name in CHANGING:
            with suppress(OSError):
                file = (self.folder.path / name).stat()
                marks.append(f"{file.st_mtime_ns}-{file.st_size}")
        return " ".join(marks)

    def data(self) -> dict[str, Any]:
        """Return everything that the page shows now."""
        version = self.version()
        try:
            return {**pages_data(contents_of([self.folder], live=True)), "version": version}
        except UserError as error:
            begun = (self.folder.path / "federation.json").exists()
            waiting = str(error) if begun else "The run is about to begin."
            return {"title": readable(self.folder.path.name), "waiting": waiting, "version": version}

    def let_pages_catch_up(self) -> None:
        """Wait a little for an open page to fetch the end of the run."""
        until = time.monotonic() + LAST_LOOK
        while time.monotonic() < until and self.delivered != self.version():
            if time.monotonic() - self.last_asked > WATCHED_WITHIN:
                return
            time.sleep(0.05)


class LiveHandler(BaseHTTPRequestHandler):
    """Answers a browser's requests."""

    server: LiveServer
    timeout = REQUEST_SECONDS

    def do_GET(self) -> None:
        """Send the page or its data; no data if the page already has the newest."""
        port, url = self.server.server_port, urlsplit(self.path)
        if self.headers.get("Host") not in (f"{LOOPBACK}:{port}", f"localhost:{port}"):
            return self.send_error(403)  # DNS rebinding: another site's name points here
        if url.path == f"/{self.server.key}/":
            return self._send("text/html; charset=utf-8", page(self.server.data()))
        if url.path != f"/{self.server.key}/data":
            return self.send_error(404)
        self.server.last_asked = time.monotonic()
        version = self.server.version()
        if parse_qs(url.query).get("have") == [version]:
            self.send_response(204)
            self.end_headers()
        else:
            data = self.server.data()
            self._send("application/json", json.dumps(data, allow_nan=False))
            version = data["version"]
        self.server.delivered = version
        return None

    def _send(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        headers = {"Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-store"}
        for name, value in {**headers, "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing: standard error belongs to the run."""


@contextmanager
def live_page(run: Path) -> Iterator[str]:
    """Serve a run's page in the background; yield its address."""
    with LiveServer(run) as server:
        Thread(target=server.serve_forever, name="live page", daemon=True).start()
        try:
            yield server.address
        finally:
            server.let_pages_catch_up()
            server.shutdown()


@contextmanager
def shown_live(run: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Show a run in a browser while it goes on; if the page cannot be served, say so and go on without it."""
    with ExitStack() as stack:
        try:
            address = stack.enter_context(live_page(run))
        except OSError as error:
            say(f"cannot serve the live page: {error.strerror}; the run goes on without it")
        else:
            say(f"live at {address}")
            stack.enter_context(browser_at(address))
        yield


@contextmanager
def browser_at(address: str) -> Iterator[None]:
    """Open a browser, if there is one, in its own process, so that it cannot delay the run or disturb its output.

    Everybody on a machine can read the arguments of its processes. So they name a file, which only this user can read,
    and which leads to the address.
    """
    nowhere = subprocess.DEVNULL
    with ExitStack() as stack:
        with suppress(OSError):
            folder = stack.enter_context(TemporaryDirectory(prefix="orchard-", ignore_cleanup_errors=True))
            leading = Path(folder) / "live.html"
            leading.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">\n', "utf-8")
            command = [sys.executable, "-m", "webbrowser", "-t", leading.as_uri()]
            subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)  # noqa: S603
        yield
