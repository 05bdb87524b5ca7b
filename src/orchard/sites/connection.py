"""The coordinator's connection to the server. If it is lost, it reconnects: the server may be restarting."""

import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from orchard.errors import RunFailed, UserError
from orchard.sites.consortium import consortium_of
from orchard.sites.job import RESULTS, TEXTS, TOPIC, write_job
from orchard.sites.kit import check_kind, need_flare
from orchard.sites.members import CERTIFICATE_REVOKED
from orchard.sites.plan import Plan
from orchard.sites.session import GOODBYE, REFUSED, UNREACHABLE, CallFailed, Session
from orchard.sites.waiting import Waiting

PATIENCE = 300.0
"""Seconds to keep trying to reach a server that has not answered yet."""
LONG_PATIENCE = 3600.0
"""Seconds to keep trying to reach a server that has answered before."""
PAUSE = 2.0
LIMIT = 30.0
"""Seconds that a call may take."""
START_LIMIT = 30.0
"""Seconds that a new session may take besides."""
DOWNLOAD_LIMIT = 300.0
SAY_AFTER = 10.0
"""Seconds of silence after which it is said that the server is waited for."""
FINISHED = "FINISHED:"
"""How the status of an ended job begins, whether it succeeded or not."""
UNKNOWN = f"{FINISHED}UNKNOWN"
"""The status of a job that the server does not know: it was restored from a backup, or lost its storage."""


@dataclass(frozen=True)
class SiteStatus:
    """What the server reports about a connected site."""

    site: str
    jobs: tuple[str, ...]


class Connection:
    """Sends commands to a server and repeats them until it answers. Use it as a context manager."""

    def __init__(self, kit: Path, patience: float = PATIENCE, waiting: Waiting | None = None) -> None:
        need_flare()
        self.kit, self.patience = kit, patience
        self.waiting = waiting or Waiting(lambda text: None)
        check_kind(kit, "coordinator")
        self.consortium = consortium_of(kit)
        self.session: Session | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    # --- Commands ---

    def sites(self) -> dict[str, SiteStatus]:
        """Return the sites that answer, each with the jobs that it runs."""
        rows = self._call("sites", expected={"NoClientsAvailable": []}) or []
        jobs: dict[str, list[str]] = {}
        for row in rows:
            if row["status"] not in ("no_reply", "error"):
                jobs.setdefault(row["client_name"], []).extend([row["job_id"]] if "job_id" in row else [])
        return {site: SiteStatus(site, tuple(at_work)) for site, at_work in jobs.items()}

    def submit(self, plan: Plan, present: Sequence[str]) -> str:
        """Submit a job for the sites in `present`; return its id."""
        token = secrets.token_hex(16)  # so that a call which is repeated does not submit it twice
        with tempfile.TemporaryDirectory() as home:
            folder = write_job(Path(home) / "job", plan, present, self.kit)
            job: str = self._call("submit", str(folder), token)
        return job

    def status(self, job: str) -> str:
        """Return FLARE's status of a job."""
        return str(self._call("meta", job, expected={"JobNotFound": {"status": UNKNOWN}}).get("status"))

    def is_over(self, job: str, status: str) -> bool:
        """Tell whether a job has ended; a restarted server still lists the jobs that it ran before as running.

        A job that has just ended does not run either, but its server is older than the job and reports how it ended.
        """
        return status.startswith(FINISHED) or (status == "RUNNING" and self.began_after(job))

    def began_after(self, job: str) -> bool:
        """Tell whether the server was started after a job was submitted and does not run it."""
        server = self._call("system")
        submitted = self._call("meta", job, expected={"JobNotFound": {}}).get("submit_time", 0.0)
        return job not in server["jobs"] and bool(server["started"] > submitted)

    def unfinished(self, run: str) -> list[str]:
        """Return the jobs of a run that have not ended."""
        jobs = self._call("jobs", run) or []
        return [job["job_id"] for job in jobs if not self.is_over(job["job_id"], str(job.get("status")))]

    def progress(self, job: str, asked: dict[str, Any]) -> dict[str, Any] | None:
        """Return a running job's progress; None if it does not answer, e.g. while it starts or ends."""
        silence = dict.fromkeys(("InternalError", "JobNotFound", "JobNotRunning", "NoReply"))
        answer = self._call("ask", job, TOPIC, asked, expected=silence)
        return answer if isinstance(answer, dict) and _is_progress(answer) else None

    def abort(self, job: str) -> None:
        """Abort a job."""
        with suppress(RunFailed, UserError):  # it may just have ended by itself
            self._call("abort", job)

    def fetch(self, job: str, to: Path) -> str:
        """Copy the results of an ended job into a folder; return its error message, empty if there was no error."""
        with tempfile.TemporaryDirectory() as home:
            place = Path(self._call("download", job, home, limit=DOWNLOAD_LIMIT))
            found = place / "workspace" / RESULTS
            if not found.is_dir():
                return ""
            for name in TEXTS:
                if (found / name).is_file():
                    shutil.copyfile(found / name, to / name)
            said = found / "error.txt"
            return printable(said.read_text("utf-8")) if said.is_file() else ""

    # --- The session ---

    def _call(self, name: str, *arguments: object, expected: Mapping[str, Any] = {}, limit: float = LIMIT) -> Any:
        """Return a command's answer, or what is expected after some exceptions of FLARE.

        If the server cannot be reached, or does not answer within the limit, repeat the command in a new session.
        """
        began = time.monotonic()
        while True:
            try:
                seconds = limit if self.session else limit + START_LIMIT
                self.session = self.session or Session(self.kit, self.consortium.coordinator)
                answer = self.session.call(seconds, name, *arguments)
                if self.waiting.over():
                    self.waiting.say(f"{self.address} answers again")
                self.patience = self.patience and LONG_PATIENCE
                return answer
            except CallFailed as failed:
                for kind in failed.kinds:
                    if kind in expected:
                        return expected[kind]
                text = printable(str(failed))
                if CERTIFICATE_REVOKED in text:
                    raise UserError(
                        f"{self.kit}: the server lets this kit in no more: its certificate was revoked"
                    ) from None
                if failed.is_one_of(REFUSED):
                    raise UserError(f"{self.kit}: the server refuses this: {text}") from None
                if not failed.is_one_of(UNREACHABLE):
                    raise RunFailed(f"the server says: {failed.kinds[0]}: {text}") from None
                self._close(0.0)
                if time.monotonic() - began >= self.patience:
                    raise RunFailed(f"{self.address}: cannot be reached: {text}") from None
                self.waiting.on(f"{self.address}, which cannot be reached", self.patience, SAY_AFTER)
                time.sleep(PAUSE)

    @property
    def address(self) -> str:
        """Where the server is."""
        return f"{self.consortium.server}:{self.consortium.port}"

    def _close(self, seconds: float = GOODBYE) -> None:
        session, self.session = self.session, None
        if session is not None:
            session.close(seconds)


def _is_progress(answer: dict[str, Any]) -> bool:
    kinds = {"files": dict, "lines": list, "out": list}
    return all(isinstance(answer.get(name), kind) for name, kind in kinds.items())


def printable(text: str) -> str:
    """Return text from a server as one line without control characters."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
