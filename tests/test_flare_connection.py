"""The coordinator's connection: whatever FLARE does, or does not do, every call ends within its limit."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

import orchard
from helpers import small_arrays
from orchard.cli.display import print_runs
from orchard.errors import RunFailed, UserError
from orchard.experiment import RunOptions
from orchard.runs.folder import RunFolder
from orchard.sites.connection import UNKNOWN, Connection
from orchard.sites.consortium import Consortium
from orchard.sites.provision import make_kits
from orchard.sites.session import CallFailed, Session
from orchard.sites.waiting import Waiting
from processes import orchard_command
from sites import small_plan


@pytest.fixture(scope="module")
def deaf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A coordinator's kit whose server accepts connections and never says a word, like one that is frozen."""
    home = tmp_path_factory.mktemp("deaf")
    with socket.create_server(("localhost", 0)) as server:
        parties = {"name": "lungs", "server": "localhost", "port": server.getsockname()[1], "sites": ["north"]}
        consortium = {**parties, "coordinator": "ada@example.org", "storage": str(home / "storage")}
        make_kits(Consortium.model_validate(consortium), home / "kits")
        yield home / "kits" / "ada@example.org"


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("how", ["deaf", "frozen", "dead"])
def test_a_call_that_gets_no_answer_ends_and_nothing_of_it_is_left(how: str, deaf: Path) -> None:
    session = Session(deaf, "ada@example.org")
    number = session._process.pid
    if how == "frozen":
        os.kill(number, signal.SIGSTOP)
    if how == "dead":
        os.kill(number, signal.SIGKILL)
    with pytest.raises(CallFailed) as failed:
        session.call(1.0, "sites")
    assert failed.value.kinds == ["NoAnswer"]
    session.close(0.1)
    assert not is_alive(number)


def test_a_session_ends_with_whoever_started_it(deaf: Path) -> None:
    session = Session(deaf, "ada@example.org")
    session._commands.close()
    session._process.wait(20)
    session.close()


def test_what_cannot_be_reached_is_tried_again_as_long_as_patience_lasts(
    deaf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("orchard.sites.connection.START_LIMIT", 0.0)
    monkeypatch.setattr("orchard.sites.connection.PAUSE", 0.01)
    monkeypatch.setattr("orchard.sites.connection.SAY_AFTER", 0.0)
    with Connection(deaf, patience=0.5, waiting=Waiting(said.append)) as server:
        address = server.address
        with pytest.raises(RunFailed, match=f"{address}: cannot be reached: no answer to 'sites'"):
            server._call("sites", limit=0.2)
    assert said == [f"waiting for {address}, which cannot be reached, 0 s at most"]


class Scripted:
    """A session that answers as a test says."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def call(self, seconds: float, name: str, *arguments: object) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self, seconds: float) -> None:
        pass


@pytest.mark.parametrize(
    ("error", "use", "outcome"),
    [
        ("JobNotFound", lambda server: server.status("job"), UNKNOWN),
        ("NoClientsAvailable", lambda server: server.sites(), {}),
        ("InternalError", lambda server: server.progress("job", {}), None),
        ("AuthorizationError", lambda server: server.sites(), UserError),
        ("InvalidJobDefinition", lambda server: server.sites(), RunFailed),
    ],
)
def test_what_flare_raises_means_something_or_is_told(
    error: str, use: Callable[[Connection], object], outcome: Any, deaf: Path
) -> None:
    server = Connection(deaf)
    server.session = Scripted(CallFailed([error, "Exception"], "why\x1b"))  # type: ignore[assignment]
    if isinstance(outcome, type):
        with pytest.raises(outcome, match=r"why$"):
            use(server)
    else:
        assert use(server) == outcome


@pytest.mark.parametrize("whose", ["site", "server"])
def test_a_kit_that_is_not_the_coordinators_is_refused_before_anything_waits(
    whose: str, deaf: Path, tmp_path: Path
) -> None:
    kit = deaf.parent / ("north" if whose == "site" else "localhost")
    file = tmp_path / "experiment.toml"
    file.write_text('[deploy]\nclasses = ["a", "b"]\n')
    for command in (("run", str(file)), ("stats", str(file)), ("status",)):
        done = orchard_command("deploy", *command, "--kit", str(kit), cwd=tmp_path)
        assert done.stderr == f"orchard: {kit}: is the startup kit of a {whose}; a coordinator's is needed here\n"
        assert done.returncode == 2
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_is_no_kit_is_called_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere: is not a startup kit \(made by: orchard deploy init\)"):
        Connection(tmp_path / "nowhere")


def test_who_was_revoked_is_told_so_and_does_not_try_for_an_hour(deaf: Path) -> None:
    server = Connection(deaf)
    refused = CallFailed(["FLCommunicationError", "Exception"], "error:client_registration certificate revoked")
    server.session = Scripted(refused)  # type: ignore[assignment]
    with pytest.raises(UserError, match="lets this kit in no more: its certificate was revoked"):
        server.sites()


# --- What is waited for ---


def test_what_is_waited_for_is_said_with_how_long_and_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said, notes = 0.0, [], []  # type: ignore[var-annotated]
    monkeypatch.setattr("orchard.sites.waiting.time.monotonic", lambda: now)
    waiting = Waiting(lambda text: said.append((now, text)), notes.append)
    for second in range(1200):
        now = float(second)
        waiting.on("east", 3600, after=10)
    assert [when for when, _ in said] == [10, 60, 120, 240, 480, 960]
    assert said[1][1] == "waiting for east, for 60 s now, 60 min at most"
    assert said[3][1] == "waiting for east, for 4 min now, 60 min at most"
    waiting.on("south")
    assert said[-1] == (1199, "waiting for south")
    assert waiting.over()
    assert notes[-2:] == ["south", None]
    assert not waiting.over()


def test_a_run_that_waits_for_its_first_round_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sites-1"
    path.mkdir()
    with RunFolder(path).locked() as folder:
        folder.write_experiment(small_plan(rounds=5).experiment, RunOptions())
        folder.note_waiting("east (absent; the first round needs all sites)")
        print_runs(tmp_path)
        listed = capsys.readouterr().out
        folder.note_waiting(None)
        print_runs(tmp_path)
    assert "waiting" in listed
    assert "0/5" in listed
    assert "sites-1 waits for east (absent; the first round needs all sites)\n" in listed
    assert "running" in capsys.readouterr().out


def test_a_run_on_separate_machines_is_not_resumed_as_a_simulation(tmp_path: Path) -> None:
    plan = small_plan()
    RunFolder(tmp_path).write_experiment(plan.experiment, RunOptions())
    (tmp_path / "plan.json").write_text(plan.to_json())
    with pytest.raises(UserError, match="is a run on separate machines: see orchard deploy attach"):
        orchard.resume(tmp_path, small_arrays())
