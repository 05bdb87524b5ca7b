"""The coordinator's connection to the server. If it is lost, it reconnects: the server may be restarting."""

import io
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from orchard.errors import RunFailed, UserError
from orchard.sites.consortium import consortium_of
from orchard.sites.job import RESULTS, TEXTS, TOPIC, write_job
from orchard.sites.kit import need_flare
from orchard.sites.plan import Plan

T = TypeVar("T")

PATIENCE = 300.0
"""Seconds to keep trying to reach the server."""
PAUSE = 2.0
FINISHED = "FINISHED:"
"""How the status of an ended job begins, whether it succeeded or not."""


@dataclass(frozen=True)
class SiteStatus:
    """What the server reports about a connected site."""

    site: str
    jobs: tuple[str, ...]


class Connection:
    """Sends commands to a server and repeats them until it answers. Use it as a context manager."""

    def __init__(self, kit: Path, patience: float = PATIENCE) -> None:
        need_flare()
        self.kit, self.patience = kit, patience
        self.consortium = consortium_of(kit)
        self._session: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    # --- Commands ---

    def sites(self) -> dict[str, SiteStatus]:
        """Return the sites that answer, each with the jobs that it runs."""
        from nvflare.fuel.flare_api.api_spec import NoClientsAvailable

        try:
            rows = self._call(lambda session: session.get_client_job_status(), NoClientsAvailable) or []
        except NoClientsAvailable:
            return {}
        jobs: dict[str, list[str]] = {}
        for row in rows:
            if row["status"] not in ("no_reply", "error"):
                jobs.setdefault(row["client_name"], []).extend([row["job_id"]] if "job_id" in row else [])
        return {site: SiteStatus(site, tuple(at_work)) for site, at_work in jobs.items()}

    def submit(self, plan: Plan, present: Sequence[str]) -> str:
        """Submit a job for the sites in `present`; return its id."""
        with tempfile.TemporaryDirectory() as home:
            folder = write_job(Path(home) / "job", plan, present)
            job: str = self._call(lambda session: session.submit_job(str(folder)))
        return job

    def status(self, job: str) -> str:
        """Return FLARE's status of a job."""
        return str(self._call(lambda session: session.get_job_meta(job)).get("status"))

    def is_over(self, job: str, status: str) -> bool:
        """Tell whether a job has ended; a restarted server still lists the jobs that it ran before as running.

        A job that has just ended does not run either, but its server is older than the job and reports how it ended.
        """
        return status.startswith(FINISHED) or (status == "RUNNING" and self.began_after(job))

    def began_after(self, job: str) -> bool:
        """Tell whether the server was started after a job was submitted and does not run it."""
        server = self._call(lambda session: session.get_system_info())
        submitted = self._call(lambda session: session.get_job_meta(job)).get("submit_time", 0.0)
        runs = job in [entry.job_id for entry in server.job_info]
        return not runs and bool(server.server_info.start_time > submitted)

    def unfinished(self, run: str) -> list[str]:
        """Return the jobs of a run that have not ended."""
        jobs = self._call(lambda session: session.list_jobs(name_prefix=run)) or []
        return [job["job_id"] for job in jobs if not self.is_over(job["job_id"], str(job.get("status")))]

    def progress(self, job: str, asked: dict[str, Any]) -> dict[str, Any] | None:
        """Return a running job's progress; None if it does not answer, e.g. while it starts or ends."""
        from nvflare.fuel.flare_api.api_spec import InternalError, JobNotRunning, NoReply

        silence = (InternalError, JobNotRunning, NoReply)
        try:
            answer = self._call(lambda session: session.do_app_command(job, TOPIC, asked), *silence)
        except silence:
            return None
        return answer if isinstance(answer, dict) and _is_progress(answer) else None

    def abort(self, job: str) -> None:
        """Abort a job."""
        with suppress(Exception):  # it may just have ended by itself
            self._call(lambda session: session.abort_job(job))

    def fetch(self, job: str, to: Path) -> str:
        """Copy the results of an ended job into a folder; return its error message, empty if there was no error."""
        with tempfile.TemporaryDirectory() as home:
            place = Path(self._call(lambda session: session.download_job_result(job, home)))
            found = place / "workspace" / RESULTS
            if not found.is_dir():
                return ""
            for name in TEXTS:
                if (found / name).is_file():
                    shutil.copyfile(found / name, to / name)
            said = found / "error.txt"
            return printable(said.read_text("utf-8")) if said.is_file() else ""

    # --- The session ---

    def _call(self, command: Callable[[Any], T], *expected: type[Exception]) -> T:
        """Run a command; if the connection is lost, reconnect and repeat it."""
        from nvflare.apis.fl_exception import FLCommunicationError
        from nvflare.fuel.flare_api.api_spec import (
            AuthenticationError,
            AuthorizationError,
            InternalError,
            NoConnection,
            NoReply,
            SessionClosed,
        )

        unreachable = (
            NoConnection,
            SessionClosed,
            FLCommunicationError,
            InternalError,
            NoReply,
            OSError,
            RuntimeError,
        )

        deadline = time.monotonic() + self.patience
        while True:
            try:
                return command(self._connected())
            except expected:
                raise
            except (AuthenticationError, AuthorizationError) as error:
                raise UserError(f"{self.kit}: the server refuses this: {error}") from None
            except unreachable as error:
                self._close()
                if time.monotonic() > deadline:
                    server = f"{self.consortium.server}:{self.consortium.port}"
                    raise RunFailed(f"{server}: cannot be reached: {error}") from None
                time.sleep(PAUSE)
            except Exception as error:  # FLARE raises many classes of its own
                raise RunFailed(f"the server says: {type(error).__name__}: {printable(str(error))}") from None

    def _connected(self) -> Any:
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        if self._session is None:
            with redirect_stdout(io.StringIO()):
                self._session = new_secure_session(self.consortium.coordinator, str(self.kit.resolve()))
        return self._session

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with suppress(Exception), redirect_stdout(io.StringIO()):
                session.close()


def _is_progress(answer: dict[str, Any]) -> bool:
    kinds = {"files": dict, "lines": list, "out": list}
    return all(isinstance(answer.get(name), kind) for name, kind in kinds.items())


def printable(text: str) -> str:
    """Return text from a server as one line without control characters."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
