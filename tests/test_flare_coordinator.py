"""What a coordinator takes from a server, and what it makes of sites that are lost; no server is needed for that."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

pytest.importorskip("nvflare")

from orchard.errors import RunFailed
from orchard.runs.folder import RunFolder
from orchard.sites.commands import stop
from orchard.sites.connection import Connection, SiteStatus, printable
from orchard.sites.job import RESULTS
from orchard.sites.statistics import waited_for
from orchard.sites.supervision import LOOKS_UNTIL_STUCK, RETRY_SECONDS, Supervisor
from orchard.sites.waiting import SLOW
from sites import SITES, small_plan


class Server(Connection):
    """A server that a test speaks for."""

    def __init__(self) -> None:
        self.aborted: list[str] = []

    def status(self, job: str) -> str:
        return "FINISHED:ABORTED" if self.aborted else "DISPATCHED"

    def began_after(self, job: str) -> bool:
        return True

    def progress(self, job: str, asked: dict[str, Any]) -> dict[str, Any] | None:
        return None

    def abort(self, job: str) -> None:
        self.aborted.append(job)


@pytest.fixture
def supervisor(tmp_path: Path) -> Supervisor:
    folder = tmp_path / "runs" / "run"
    folder.mkdir(parents=True)
    return Supervisor(Server(), RunFolder(folder), small_plan(agreement={"min_sites": 2}), lambda text: None)


def test_a_server_writes_no_files_but_those_of_a_run(supervisor: Supervisor, tmp_path: Path) -> None:
    names = ["../outside", str(tmp_path / "absolute"), "plan.json", "deploy.json", "stop", "experiment.toml"]
    supervisor._mirror({"files": dict.fromkeys(names, "text"), "lines": [], "out": []})
    found = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert found == {"runs/run/experiment.toml", "runs/run/metrics.jsonl"}


def test_a_server_leaves_no_files_but_those_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, mine = tmp_path / "left", tmp_path / "mine"
    (left / "workspace" / RESULTS).mkdir(parents=True)
    mine.mkdir()
    for name in ("plan.json", "deploy.json", "summary.json", "error.txt"):
        (left / "workspace" / RESULTS / name).write_text("a\x1b[31m\nb")
    server = Server()
    monkeypatch.setattr(server, "_call", lambda name, job, to, limit: left)
    assert server.fetch("job", mine) == "a [31m b"
    assert [file.name for file in mine.iterdir()] == ["summary.json"]


def test_rounds_that_come_with_a_jobs_results_are_shown_too(supervisor: Supervisor) -> None:
    """A job that ends between two looks has told of none of its last rounds."""
    said: list[str] = []
    supervisor.say = said.append
    lines = [{"round": r, "seconds": 1.0, "failures": {}, "after_training": {"test": {}}} for r in range(3)]
    supervisor._show(lines[:1])
    supervisor._show(lines)
    supervisor._show(lines)
    assert [text.split()[1] for text in said] == ["1/3", "2/3", "3/3"]


def test_who_is_still_counting_is_named_with_how_long_that_may_take() -> None:
    class Counting(Server):
        def progress(self, job: str, asked: dict[str, Any]) -> dict[str, Any] | None:
            return {"files": {}, "lines": [], "out": [], "waiting": ["east"]}

    plan = small_plan(agreement={"round_seconds": 900})
    assert waited_for(Counting(), "job", "RUNNING", plan) == ("east (counting)", 900, SLOW)
    begins = "the server, which begins the job or has another one under way"
    assert waited_for(Counting(), "job", "SUBMITTED", plan) == (begins, None, SLOW)


def test_a_run_that_has_finished_is_not_stopped(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(small_plan().to_json())
    (tmp_path / "summary.json").write_text('{"state": "finished"}')
    said: list[str] = []
    stop(tmp_path, tmp_path / "no kit", now=False, say=said.append)
    assert said == [f"{tmp_path}: has finished; there is nothing to stop"]
    assert not (tmp_path / "stop").exists()


@pytest.mark.parametrize(
    "line", [{}, {"round": 0}, [], 7, {"round": 0, "after_training": {"test": {"accuracy": [1.0]}}}]
)
def test_figures_that_make_no_sense_are_refused_before_they_are_written(supervisor: Supervisor, line: object) -> None:
    with pytest.raises(RunFailed, match="the server's figures make no sense"):
        supervisor._mirror({"files": {}, "lines": [line], "out": []})
    assert not (supervisor.folder.path / "metrics.jsonl").exists()


def test_a_site_that_keeps_dying_is_left_out_where_there_are_enough_without_it(supervisor: Supervisor) -> None:
    (supervisor.folder.path / "federation.json").write_text("{}")
    for complete in (False, False, True, False, False):  # a round is complete in between
        supervisor._count_deaths("east: lost", complete=complete)
        assert supervisor._awaited() == ["north", "south", "east", "west"]
    supervisor._count_deaths("north-east: lost", complete=False)
    supervisor._count_deaths("", complete=False)  # nobody knows whose death that was
    assert supervisor._awaited() == ["north", "south", "east", "west"]
    supervisor.lost = {"east"}
    assert supervisor._count_deaths("", complete=False) == ["east"]
    assert supervisor._awaited() == ["north", "south", "west"]
    for site in ("west", "south", "west", "south", "west", "south"):
        supervisor._count_deaths(f"{site}: lost", complete=False)
    assert supervisor._awaited() == ["north", "south"]  # two are needed
    supervisor.left_out["east"] -= 601
    assert supervisor._awaited() == ["north", "south", "east"]


def test_before_the_first_round_nobody_is_left_out(supervisor: Supervisor) -> None:
    for _ in range(4):
        supervisor._count_deaths("east: lost", complete=False)
    assert "east" in supervisor._awaited()


def test_a_job_that_a_dead_server_was_beginning_is_ended(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    monkeypatch.setattr("orchard.sites.supervision.time.sleep", looks.append)
    assert supervisor._watch("job") == "FINISHED:ABORTED"
    assert len(looks) == LOOKS_UNTIL_STUCK


def test_a_site_that_could_not_begin_is_asked_again_after_a_while(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Running(Server):
        asked: ClassVar[list[dict[str, Any]]] = []

        def status(self, job: str) -> str:
            return "FINISHED:COMPLETED" if self.asked and "stop" in self.asked[-1] else "RUNNING"

        def is_over(self, job: str, status: str) -> bool:
            return False

        def progress(self, job: str, asked: dict[str, Any]) -> dict[str, Any] | None:
            self.asked.append(asked)
            return {"files": {}, "lines": [], "out": ["east"]}

        def sites(self) -> dict[str, SiteStatus]:
            return {site: SiteStatus(site, ("job",)) for site in SITES}

    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("orchard.sites.supervision.time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    supervisor.folder.write("deploy.json", {"present": SITES})
    supervisor.server = Running()
    supervisor._watch("job")
    assert RETRY_SECONDS < now < RETRY_SECONDS + 10
    assert supervisor.server.asked[-1] == {"stop": True, "since": 0}


def test_stopping_waits_for_the_round_and_ends_only_a_job_that_has_long_been_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Busy(Server):
        looks = 0

        def __exit__(self, *error: object) -> None:
            pass

        def unfinished(self, run: str) -> list[str]:
            return [] if self.aborted else ["job"]

        def progress(self, job: str, asked: dict[str, Any]) -> dict[str, Any] | None:
            self.looks += 1
            return {"out": []} if self.looks < 200 and self.looks % 7 else None

    server = Busy()
    monkeypatch.setattr("orchard.sites.commands.Connection", lambda kit, waiting: server)
    monkeypatch.setattr("orchard.sites.commands.time.sleep", lambda seconds: None)
    (tmp_path / "plan.json").write_text(small_plan().to_json())
    stop(tmp_path, tmp_path, now=False, say=lambda text: None)
    assert server.looks == 199 + LOOKS_UNTIL_STUCK


def test_a_servers_words_do_nothing_to_a_terminal() -> None:
    assert printable("lost\n\x1b]0;title\x07 site\u202e") == "lost ]0;title site"
