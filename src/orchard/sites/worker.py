"""A site's worker: it checks the server's messages, runs its client's rounds, and answers.

Only what `orchard.engines.flare.messages` has fields for can leave the site. Of an error only a category leaves; the
site's own log has the details.
"""

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from orchard import __version__
from orchard.core.contract import ClientUpdate, Download
from orchard.core.training import NotFinite
from orchard.core.vector import Model
from orchard.engines.client_round import run_client_round
from orchard.engines.flare.messages import (
    Enrolment,
    Message,
    MessageRejected,
    pack_enrolment,
    pack_update,
    packed,
    unpack_download,
    version_of,
)
from orchard.errors import UserError
from orchard.method import Moment
from orchard.sites.budget import begin
from orchard.sites.enrolment import Enrolled, Started, enrolled, number_moments, started
from orchard.sites.plan import Plan
from orchard.sites.record import SiteRound, update_of
from orchard.sites.settings import SiteSettings
from orchard.sites.statistics import allowed_statistics
from orchard.sites.trail import Trail

log = logging.getLogger(__name__)

CATEGORIES: dict[type[BaseException], str] = {
    NotFinite: "training not finite",
    UserError: "refused by the site - its log says why",
    MemoryError: "out of memory",
    OSError: "disk",
}


class SiteWorker:
    """One site in one run.

    `signed` is the plan as the coordinator signed it; a message with another plan is rejected. `agree` raises if the
    site has not agreed to the members. `server` is who gets the answers.
    """

    def __init__(
        self,
        name: str,
        settings: Callable[[], SiteSettings],
        signed: str | None = None,
        agree: Callable[[Plan, SiteSettings], None] = lambda plan, settings: None,
        server: str = "server",
    ) -> None:
        self.name, self.settings, self.signed, self.agree, self.server = name, settings, signed, agree, server
        self.enrolled: Enrolled | None = None
        self.started: Started | None = None
        self.run: str | None = None
        """The name of the run that the server has asked for, once its plan is accepted."""

    def handle(self, message: Message) -> Message:
        """Answer a message; what leaves is in the audit trail first."""
        return self.leaving(self._answer(message), message.get("what"))

    def leaving(self, answer: Message, what: object) -> Message:
        """Write an answer into the audit trail and return it; if it cannot be written, only a category leaves."""
        try:
            settings = self.enrolled.settings if self.enrolled else self.settings()
            Trail(settings.records).write(answer, str(what)[:40], self.run, self.server)
        except Exception:
            log.exception("the audit trail cannot be written")
            return answer if "failure" in answer else {"site": self.name, "failure": "audit trail not written"}
        return answer

    def _answer(self, message: Message) -> Message:
        """Answer a message; of an error, report the category only."""
        handlers = {"enrol": self._enrol, "start": self._start, "round": self._round, "statistics": self._statistics}
        try:
            handler = handlers.get(message.get("what", ""))
            if handler is None:
                raise MessageRejected("unknown message")
            return {"site": self.name, **handler(message)}
        except MessageRejected as rejected:
            log.warning("rejected: %s", rejected)
            return {"site": self.name, "failure": str(rejected), "orchard": __version__}
        except Exception as error:
            if isinstance(error, UserError):
                log.error("this site takes no part: %s", error)
            else:
                log.exception("the round failed")
            kinds = (word for kind, word in CATEGORIES.items() if isinstance(error, kind))
            return {"site": self.name, "failure": next(kinds, "error")}

    # --- Messages ---

    def _plan(self, message: Message, purpose: str) -> Plan:
        """Return the plan in a message; raise unless it is the signed one, and for this purpose."""
        if version_of(message) != __version__:
            log.error("the server runs Orchard %s, this site %s", version_of(message), __version__)
            raise MessageRejected("other version of orchard")
        if self.signed is not None and message.get("plan") != self.signed:
            raise MessageRejected("not the signed plan")
        plan = Plan.from_json(str(message.get("plan")))
        if plan.purpose != purpose:
            raise MessageRejected("not what the plan is for")
        self.run = plan.run
        return plan

    def _statistics(self, message: Message) -> Message:
        plan, settings = self._plan(message, "statistics"), self.settings()
        self.agree(plan, settings)
        told = allowed_statistics(plan, self.name, settings)
        return {"orchard": __version__, "statistics": told.model_dump(mode="json")}

    def _enrol(self, message: Message) -> Message:
        plan, settings = self._plan(message, "training"), self.settings()
        self.agree(plan, settings)
        self.enrolled, self.started = enrolled(plan, self.name, settings), None
        torch.set_num_threads(self.enrolled.settings.threads)
        data, about = self.enrolled.data, self.enrolled.record.about
        moments = data.task.moments(data.clients[0].train.y)
        counts = about["counts"] if plan.experiment.privacy is None else {}
        return pack_enrolment(Enrolment(data.shape, about["sizes"], counts, moments, number_moments(data)))

    def _start(self, message: Message) -> Message:
        if self.enrolled is None:
            raise MessageRejected("not enrolled")
        self.started = started(self.enrolled, message)
        nothing = ClientUpdate({}, tuple(self.started.client.select(0)), None, None, None)
        return pack_update(nothing, 0)

    def _round(self, message: Message) -> Message:
        if self.enrolled is None or self.started is None:
            raise MessageRejected("not started")
        known, now = self.enrolled, self.started
        download = unpack_download(message, known.experiment.rounds, now.bounds)
        with known.record.locked(known.plan.agreement.round_seconds):
            return pack_update(_told(known, _recorded_round(known, now, download)), download.round)


# --- A round ---


def _told(known: Enrolled, update: ClientUpdate) -> ClientUpdate:
    """Return what leaves of an update: under privacy no figures, which are on no account."""
    if known.experiment.privacy is None:
        return update
    return ClientUpdate(update.upload, update.selected, None, None, None)


def lineage_of(before: str, samples: Sequence[int], download: Download) -> str:
    """Return a digest of a round: of those before it, of what the server says of the federation, and of the download.

    The client's state follows from these. Noise is drawn from it, so that two answers to the same round, e.g. one of
    before and one of after a site was restored from a backup, never have the same noise unless they are equal: their
    difference would have none.
    """
    digest = hashlib.blake2b(f"{before} {list(samples)} {download.round} ".encode(), digest_size=32)
    for name, vector in sorted(download.vectors.items()):
        digest.update(f"{name} {len(vector)} ".encode() + packed(vector))
    return digest.hexdigest()


def _recorded_round(known: Enrolled, now: Started, download: Download) -> ClientUpdate:
    """Run a round and record it on disk; a round that was run before is read from its record, and not run again."""
    done = known.record.for_round(download.round)
    if done is not None and done["rounds"] == download.round + 1:
        log.info("round %d is asked for again; the answer is the same as before", download.round + 1)
        return update_of(done)
    state, buffers = (done["client"], done["buffers"]) if done else now.initial
    context, lineage = now.context, ""
    if context.noise is not None:
        before = done["lineage"] if done else known.record.about["data"]
        lineage = lineage_of(before, now.federation.samples, download)
        own = now.federation.samples[known.index]
        begin(known.record.folder, known.plan, own, download.round, lineage)
        context = replace(context, noise=context.noise.of(lineage.encode()))
    now.client.restore(state)
    network = now.context.network
    network.load_buffers(buffers)
    models: dict[Moment, Model] = {}

    def keep(moment: Moment, model: Tensor) -> None:
        models[moment] = (model, network.buffers())

    update = run_client_round(now.client, context, download, now.federation.traffic, keep)
    moment = known.experiment.method.moment
    site_round = SiteRound(
        round=download.round,
        update=update,
        client=now.client.state(),
        buffers=network.buffers() if download.round < known.experiment.rounds else buffers,
        diagnostics=now.client.diagnostics(),
        moment=moment,
        score=now.federation.task.score,
        model=models.get(moment),
        lineage=lineage,
    )
    known.record.write(done, site_round)
    return update
