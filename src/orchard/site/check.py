"""Before a run: whether everything at this site fits what is planned, and what would leave it."""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from orchard.consortium import FILE, load_consortium
from orchard.contract import Answer, Client, Reply
from orchard.data import ClientData, Samples
from orchard.engines.flare.messages import Refused, pack_answer
from orchard.engines.turn import take_turn
from orchard.errors import Refusal
from orchard.experiment import MethodSettings
from orchard.plan import Plan, make_plan
from orchard.site.settings import SiteSettings, load_site
from orchard.site.worker import Enrolled, Started, enrolled, started
from orchard.training import NotFinite, Site


def check(kit: Path, experiment: Path) -> Iterator[str]:
    """Try everything but the network; say line by line what was found, and last what would leave the site."""
    settings, name, consortium = load_site(kit), site_name(kit), load_consortium(kit / FILE)
    yield f"site: {name}, one of {len(consortium.sites)} of the consortium {consortium.name}"
    plan = make_plan(experiment, "check", consortium.sites)
    yield f"experiment: {plan.experiment.method.name}, {plan.experiment.rounds} rounds, model {plan.experiment.model}"
    torch.set_num_threads(plan.experiment.threads)
    known = _enrolled(plan, name, settings)
    for part, row in known.record.about["counts"].items():
        held = ", ".join(f"{label}: {n}" for label, n in zip(plan.agreement.classes, row, strict=True))
        yield f"data, {part}: {sum(row)} samples ({held})"
    _try_writing(settings.records)
    yield f"records: {settings.records} can be written"
    now = started(known, [len(known.data.clients[0].train.y)] * len(plan.sites), known.data.shape)
    yield f"model: {now.bounds.length:,} parameters, on {settings.device}"
    yield from _dry_turn(known, now)


def site_name(kit: Path) -> str:
    """Return whose kit it is."""
    file = kit / "startup" / "fed_client.json"
    try:
        name: str = json.loads(file.read_text("utf-8"))["client"]["fqsn"]
    except (OSError, ValueError, KeyError) as error:
        raise Refusal(f"{kit}: is not the startup kit of a site: {file}: {error}") from None
    return name


def _enrolled(plan: Plan, name: str, settings: SiteSettings) -> Enrolled:
    try:
        return enrolled(plan, name, settings)
    except Refused as refused:
        raise Refusal(f"this site could not take part: {refused}") from None


def _try_writing(records: Path) -> None:
    try:
        records.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=records):
            pass
    except OSError as error:
        raise Refusal(f"records = '{records}': cannot be written: {error.strerror}") from None


def _dry_turn(known: Enrolled, now: Started) -> Iterator[str]:
    """Train one step from the initial models, and say what an answer holds."""
    federation, experiment = now.federation, known.experiment
    short = experiment.model_copy(update={"epochs": 1})
    data = now.site.data
    first = Samples(*(tensor[: experiment.batch_size] for tensor in data.train))
    site: Site = replace(now.site, experiment=short, data=ClientData(data.name, first, data.validation, data.test))
    models = experiment.method.server(federation).reply(known.index, now.client.wants(0))
    try:
        answer = take_turn(now.client, site, Reply(0, models))
    except NotFinite as error:
        raise Refusal(f"a training step fails: {error}") from None
    yield f"a training step on {len(first.y)} samples works: loss {answer.loss:.4f}"
    message = pack_answer(answer, 0)
    upload = len(message["upload"] or b"")
    yield ""
    yield "What leaves this site:"
    yield "  once: the shape of a sample, and how many samples of each class it has in each part"
    yield f"  each round: {f'one model of {upload:,} bytes' if upload else 'no model'}, which models it wants next,"
    yield "    its mean training loss, and accuracy, balanced accuracy and AUROC on its validation and test data"
    yield "  where something fails: a category, e.g. 'training not finite'"
    seen = _who_sees_the_model(experiment.method, now.client, answer)
    if seen:
        yield f"  with {experiment.method.name} {seen}"
    yield f"What does not: samples, directed relationships, {'' if seen else 'the personalised model, '}logs."


def _who_sees_the_model(method: MethodSettings, client: Client, answer: Answer) -> str:
    """Say why the personalised model is not the site's alone, where it is not."""
    if method.moment == "exchanged":
        return "the personalised model is the one that the server sends to all"
    if method.moment == "tuned" or answer.upload is None:
        return ""
    same = torch.equal(answer.upload.vector, client.personalised())
    return "the model that leaves is this site's personalised model" if same else ""
