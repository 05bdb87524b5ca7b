"""What FLARE runs at a site: it hands a server's message to the site's worker, and the worker's answer back.

A message names the models of a reply; they are fetched in small parcels, so that a server need not have whole replies
to all of its sites in memory at once.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReturnCode, Shareable
from nvflare.apis.signal import Signal

from orchard.engines.flare.messages import Refused
from orchard.plan import FILE as PLAN
from orchard.site.settings import load_site
from orchard.site.worker import SiteWorker

MESSAGE = "message"
PARCELS = "orchard_parcels"
"""The topic under which models are fetched."""
SERVER = "server"
TRIES = 3
SECONDS = 120.0
"""How long a parcel may take."""


class SiteExecutor(Executor):  # type: ignore[misc]
    """The client half of a run at one site."""

    def __init__(self) -> None:
        super().__init__()
        self.worker: SiteWorker | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answer a message."""
        worker = self.worker = self.worker or _worker(fl_ctx)
        message: Any = shareable.get(MESSAGE)
        reply = Shareable()
        try:
            complete = _with_models(message if isinstance(message, dict) else {}, fl_ctx, abort_signal)
            reply[MESSAGE] = dict(worker.handle(complete))
        except Refused as refused:
            reply[MESSAGE] = {"site": worker.name, "failure": str(refused)}
        return reply


def _worker(fl_ctx: FLContext) -> SiteWorker:
    workspace = fl_ctx.get_workspace()
    kit, job = Path(workspace.get_root_dir()), Path(workspace.get_app_config_dir(fl_ctx.get_job_id()))
    return SiteWorker(fl_ctx.get_identity_name(), lambda: load_site(kit), (job / PLAN).read_text("utf-8"))


def _with_models(message: Mapping[str, Any], fl_ctx: FLContext, abort_signal: Signal) -> Mapping[str, Any]:
    """Fetch the models that a message names."""
    parcels = message.get("parcels")
    if parcels is None:
        return message
    if not isinstance(parcels, int) or not 0 <= parcels <= 2**16:
        raise Refused("malformed")
    models: list[Any] = []
    for number in range(parcels):
        models += _parcel({"ticket": message.get("ticket"), "number": number}, fl_ctx, abort_signal)
    return {**message, "models": models}


def _parcel(wanted: Mapping[str, Any], fl_ctx: FLContext, abort_signal: Signal) -> list[Any]:
    request = Shareable()
    request[MESSAGE] = dict(wanted)
    for _ in range(TRIES):
        answers = fl_ctx.get_engine().send_aux_request([SERVER], PARCELS, request, SECONDS, fl_ctx)
        answer = (answers or {}).get(SERVER)
        if isinstance(answer, Shareable) and answer.get_return_code(ReturnCode.OK) == ReturnCode.OK:
            models = answer.get(MESSAGE)
            if isinstance(models, list):
                return models
        if abort_signal.triggered:
            break
    raise Refused("models not delivered")
