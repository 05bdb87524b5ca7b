"""Run a party in the foreground, as systemd and containers want it; stop it; and ask how it is.

SIGTERM and SIGINT end it with all of its processes. That loses nothing: what counts is on the disk before it is sent.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil
from filelock import FileLock, Timeout

from orchard.errors import RunFailed, UserError
from orchard.sites.party import Party

STATE = "state.json"
POLL = 2.0
"""Seconds between looks at the processes and their connections."""
STALE = 30.0
"""A state that was written longer ago says nothing."""
PAUSE = 5.0
"""Seconds before FLARE is started again."""
DEATHS, WITHIN = 5, 300.0
"""After so many deaths within so many seconds, somebody must look."""
FLARE = re.compile(r"nvflare\.private\.fed\.app\.")
"""How the names of the modules begin that FLARE's processes run."""
CLOCK = 5.0
"""So many seconds a process may seem to have begun earlier or later, if the machine's clock is set meanwhile."""
GRACE = 10.0
"""Seconds that processes have to end by themselves."""

Say = Callable[[str], None]


def start(party: Party, say: Say) -> None:
    """Run a party until it is told to stop; raise if FLARE cannot be kept running."""
    party.make_home()
    try:
        with FileLock(party.home / "lock", timeout=0):
            _end(_left_behind(party))
            party.link_kit()  # not before: whoever runs already reads these links
            _Service(party, say).run()
    except Timeout:
        raise UserError(f"{party.name}: is running already, in {party.home}") from None


@dataclass
class _Service:
    """FLARE's processes of one party."""

    party: Party
    say: Say
    stopping: threading.Event = field(default_factory=threading.Event)
    children: set[psutil.Process] = field(default_factory=set)
    deaths: list[float] = field(default_factory=list)
    before: set[Any] = field(default_factory=set)
    """The connections that the last look has found."""
    contact: float | None = None
    """When the party was last seen connected, or the server ready."""
    well: bool = False

    def run(self) -> None:
        signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        before = {number: signal.signal(number, lambda *_: self.stopping.set()) for number in signals}
        try:
            while not self.stopping.is_set():
                code = self._once()
                if not self.stopping.is_set():
                    self._died(code)
        finally:
            (self.party.home / STATE).unlink(missing_ok=True)
            for number, handler in before.items():
                signal.signal(number, handler)
        self.say(f"{self.party.name}: stopped")

    def _once(self) -> int | None:
        """Start FLARE and look after it until it ends or is to be stopped; end all that it has started."""
        environment = {**self.party.environment(), **os.environ}
        self._write(None)
        command = self.party.command(sys.executable)
        # In a session of its own, so that Ctrl-C ends it by way of this process.
        flare = subprocess.Popen(  # noqa: S603 - the command is made here, of the kit's name and folder
            command, cwd=self.party.home, env=environment, start_new_session=True
        )
        self.say(f"{self.party.name}: started, process {flare.pid}; logs are in {self.party.home}")
        known = psutil.Process(flare.pid)
        try:
            while flare.poll() is None and not self.stopping.wait(POLL):
                self._look(known)
            return flare.returncode
        finally:
            _end({*self.children, *_left_behind(self.party)})
            self.children.clear()
            self.well = False
            flare.wait()

    def _look(self, flare: psutil.Process) -> None:
        """See whether FLARE is connected: what is cut off at once, as by a wrong certificate, does not count."""
        try:
            self.children |= set(flare.children(recursive=True))
            peers = _peers(self.party, flare)
        except psutil.Error:  # it is ending
            return
        steady, self.before = (peers or set()) & self.before, peers or set()
        well = peers is not None if self.party.kind == "server" else bool(steady)
        self.contact = time.time() if well else self.contact
        if well != self.well:
            self.well = well
            state = "connected to the server" if self.party.kind == "site" else "ready"
            self.say(f"{self.party.name}: {state if well else f'not {state}'}")
        self._write(len(steady) if well else None)

    def _write(self, peers: int | None) -> None:
        """Leave for others how the party is."""
        mine = psutil.Process()
        about = {"process": mine.pid, "began": mine.create_time(), "written": time.time()}
        seen = {"connected": peers is not None, "peers": peers or 0, "contact": self.contact}
        new = self.party.home / f".{STATE}.new"
        with suppress(OSError):  # a full disk; what is old says nothing, so whoever asks is told
            new.write_text(json.dumps({**about, **seen}), "utf-8")
            new.replace(self.party.home / STATE)

    def _died(self, code: int | None) -> None:
        now = time.monotonic()
        self.deaths = [*(then for then in self.deaths if now - then < WITHIN), now]
        if len(self.deaths) >= DEATHS:
            raise RunFailed(
                f"{self.party.name}: ended {DEATHS} times within {WITHIN / 60:.0f} minutes, the last time with code "
                f"{code}; see {self.party.home / 'log.txt'}"
            )
        self.say(f"{self.party.name}: ended with code {code}; starting it again")
        self.stopping.wait(PAUSE)


def _left_behind(party: Party) -> set[psutil.Process]:
    """Return the processes that run FLARE in a party's folder, e.g. after the process that started them was killed."""
    found = ((process, process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))
    home = str(party.home)
    return {process for process, words in found if home in words and any(FLARE.match(word) for word in words)}


def _end(processes: set[psutil.Process]) -> None:
    """End processes; kill those that do not end by themselves."""
    there = [process for process in processes if process.is_running()]
    for process in there:
        _signal(process, signal.SIGTERM)
    _, left = psutil.wait_procs(there, timeout=GRACE)
    for process in left:
        _signal(process, signal.SIGKILL)


def _signal(process: psutil.Process, number: int) -> None:
    with suppress(psutil.Error):
        process.send_signal(number)


def _peers(party: Party, flare: psutil.Process) -> set[Any] | None:
    """Return a site's connections to the server's port, or the server's to its own; None if that is not open."""
    mine = flare.net_connections("tcp")
    linked = [one for one in mine if one.status == psutil.CONN_ESTABLISHED]
    if party.kind == "site":
        return {(one.laddr, one.raddr) for one in linked if one.raddr.port == party.port}
    listens = any(one.status == psutil.CONN_LISTEN and one.laddr.port == party.port for one in mine)
    return {(one.laddr, one.raddr) for one in linked if one.laddr.port == party.port} if listens else None


# --- Asked by others ---


def _state(party: Party) -> dict[str, Any] | None:
    """Return the state of a party's process; None if there is no such process."""
    try:
        state: dict[str, Any] = json.loads((party.home / STATE).read_text("utf-8"))
        there = abs(psutil.Process(state["process"]).create_time() - state["began"]) < CLOCK
    except PermissionError as error:
        raise UserError(f"{error.filename}: cannot be read; ask as the user that the party runs as") from None
    except (OSError, ValueError, KeyError, TypeError, psutil.NoSuchProcess):
        return None
    return state if there else None


def stop(party: Party, say: Say, seconds: float = 3 * GRACE) -> None:
    """End a party's process and wait until it is gone."""
    state = _state(party)
    if state is None:
        say(f"{party.name}: is not running")
        return
    process = psutil.Process(state["process"])
    try:
        process.terminate()
        process.wait(seconds)
    except psutil.AccessDenied:
        raise UserError(f"{party.name}: process {process.pid} belongs to another user") from None
    except psutil.TimeoutExpired:
        raise RunFailed(f"{party.name}: process {process.pid} has not ended within {seconds:.0f} s") from None
    except psutil.NoSuchProcess:
        pass
    say(f"{party.name}: stopped")


def health(party: Party) -> tuple[bool, str]:
    """Return whether a party is well, and how it is in one sentence."""
    state, now = _state(party), time.time()
    if state is None:
        return False, "is not running"
    age = now - state["written"]
    if age > STALE:
        return False, f"has said nothing for {age:.0f} s"
    if state["connected"]:
        ready = "connected to the server" if party.kind == "site" else f"ready; {_counted(state['peers'])}"
        return True, f"{ready}, process {state['process']}"
    then = state["contact"]
    since = f"for {now - then:.0f} s" if then else "yet"
    return False, f"not connected to the server {since}" if party.kind == "site" else f"not ready {since}"


def _counted(peers: int) -> str:
    return f"{peers} {'connection' if peers == 1 else 'connections'}"
