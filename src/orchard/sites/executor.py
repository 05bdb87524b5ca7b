"""What FLARE runs at a site: it passes the server's messages to the site's worker and returns the answers.

A download's vectors are fetched in small parcels, so that the server need not hold whole downloads for all sites in
memory at once.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReturnCode, Shareable
from nvflare.apis.signal import Signal

from orchard.engines.flare.messages import MessageRejected
from orchard.engines.pages import use_large_pages
from orchard.sites.consortium import consortium_of
from orchard.sites.job import MESSAGE, PARCELS
from orchard.sites.kit import true_kit
from orchard.sites.members import check_members
from orchard.sites.plan import FILE as PLAN
from orchard.sites.plan import Plan
from orchard.sites.settings import SiteSettings, load_site
from orchard.sites.worker import SiteWorker

SERVER = "server"
TRIES = 3
SECONDS = 120.0
"""Timeout for one parcel."""


class SiteExecutor(Executor):  # type: ignore[misc]
    """One site's part of a run."""

    def __init__(self) -> None:
        super().__init__()
        use_large_pages()
        self.worker: SiteWorker | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answer a message."""
        worker = self.worker = self.worker or _worker(fl_ctx)
        message: Any = shareable.get(MESSAGE)
        reply = Shareable()
        try:
            complete = _with_vectors(message if isinstance(message, dict) else {}, fl_ctx, abort_signal)
            reply[MESSAGE] = dict(worker.handle(complete))
        except MessageRejected as rejected:
            failure = {"site": worker.name, "failure": str(rejected)}
            reply[MESSAGE] = dict(worker.leaving(failure, message.get("what") if isinstance(message, dict) else None))
        return reply


def _worker(fl_ctx: FLContext) -> SiteWorker:
    workspace = fl_ctx.get_workspace()
    kit, job = true_kit(Path(workspace.get_root_dir())), Path(workspace.get_app_config_dir(fl_ctx.get_job_id()))
    consortium = consortium_of(kit)

    def agree(plan: Plan, settings: SiteSettings) -> None:
        check_members(kit, settings, job, plan.sites)

    signed, server = (job / PLAN).read_text("utf-8"), f"{consortium.server}:{consortium.port}"
    return SiteWorker(fl_ctx.get_identity_name(), lambda: load_site(kit), signed, agree, server)


def _with_vectors(message: Mapping[str, Any], fl_ctx: FLContext, abort_signal: Signal) -> Mapping[str, Any]:
    """Return a message with the vectors that it announces, fetched from the server."""
    parcels = message.get("parcels")
    if parcels is None:
        return message
    if not isinstance(parcels, int) or not 0 <= parcels <= 2**16:
        raise MessageRejected("malformed")
    vectors: list[Any] = []
    for number in range(parcels):
        vectors += _parcel({"ticket": message.get("ticket"), "number": number}, fl_ctx, abort_signal)
    return {**message, "vectors": vectors}


def _parcel(wanted: Mapping[str, Any], fl_ctx: FLContext, abort_signal: Signal) -> list[Any]:
    request = Shareable()
    request[MESSAGE] = dict(wanted)
    for _ in range(TRIES):
        answers = fl_ctx.get_engine().send_aux_request([SERVER], PARCELS, request, SECONDS, fl_ctx)
        answer = (answers or {}).get(SERVER)
        if isinstance(answer, Shareable) and answer.get_return_code(ReturnCode.OK) == ReturnCode.OK:
            vectors = answer.get(MESSAGE)
            if isinstance(vectors, list):
                return vectors
        if abort_signal.triggered:
            break
    raise MessageRejected("vectors not delivered")
