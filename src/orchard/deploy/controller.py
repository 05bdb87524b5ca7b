"""What FLARE runs at the server: the coordinator's part of a run, with FLARE's tasks to carry messages."""

import gc
import json
import re
import secrets
import shutil
import threading
import time
import tomllib
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

from orchard.deploy.coordinator import coordinate, defined
from orchard.deploy.job import BEGINNING, PRESENT, RESULTS, TASK, TEXTS, TOPIC
from orchard.deploy.provision import SERVER
from orchard.engines.flare.engine import FlareEngine
from orchard.engines.flare.messages import Message
from orchard.errors import RunFailed
from orchard.plan import FILE as PLAN
from orchard.plan import Plan
from orchard.results import Result
from orchard.site.executor import MESSAGE, PARCELS

LOOK = 0.05
"""Seconds between looks at whether answers have come."""
PARCEL = 4 * 2**20
"""Bytes of models that make a parcel, unless one alone has more."""


class RunController(Controller):  # type: ignore[misc]
    """The server half of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.pausing = threading.Event()
        self.waiting: set[str] = set()
        self.parcels: dict[str, list[list[Any]]] = {}
        """Parcels of models to be fetched, by the ticket that only their site was sent."""
        self.seen: Result | None = None
        self.engine: FlareEngine | None = None

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Read what is planned, and listen to the coordinator."""
        workspace, job = fl_ctx.get_workspace(), fl_ctx.get_job_id()
        config = Path(workspace.get_app_config_dir(job))
        self.plan = Plan.from_json((config / PLAN).read_text("utf-8"))
        self.present: list[str] = json.loads((config / PRESENT).read_text("utf-8"))
        settings = tomllib.loads((Path(workspace.get_root_dir()) / SERVER).read_text("utf-8"))
        self.job, self.log = job, Path(workspace.get_root_dir()) / "log.txt"
        self.folder = Path(settings["storage"]) / "runs" / self.plan.run
        self.results = Path(workspace.get_run_dir(job)) / RESULTS
        fl_ctx.get_engine().register_app_command(TOPIC, self._answer_coordinator)
        fl_ctx.get_engine().register_aux_message_handler(PARCELS, self._hand_over)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is left to stop."""

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Drop what comes after its deadline."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the rounds that are left; whatever ends them, leave the coordinator what there is to read."""
        torch.set_num_threads(self.plan.experiment.threads)

        def carry(requests: Mapping[str, Message]) -> dict[str, Message | str]:
            return self._carry(requests, abort_signal, fl_ctx)

        try:
            self.engine = FlareEngine(self.plan, self.present, carry)
            coordinate(self.plan, self.folder, self.engine, self._follow, self.pausing.is_set)
        except Exception as error:
            self._leave_results(f"{type(error).__name__}: {error}" if not isinstance(error, RunFailed) else str(error))
            raise
        self._leave_results("")

    # --- Carrying messages ---

    def _carry(
        self, requests: Mapping[str, Message], abort_signal: Signal, fl_ctx: FLContext
    ) -> dict[str, Message | str]:
        """Send each site its message; wait for all answers, but not beyond the deadline."""
        answers: dict[str, Message | str] = {}
        self.waiting = set(requests)
        tasks = {site: self._sent(site, message, answers, fl_ctx) for site, message in requests.items()}
        while self.waiting:
            gc.collect()  # FLARE's messages that have been sent: they are in cycles, and large
            if abort_signal.triggered:
                raise RunFailed(self._why_ended())
            for site in list(self.waiting):
                status = tasks[site].completion_status
                if status == TaskCompletionStatus.CLIENT_DEAD:
                    raise RunFailed(f"{site}: lost")  # the round is run again once it is back
                if site in answers or status is not None:
                    answers.setdefault(site, "deadline" if status == TaskCompletionStatus.TIMEOUT else "no answer")
                    self.waiting.discard(site)
            time.sleep(LOOK)
        self.parcels.clear()
        taken = dict(answers)
        answers.clear()  # FLARE keeps the tasks, and they keep this
        return taken

    def _sent(self, site: str, message: Message, answers: dict[str, Message | str], fl_ctx: FLContext) -> Task:
        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            result = client_task.result
            client_task.result = None  # or FLARE would keep it with the task
            if client_task.client.name != site:
                return
            answer: Any = result.get(MESSAGE)
            if result.get_return_code(ReturnCode.OK) != ReturnCode.OK:
                answers[site] = "no answer"
            else:
                answers[site] = answer if isinstance(answer, dict) else "refused: malformed"

        agreed = self.plan.agreement
        # To get ready a site may have to import and to read for longer than a round takes.
        seconds = agreed.round_seconds
        if message["what"] != "turn":
            seconds = max(seconds, agreed.patience_seconds)
        data = Shareable()
        data[MESSAGE] = self._set_aside(message)
        task = Task(TASK, data, timeout=seconds, result_received_cb=received)
        self.send(task, fl_ctx, targets=[site], send_order=SendOrder.ANY)
        return task

    def _why_ended(self) -> str:
        """Say whose death has made FLARE end the job; it tells nobody, but its log."""
        with suppress(OSError):
            said = self.log.read_text("utf-8", errors="replace")
            found = re.search(rf"Failing job {self.job} due to reported failure from ([\w-]+)", said)
            if found and found[1] in self.plan.sites:
                return f"{found[1]}: lost"
        return "the job was ended from outside"

    def _set_aside(self, message: Message) -> dict[str, Any]:
        """Put the models of a message aside; the message then tells how many parcels there are to fetch."""
        parcels: list[list[Any]] = []
        size = PARCEL
        for pair in message.get("models", []):
            if size + len(pair[1]) > PARCEL:
                parcels.append([])
                size = 0
            parcels[-1].append(pair)
            size += len(pair[1])
        if "models" not in message:
            return dict(message)
        ticket = secrets.token_hex(16)
        self.parcels[ticket] = parcels
        return {**message, "models": [], "parcels": len(parcels), "ticket": ticket}

    def _hand_over(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Give a parcel to whoever has its ticket."""
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
        """Say how far the run is, with the rounds' lines that are new to the coordinator; stop if told to."""
        asked = data if isinstance(data, dict) else {}
        if asked.get("stop"):
            self.pausing.set()
        since, seen = asked.get("since"), self.seen
        lines = [entry.as_json() for entry in seen.rounds] if seen else []
        return {
            "rounds": len(lines),
            "waiting": sorted(self.waiting),
            "out": sorted(set(self.present) - set(self.engine.present)) if self.engine else [],
            "lines": defined(lines[since if isinstance(since, int) and since >= 0 else 0 :]),
            "files": self._texts(),
        }

    def _texts(self) -> dict[str, str]:
        found = {name: self.folder / name for name in BEGINNING}
        return {name: file.read_text("utf-8") for name, file in found.items() if file.is_file()}

    def _leave_results(self, error: str) -> None:
        """Put what the coordinator may have where FLARE lets it be fetched."""
        self.results.mkdir(parents=True, exist_ok=True)
        for name in TEXTS:
            if (self.folder / name).is_file():
                shutil.copyfile(self.folder / name, self.results / name)
        (self.results / "error.txt").write_text(error, "utf-8")
