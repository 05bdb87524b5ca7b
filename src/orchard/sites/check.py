"""Check a site before a run: whether it can take part, and what would leave it."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import wrap

import torch
from torch import Tensor

from orchard.core.contract import ClientUpdate, Download, Vectors
from orchard.core.training import NotFinite
from orchard.data.clients import ClientData
from orchard.data.samples import Samples
from orchard.engines.client_round import run_client_round
from orchard.engines.flare.messages import MessageRejected, pack_update
from orchard.errors import UserError
from orchard.method import Moment
from orchard.privacy.accounting import account_of
from orchard.privacy.noise import Noise
from orchard.privacy.statement import not_covered, promise
from orchard.runs.checks import OF_A_CLIENT, findings
from orchard.sites.budget import said
from orchard.sites.consortium import consortium_of
from orchard.sites.enrolment import Enrolled, Started, enrolled, number_moments, started
from orchard.sites.members import described, known_sites
from orchard.sites.party import party_of
from orchard.sites.plan import Plan, make_plan
from orchard.sites.settings import SiteSettings, load_site

WIDTH = 110


def check(kit: Path, experiment: Path) -> Iterator[str]:
    """Try everything but the network; yield the findings line by line, then what would leave the site."""
    settings, name = load_site(kit), party_of(kit, "site").name
    sites = known_sites(kit, settings)
    yield f"site: {name}, one of {len(sites)} of the consortium {consortium_of(kit).name}"
    yield from described(kit, settings, name)
    plan = make_plan(experiment, "check", sites if name in sites else [*sites, name])
    yield f"experiment: {plan.experiment.method.name}, {plan.experiment.rounds} rounds, model {plan.experiment.model}"
    torch.set_num_threads(settings.threads)
    known = _enrolled(plan, name, settings)
    for part, row in known.record.about["counts"].items():
        held = ", ".join(f"{label}: {n}" for label, n in zip(plan.agreement.classes, row, strict=True))
        yield f"data, {part}: {known.record.about['sizes'][part]} samples ({held})"
    _try_writing(settings.records)
    yield f"records: {settings.records} can be written"
    samples = [len(known.data.clients[0].train.y)] * len(plan.sites)
    numbers = number_moments(known.data)
    agreed = {"scale": known.data.task.scale(), "numbers": numbers and numbers.model_dump(mode="json")}
    now = started(known, {"samples": samples, "shape": known.data.shape, **agreed}, Noise.secret())
    yield f"model: {now.federation.parameters:,} parameters, on {settings.device}"
    for finding in findings(plan.experiment, replace(known.data, clients=(now.context.data,)), OF_A_CLIENT):
        yield f"note: {finding}"
    yield from _dry_round(known, now)


def _enrolled(plan: Plan, name: str, settings: SiteSettings) -> Enrolled:
    try:
        return enrolled(plan, name, settings)
    except MessageRejected as rejected:
        raise UserError(f"this site could not take part: {rejected}") from None


def _try_writing(records: Path) -> None:
    try:
        records.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=records):
            pass
    except OSError as error:
        raise UserError(f"records = '{records}': cannot be written: {error.strerror}") from None


def _dry_round(known: Enrolled, now: Started) -> Iterator[str]:
    """Train one step from the initial models; yield whether it works and what an update holds."""
    federation, experiment = now.federation, known.experiment
    data = now.context.data
    first = Samples(*(tensor[: experiment.batch_size] for tensor in data.train))
    short = ClientData(data.name, first, data.validation, data.test)
    context = replace(now.context, experiment=experiment.model_copy(update={"epochs": 1}), data=short)
    server = experiment.method.server(federation)
    models: dict[Moment, Tensor] = {}

    def exchange(round: int) -> tuple[Vectors, ClientUpdate]:
        sent = server.send(known.index, now.client.select(round))
        download = Download(round, sent)
        return sent, run_client_round(now.client, context, download, federation.traffic, models.__setitem__)

    try:
        _, update = exchange(0)
        nothing = {name: torch.zeros_like(vector) for name, vector in update.upload.items()}
        server.aggregate({j: update.upload if j == known.index else nothing for j in range(federation.clients)})
        sent, _ = exchange(experiment.rounds)  # for evaluation only
    except NotFinite as error:
        raise UserError(f"a training step fails: {error}") from None
    yield f"a training step on {len(first.y)} samples works: loss {update.loss:.4f}"
    yield ""
    yield from _what_leaves(known, models[experiment.method.moment], update, sent)


def _what_leaves(known: Enrolled, model: Tensor, update: ClientUpdate, sent: Vectors) -> Iterator[str]:
    method, task = known.experiment.method, known.data.task
    uploads = [f"{name!r} ({len(content):,} bytes)" for name, content in pack_update(update, 0)["upload"]]
    privacy = known.experiment.privacy
    yield "What leaves this site:"
    counted = "samples" if privacy else task.counted
    yield f"  once: the shape of a sample, and the number of {counted} in each part"
    if task.asks_moments():
        yield "    of the numbers to predict in its training part: count, mean and sum of squared deviations"
    if known.data.unscaled is not None:
        yield "    of each number in the table, in its training part: count, mean and sum of squared deviations"
    vectors = ", ".join(uploads) or "no vector"
    if privacy:
        yield f"  each round: {vectors}, made of noised gradients, and the names of the vectors it selects next"
    else:
        yield f"  each round: {vectors}, the names of the vectors it selects next,"
        figures = ", ".join(measure.title for measure in task.measures.values())
        yield f"    its mean training loss, and on its validation and test data: {figures}"
    yield "  if something fails: a category, e.g. 'training not finite'"
    seen = _who_sees_the_model(model, update.upload, sent)
    for learned in filter(None, (seen, method.reveals)):
        yield from wrap(f"with {method.name} {learned}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    private = {"directed relationships": not method.reveals, "the personalised model": not (method.reveals or seen)}
    stays = ["samples", *(what for what, stays in private.items() if stays), *(["figures"] if privacy else []), "logs"]
    yield f"What does not: {', '.join(stays)}."
    if privacy:
        yield ""
        samples = len(known.data.clients[0].train.y)
        yield f"Privacy: {promise(account_of(known.experiment, samples), privacy)}."
        yield from said(known.plan, samples, known.settings)
        yield "Not covered are:"
        yield from (f"  {what}" for what in not_covered(scaled=False, simulated=False))


def _who_sees_the_model(model: Tensor, uploaded: Vectors, sent: Vectors) -> str:
    """Return why others see the personalised model; an empty string if they do not."""
    if any(vector.shape == model.shape and torch.equal(vector, model) for vector in uploaded.values()):
        return "the model that leaves is this site's personalised model"
    if any(vector.shape == model.shape and torch.equal(vector, model) for vector in sent.values()):
        return "the personalised model is the one that the server sends to all"
    return ""
