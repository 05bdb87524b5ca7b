"""What FLARE runs at the server: the run loop, whose messages to sites travel as FLARE tasks."""

import gc
import json
import re
import secrets
import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, SendOrder, Task, TaskCompletionStatus
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import ReturnCode, Shareable, make_reply
from nvflare.apis.signal import Signal

from orchard.engines.flare.engine import FlareEngine
from orchard.engines.flare.messages import Message
from orchard.engines.pages import use_large_pages
from orchard.errors import RunFailed
from orchard.runs.files import to_json
from orchard.runs.result import Result
from orchard.sites.coordinator import coordinate, engine_for
from orchard.sites.job import HEADER, MESSAGE, PARCELS, PRESENT, RESULTS, STATISTICS, TASK, TEXTS, TOPIC
from orchard.sites.kit import storage_of, true_kit
from orchard.sites.members import CERTIFICATE_REVOKED, read_members
from orchard.sites.members import FILE as MEMBERS
from orchard.sites.plan import FILE as PLAN
from orchard.sites.plan import Plan
from orchard.sites.revocation import FILE as REVOKED
from orchard.sites.revocation import at_server, keep_newest, stored_at_server

LOOK = 0.05
"""Seconds between checks for answers."""
PARCEL = 4 * 2**20
"""Most bytes of vectors in a parcel; a larger vector is a parcel of its own."""


class RunController(Controller):  # type: ignore[misc]
    """The server's part of a run."""

    def __init__(self) -> None:
        super().__init__()
        use_large_pages()
        self.pausing = threading.Event()
        self.waiting: set[str] = set()
        self.parcels: dict[str, list[list[Any]]] = {}
        """Parcels of vectors that sites can fetch, by ticket. Only the site that they are for knows the ticket."""
        self.seen: Result | None = None
        self.engine: FlareEngine | None = None

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Read the plan, and register the handlers for the coordinator's and the sites' requests."""
        workspace, job = fl_ctx.get_workspace(), fl_ctx.get_job_id()
        config = Path(workspace.get_app_config_dir(job))
        self.plan = Plan.from_json((config / PLAN).read_text("utf-8"))
        self.present: list[str] = json.loads((config / PRESENT).read_text("utf-8"))
        self.kit = true_kit(Path(workspace.get_root_dir()))
        self.members = read_members(config / MEMBERS)
        keep_newest(stored_at_server(self.kit), [config / REVOKED], self.kit)
        self.job, self.log = job, Path(workspace.get_root_dir()) / "log.txt"
        self.folder = storage_of(self.kit) / "runs" / self.plan.run
        self.results = Path(workspace.get_run_dir(job)) / RESULTS
        fl_ctx.get_engine().register_app_command(TOPIC, self._answer_coordinator)
        fl_ctx.get_engine().register_aux_message_handler(PARCELS, self._serve_parcel)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: there is nothing to stop."""

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Drop an answer that arrives after its deadline."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the remaining rounds; however they end, leave the coordinator the results so far."""
        torch.set_num_threads(1)  # as in a simulation, so that results agree to the last bit
        gc.freeze()  # imported modules stay, so later collections can skip them

        def carry(requests: Mapping[str, Message]) -> dict[str, Message | str]:
            return self._carry(requests, abort_signal, fl_ctx)

        try:
            self.engine = engine_for(self.plan, self.present, carry)
            if self.plan.purpose == "statistics":
                self._leave_statistics(self.engine)
            else:
                coordinate(self.plan, self.folder, self.engine, self._follow, self.pausing.is_set)
        except Exception as error:
            self._leave_results(f"{type(error).__name__}: {error}" if not isinstance(error, RunFailed) else str(error))
            raise
        self._leave_results("")

    # --- Carrying messages ---

    def _carry(
        self, requests: Mapping[str, Message], abort_signal: Signal, fl_ctx: FLContext
    ) -> dict[str, Message | str]:
        """Send each site its message; wait for all answers, at most until the deadline."""
        revoked = at_server(self.kit)
        answers: dict[str, Message | str] = {
            site: CERTIFICATE_REVOKED for site in requests if self.members.get(site) in revoked
        }
        self.waiting = set(requests) - set(answers)
        tasks = {site: self._sent(site, requests[site], answers, fl_ctx) for site in sorted(self.waiting)}
        while self.waiting:
            gc.collect()  # FLARE's sent messages are large and in reference cycles
            if abort_signal.triggered:
                raise RunFailed(self._why_ended())
            for site in list(self.waiting):
                status = tasks[site].completion_status
                if status == TaskCompletionStatus.CLIENT_DEAD:
                    raise RunFailed(f"{site}: lost")  # the round is repeated once the site is back
                if site in answers or status is not None:
                    answers.setdefault(site, "deadline" if status == TaskCompletionStatus.TIMEOUT else "no answer")
                    self.waiting.discard(site)
            time.sleep(LOOK)
        self.parcels.clear()
        taken = dict(answers)
        answers.clear()  # FLARE keeps the tasks, whose callbacks refer to it
        return taken

    def _sent(self, site: str, message: Message, answers: dict[str, Message | str], fl_ctx: FLContext) -> Task:
        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            result = client_task.result
            client_task.result = None  # otherwise FLARE keeps it with the task
            if client_task.client.name != site:
                return
            answer: Any = result.get(MESSAGE)
            if result.get_return_code(ReturnCode.OK) != ReturnCode.OK:
                answers[site] = "no answer"
            else:
                answers[site] = answer if isinstance(answer, dict) else "rejected: malformed"

        agreed = self.plan.agreement
        # Before the first round, imports and loading data may take a site longer than a round does.
        seconds = agreed.round_seconds
        if message["what"] != "round":
            seconds = max(seconds, agreed.patience_seconds)
        data = Shareable()
        data[MESSAGE] = self._hold_vectors(message)
        task = Task(TASK, data, timeout=seconds, result_received_cb=received)
        self.send(task, fl_ctx, targets=[site], send_order=SendOrder.ANY)
        return task

    def _why_ended(self) -> str:
        """Return which site's death made FLARE end the job; only FLARE's log names it."""
        with suppress(OSError):
            said = self.log.read_text("utf-8", errors="replace")
            found = re.search(rf"Failing job {self.job} due to reported failure from ([\w-]+)", said)
            if found and found[1] in self.plan.sites:
                return f"{found[1]}: lost"
        return "the job was ended from outside"

    def _hold_vectors(self, message: Message) -> dict[str, Any]:
        """Store a message's vectors in parcels; return the message with the number of parcels to fetch instead."""
        parcels: list[list[Any]] = []
        size = PARCEL
        for pair in message.get("vectors", []):
            if size + len(pair[1]) > PARCEL:
                parcels.append([])
                size = 0
            parcels[-1].append(pair)
            size += len(pair[1])
        if "vectors" not in message:
            return dict(message)
        ticket = secrets.token_hex(16)
        self.parcels[ticket] = parcels
        return {**message, "vectors": [], "parcels": len(parcels), "ticket": ticket}

    def _serve_parcel(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return a parcel if the request has its ticket."""
        wanted: Any = request.get(MESSAGE)
        parcels = self.parcels.get(str(wanted.get("ticket")), []) if isinstance(wanted, dict) else []
        number = wanted.get("number") if isinstance(wanted, dict) else None
        if not isinstance(number, int) or not 0 <= number < len(parcels):
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        reply = make_reply(ReturnCode.OK)
        reply[MESSAGE] = parcels[number]
        return reply

    # --- The coordinator ---

    def _follow(self, result: Result) -> None:
        self.seen = result

    def _answer_coordinator(self, topic: str, data: Any, fl_ctx: FLContext) -> dict[str, Any]:
        """Return the run's progress with the metrics lines that the coordinator lacks; stop the run if asked to."""
        asked = data if isinstance(data, dict) else {}
        if asked.get("stop"):
            self.pausing.set()
        since, seen = asked.get("since"), self.seen
        lines = [entry.as_json() for entry in seen.rounds] if seen else []
        return {
            "rounds": len(lines),
            "waiting": sorted(self.waiting),
            "out": sorted(set(self.present) - set(self.engine.present)) if self.engine else [],
            "lines": json.loads(to_json(lines[since if isinstance(since, int) and since >= 0 else 0 :])),
            "files": self._texts(),
        }

    def _texts(self) -> dict[str, str]:
        found = {name: self.folder / name for name in HEADER}
        return {name: file.read_text("utf-8") for name, file in found.items() if file.is_file()}

    def _leave_statistics(self, engine: FlareEngine) -> None:
        told = {site: found.model_dump(mode="json") for site, found in engine.statistics().items()}
        self.results.mkdir(parents=True, exist_ok=True)
        (self.results / STATISTICS).write_text(to_json({"sites": told, "reasons": engine.reasons}), "utf-8")

    def _leave_results(self, error: str) -> None:
        """Copy the files that the coordinator may read to where FLARE lets it download them."""
        self.results.mkdir(parents=True, exist_ok=True)
        for name in TEXTS:
            if (self.folder / name).is_file():
                shutil.copyfile(self.folder / name, self.results / name)
        (self.results / "error.txt").write_text(error, "utf-8")
