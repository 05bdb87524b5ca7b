"""A real federation on this machine: provisioned kits, mutual TLS, a process for the server and one for each site."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import psutil
import tomli_w

from orchard.data.client_arrays import ClientArrays
from orchard.data.division import federated_data
from orchard.experiment import load_experiment
from orchard.sites.consortium import Consortium
from orchard.sites.provision import make_kits

COORDINATOR = "coordinator@hub.example"
PATIENCE = 150.0
"""Seconds after which something that should happen has not."""


def digits(sites: int) -> list[ClientArrays]:
    """The digits as some clients would hold them, each a part of its own."""
    data = federated_data(load_experiment(overrides={"dataset": "digits", "clients": sites}))
    return [
        ClientArrays(
            *(getattr(client, part)[k].numpy() for part in ("train", "test") for k in (0, 1)),
            *(client.validation[k].numpy() for k in (0, 1)),
        )
        for client in data.clients
    ]


def stored(given: ClientArrays, file: Path) -> Path:
    """Write a client's arrays, those of the parts that it has."""
    parts = {"train": "train", "val": "validation", "test": "test"}
    arrays = {f"{x}_{part}": getattr(given, f"{x}_{name}") for part, name in parts.items() for x in "xy"}
    np.savez(file, **{name: array for name, array in arrays.items() if array is not None})
    return file


class Federation:
    """Processes that this one started, and ends by their numbers."""

    def __init__(
        self, home: Path, sites: Sequence[str], data: Sequence[ClientArrays | Path], **consortium: object
    ) -> None:
        self.home, self.sites = home, list(sites)
        self.kits = home / "kits"
        port = free_port()
        storage = str(home / "storage")
        parties = {"server": "localhost", "port": port, "coordinator": COORDINATOR, "sites": self.sites}
        self.consortium = Consortium.model_validate({"name": "lungs", **parties, "storage": storage, **consortium})
        make_kits(self.consortium, self.kits)
        for site, given in zip(sites, data, strict=True):
            self._settle(site, given)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def _settle(self, site: str, given: ClientArrays | Path) -> None:
        """Give a site its data and settings."""
        (self.home / site).mkdir()
        file = given if isinstance(given, Path) else stored(given, self.home / site / "data.npz")
        places = {"data": os.path.relpath(file, self.kits / site), "records": f"../../{site}/records"}
        (self.kits / site / "local" / "site.toml").write_text(tomli_w.dumps(places))

    def join(self, site: str, given: ClientArrays) -> None:
        """Make a kit for one site more, with the others' as they are."""
        self.agree([*self.sites, site])
        self._settle(site, given)

    def agree(self, sites: Sequence[str]) -> None:
        """Let other sites be the members from now on."""
        self.sites = list(sites)
        self.consortium = self.consortium.model_copy(update={"sites": self.sites})
        make_kits(self.consortium, self.kits)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._ours():
            process.send_signal(signal.SIGKILL)
        for started in self.processes.values():
            started.wait(10)

    def _ours(self) -> list[psutil.Process]:
        """Return all processes that run in our folders, however they were left behind."""
        running = [p for p in psutil.process_iter(["cmdline"]) if p.pid != os.getpid()]
        return [p for p in running if any(str(self.home) in word for word in p.info["cmdline"] or [])]

    # --- Processes ---

    def start(self, *names: str, **tampered: str) -> None:
        """Start parties as their start script does, once; some with code of their own, see `tampered/`."""
        folder = Path(sys.executable).parent
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        if tampered:
            path = [str(Path(__file__).parent / "tampered"), os.environ.get("PYTHONPATH", "")]
            environment |= {**tampered, "PYTHONPATH": ":".join(path)}
        for name in names:
            with (self.home / f"{name}.log").open("ab") as log:
                self.processes[name] = subprocess.Popen(
                    ["bash", str(self.kits / name / "startup" / "sub_start.sh"), "--once"],
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,
                )

    def serve(self, name: str, *around: str) -> None:
        """Start a party as a service does, with `orchard server start` or `orchard site start`."""
        kind = "site" if name in self.sites else "server"
        command = [sys.executable, "-c", "from orchard.cli import main; main()", kind, "start", str(self.kits / name)]
        with (self.home / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*around, *command],
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
                start_new_session=True,
            )

    def start_all(self, **tampered: str) -> None:
        """Start the server, then the sites."""
        self.start("localhost", **tampered)
        self.wait(lambda: "Server started" in self.log("localhost"), "the server to start")
        self.start(*self.sites)

    def log(self, name: str) -> str:
        file = self.home / f"{name}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def workers(self, name: str) -> list[psutil.Process]:
        """Return the processes in which a party is at work on jobs."""
        children: list[psutil.Process] = psutil.Process(self.processes[name].pid).children(recursive=True)
        return children

    def memory(self, name: str) -> int:
        """Return how many bytes the largest process of a party has now."""
        with suppress(psutil.NoSuchProcess):
            return max((process.memory_info().rss for process in self.workers(name)), default=0)
        return 0

    def kill_worker(self, name: str) -> None:
        """Kill the process in which a party is at work."""
        for process in self.workers(name):
            process.send_signal(signal.SIGKILL)

    def kill(self, name: str, *, alone: bool = False) -> None:
        """Kill a party with all of its processes, or only the one that the others belong to."""
        for process in [*([] if alone else self.workers(name)), psutil.Process(self.processes[name].pid)]:
            process.send_signal(signal.SIGKILL)
        self.processes[name].wait(10)

    # --- Commands and files ---

    def run(self, *, out: str = "run", **changes: Any) -> "subprocess.Popen[str]":
        """Start `orchard deploy run`; its folder is `home/run`, or another one there."""
        agreement = {
            "classes": [str(k) for k in range(10)],
            "round_seconds": 60,
            **changes.pop("deploy", {}),
        }
        small = {"dataset": "digits", "method": "apple", "model": "mlp", "rounds": 6, "epochs": 2}
        values: Mapping[str, object] = {**small, **changes}
        file = self.home / "experiment.toml"
        file.write_text(tomli_w.dumps({**values, "deploy": agreement}))
        return self.command("run", str(file), "--kit", str(self.kits / COORDINATOR), "--out", str(self.home / out))

    def command(self, *words: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", "from orchard.cli import main; main()", "deploy", *words]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )

    def rounds(self, site: str) -> int:
        """Return how many rounds a site has on its disk."""
        found = [
            int(file.stem.removeprefix("rounds-")) for file in (self.home / site / "records").rglob("rounds-*.json")
        ]
        return max(found, default=0)

    def rounds_at_server(self, storage: Path) -> list[int]:
        """Return after which rounds the server has checkpoints in its storage, or in a copy of it."""
        return [int(file.stem.removeprefix("rounds-")) for file in storage.rglob("checkpoints/rounds-*.json")]

    def wait(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < deadline, f"waited in vain for {what}"
            time.sleep(0.05)


def ended(command: "subprocess.Popen[str]", seconds: float = 150) -> str:
    """Return what a command printed, once it has ended well."""
    try:
        said, _ = command.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        command.kill()
        said, _ = command.communicate()
        raise AssertionError(f"has not ended:\n{said}") from None
    assert command.returncode == 0, said
    return said


def free_port() -> int:
    """Return a port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
    return port
