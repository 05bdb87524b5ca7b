"""What FLARE runs at a site: it hands a server's message to the site's worker, and the worker's answer back."""

from pathlib import Path
from typing import Any

from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from orchard.plan import FILE as PLAN
from orchard.site.settings import load_site
from orchard.site.worker import SiteWorker

MESSAGE = "message"


class SiteExecutor(Executor):  # type: ignore[misc]
    """The client half of a run at one site."""

    def __init__(self) -> None:
        super().__init__()
        self.worker: SiteWorker | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answer a message."""
        if self.worker is None:
            workspace = fl_ctx.get_workspace()
            kit, job = Path(workspace.get_root_dir()), Path(workspace.get_app_config_dir(fl_ctx.get_job_id()))
            signed = (job / PLAN).read_text("utf-8")
            self.worker = SiteWorker(fl_ctx.get_identity_name(), lambda: load_site(kit), signed)
        message: Any = shareable.get(MESSAGE)
        reply = Shareable()
        reply[MESSAGE] = dict(self.worker.handle(message if isinstance(message, dict) else {}))
        return reply
