"""A site at work: it takes a server's messages, checks them, takes its turns, and answers with what may leave.

What may leave is what `orchard.engines.flare.messages` has fields for. Whatever goes wrong leaves as a category; the
site's own log has the rest.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from orchard.contract import Answer, Client, Enrolment, Federation, Reply
from orchard.data import FederatedData, site_data
from orchard.engines.flare.messages import (
    Bounds,
    Message,
    Refused,
    pack_answer,
    pack_enrolment,
    unpack_reply,
)
from orchard.engines.local import refuse_single_samples
from orchard.engines.turn import take_turn
from orchard.errors import Refusal
from orchard.experiment import Experiment, Moment
from orchard.models import MODELS, draws_randomly
from orchard.plan import Plan
from orchard.site.record import Model, SiteRecord, Turn, answer_of
from orchard.site.settings import SiteSettings
from orchard.training import NotFinite, Site

log = logging.getLogger(__name__)

CATEGORIES: dict[type[BaseException], str] = {
    NotFinite: "training not finite",
    Refusal: "refused by the site",
    MemoryError: "out of memory",
    OSError: "disk",
}


@dataclass
class Enrolled:
    """What a site knows once it has seen the plan."""

    plan: Plan
    experiment: Experiment
    index: int
    data: FederatedData
    record: SiteRecord


@dataclass
class Started:
    """What a site knows once it has seen the federation."""

    federation: Federation
    bounds: Bounds
    client: Client
    site: Site
    initial: tuple[dict[str, Any], dict[str, Tensor]]
    """The half's state and the buffers before the first round."""


class SiteWorker:
    """One site in one run.

    `signed` is the plan as the coordinator has signed it: a server that names another one is not followed.
    """

    def __init__(self, name: str, settings: Callable[[], SiteSettings], signed: str | None = None) -> None:
        self.name, self.settings, self.signed = name, settings, signed
        self.enrolled: Enrolled | None = None
        self.started: Started | None = None

    def handle(self, message: Message) -> Message:
        """Answer a message; an error becomes a category."""
        handlers = {"enrol": self._enrol, "start": self._start, "turn": self._turn}
        try:
            handler = handlers.get(message.get("what", ""))
            if handler is None:
                raise Refused("unknown message")
            return {"site": self.name, **handler(message)}
        except Refused as refused:
            log.warning("refused: %s", refused)
            return {"site": self.name, "failure": str(refused)}
        except Exception as error:
            log.exception("the turn failed")
            kinds = (word for kind, word in CATEGORIES.items() if isinstance(error, kind))
            return {"site": self.name, "failure": next(kinds, "error")}

    # --- Messages ---

    def _enrol(self, message: Message) -> Message:
        if self.signed is not None and message.get("plan") != self.signed:
            raise Refused("not the signed plan")
        plan = Plan.from_json(str(message.get("plan")))
        self.enrolled, self.started = enrolled(plan, self.name, self.settings()), None
        torch.set_num_threads(plan.experiment.threads)
        return enrolment_of(self.enrolled)

    def _start(self, message: Message) -> Message:
        if self.enrolled is None:
            raise Refused("not enrolled")
        self.started = started(self.enrolled, message.get("samples"), message.get("shape"))
        nothing = Answer(None, self.started.client.wants(0), None, None, None)
        return pack_answer(nothing, 0)

    def _turn(self, message: Message) -> Message:
        if self.enrolled is None or self.started is None:
            raise Refused("not started")
        known, now = self.enrolled, self.started
        rounds = known.plan.experiment.rounds
        reply = unpack_reply(message, now.federation.clients, rounds, now.bounds)
        with known.record.held(known.plan.agreement.round_seconds):
            return pack_answer(_taken(known, now, reply), reply.round)


# --- A turn ---


def _taken(known: Enrolled, now: Started, reply: Reply) -> Answer:
    """Take a turn, and bring it onto the disk; one that was taken before is read from there."""
    done = known.record.for_round(reply.round)
    if done is not None and done["rounds"] == reply.round + 1:
        return answer_of(done)
    half, buffers = (done["half"], done["buffers"]) if done else now.initial
    now.client.restore(half)
    network = now.site.network
    network.load_buffers(buffers)
    models: dict[Moment, Model] = {}
    answer = take_turn(
        now.client, now.site, reply, lambda moment, model: models.update({moment: (model, network.buffers())})
    )
    moment = known.experiment.method.moment
    turn = Turn(
        round=reply.round,
        answer=answer,
        half=now.client.state(),
        buffers=network.buffers() if reply.round < known.experiment.rounds else buffers,
        notes=now.client.notes(),
        moment=moment,
        model=models.get(moment),
    )
    known.record.write(done, turn)
    return answer


# --- Getting ready ---


def enrolled(plan: Plan, name: str, settings: SiteSettings) -> Enrolled:
    """Check a plan against what this site allows, and load its data."""
    if name not in plan.sites:
        raise Refused("not a site of this run")
    model = plan.experiment.model
    if model not in MODELS and model not in settings.models:  # before anything of that name is imported
        raise Refused("model not allowed here")
    experiment = plan.experiment.model_copy(update={"device": settings.device})
    index = plan.sites.index(name)
    data = site_data(settings.data, name, index, tuple(plan.agreement.classes), experiment)
    counts = {part: rows[0] for part, rows in data.class_counts().items()}
    about = {"plan": plan.to_json(), "site": name, "data": data.fingerprint(), "counts": counts}
    record = SiteRecord(settings.records / plan.run, about)
    before = record.newest()
    if before is not None and before["about"]["data"] != about["data"]:
        raise Refused("data changed")
    if before is not None and not _same_run(Plan.from_json(before["about"]["plan"]), plan):
        raise Refused("plan changed")
    return Enrolled(plan, experiment, index, data, record)


def enrolment_of(known: Enrolled) -> Message:
    """Say what this site brings."""
    held, counts = known.data, known.record.about["counts"]
    return pack_enrolment(Enrolment(sum(counts["train"]), held.shape, len(held.classes)), counts)


def _same_run(one: Plan, other: Plan) -> bool:
    same_classes = one.agreement.classes == other.agreement.classes
    return same_classes and (one.sites, one.experiment) == (other.sites, other.experiment)


def started(known: Enrolled, samples: object, shape: object) -> Started:
    """Make the client half and its network, once all know the federation."""
    own = len(known.data.clients[0].train.y)
    if (
        not isinstance(samples, list | tuple)
        or len(samples) != len(known.plan.sites)
        or not all(isinstance(n, int) and n > 0 for n in samples)
        or samples[known.index] != own
        or tuple(shape if isinstance(shape, list | tuple) else ()) != known.data.shape
    ):
        raise Refused("not this federation")
    federation = Federation(known.experiment, tuple(samples), known.data.shape, len(known.data.classes))
    known.record.about |= {"samples": list(samples), "shape": list(known.data.shape)}
    client = known.experiment.method.client(known.index, federation)
    network = federation.network()
    held = known.data.clients[0].beside(network.vector)
    refuse_single_samples(network, known.data.shape, known.experiment, [held])
    site = Site(known.index, known.experiment, held, network, draws_randomly(network, known.data.shape))
    bounds = Bounds.of(federation, known.plan.agreement.norm_bound)
    return Started(federation, bounds, client, site, (client.state(), network.buffers()))
