"""How a site gets ready for a run: it checks the plan, loads its data, then makes its client and network."""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from orchard.core.contract import Client
from orchard.core.federation import Federation
from orchard.core.models import MODELS, draws_randomly
from orchard.core.selftest import check_network
from orchard.core.training import ClientContext
from orchard.data.clients import ClientData, FederatedData
from orchard.data.division import prepared
from orchard.data.site import site_data
from orchard.data.tables.scaling import Moments
from orchard.engines.client_round import check_training
from orchard.engines.flare.messages import Bounds, Message, MessageRejected, unpack_features
from orchard.engines.memory import Stacker
from orchard.experiment import Experiment
from orchard.privacy.noise import Noise
from orchard.sites.budget import check_budget
from orchard.sites.plan import Plan
from orchard.sites.record import SiteRecord
from orchard.sites.settings import SiteSettings
from orchard.tasks.registry import task_named
from orchard.tasks.task import Task


@dataclass
class Enrolled:
    """What a site knows once it has seen the plan."""

    plan: Plan
    settings: SiteSettings
    index: int
    data: FederatedData
    record: SiteRecord

    @property
    def experiment(self) -> Experiment:
        """The planned experiment."""
        return self.plan.experiment


@dataclass
class Started:
    """What a site knows once it has seen the federation."""

    federation: Federation
    bounds: Bounds
    client: Client
    context: ClientContext
    initial: tuple[dict[str, Any], dict[str, Tensor]]
    """The client's state and the buffers before the first round."""


def enrolled(plan: Plan, name: str, settings: SiteSettings) -> Enrolled:
    """Check a plan against what this site allows, and load its data."""
    if name not in plan.sites:
        raise MessageRejected("not a site of this run")
    model = plan.experiment.model
    if model not in MODELS and model not in settings.models:  # before anything of that name is imported
        raise MessageRejected("model not allowed here")
    index = plan.sites.index(name)
    data = site_data(settings.data, name, index, plan.task, plan.experiment)
    counts = {part: rows[0] for part, rows in data.class_counts().items()}
    sizes = {part: sizes[0] for part, sizes in data.sizes().items()}
    about = {"plan": plan.to_json(), "site": name, "data": data.fingerprint(), "sizes": sizes, "counts": counts}
    check_budget(plan, sizes["train"], settings)
    record = SiteRecord(settings.records / plan.run, about, settings.rounds_kept)
    before = record.newest()
    if before is not None and before["about"]["data"] != about["data"]:
        raise MessageRejected("data changed")
    if before is not None and not _same_run(Plan.from_json(before["about"]["plan"]), plan):
        raise MessageRejected("plan changed")
    return Enrolled(plan, settings, index, data, record)


def _same_run(one: Plan, other: Plan) -> bool:
    same_classes = one.agreement.classes == other.agreement.classes
    return same_classes and (one.sites, one.experiment) == (other.sites, other.experiment)


def number_moments(data: FederatedData) -> Moments | None:
    """Return the moments of a table's numbers, if sites standardise by all of them together."""
    return Moments.of(data.clients[0].train.x.numpy(), data.unscaled) if data.unscaled else None


def started(known: Enrolled, message: Message, noise: Noise | None = None) -> Started:
    """Make the client and its network; raise if the federation does not fit the plan and this site's data.

    Under privacy noise is drawn from the key in the site's record, unless other noise is given.
    """
    samples, shape = message.get("samples"), message.get("shape")
    own = len(known.data.clients[0].train.y)
    if (
        not isinstance(samples, list | tuple)
        or len(samples) != len(known.plan.sites)
        or not all(isinstance(n, int) and n > 0 for n in samples)
        or samples[known.index] != own
        or tuple(shape if isinstance(shape, list | tuple) else ()) != known.data.shape
    ):
        raise MessageRejected("not this federation")
    experiment, data, task = known.experiment, known.data, _agreed_task(known.data.task, message.get("scale"))
    federation = Federation(experiment, tuple(samples), data.shape, task, known.settings.device)
    mine = _prepared(data, message.get("numbers"))
    known.record.about |= {
        "samples": list(samples),
        "shape": list(data.shape),
        "scale": task.scale(),
        "preparation": mine.preparation and mine.preparation.model_dump(mode="json"),
    }
    client = experiment.method.client(known.index, federation)
    network = federation.network()
    held = mine.to(network.vector)
    check_training(network, data.shape, experiment, [held])
    check_network(federation, [held])
    if experiment.privacy is not None:
        noise = noise or known.record.noise()
    context = ClientContext(
        known.index, experiment, held, network, draws_randomly(network, data.shape), Stacker(), noise=noise
    )
    bounds = Bounds.of(federation, known.plan.agreement.norm_bound)
    return Started(federation, bounds, client, context, (client.state(), network.buffers()))


def _prepared(data: FederatedData, numbers: object) -> ClientData:
    """Return this site's data, standardised by the moments of all sites if these are to be shared."""
    if data.unscaled is None:
        return data.clients[0]
    moments = unpack_features(numbers)
    if len(moments.counts) != data.unscaled.are_numbers().sum():
        raise MessageRejected("not this federation")
    return prepared(data.clients[0], data.unscaled, moments)


def _agreed_task(task: Task, scale: object) -> Task:
    """Return the task with the means and deviations that the server has made of all sites' moments."""
    if not task.asks_moments():
        return task
    lists = isinstance(scale, list | tuple) and len(scale) == 2 and all(isinstance(s, list | tuple) for s in scale)
    if not isinstance(scale, list | tuple) or not lists:
        raise MessageRejected("not this federation")
    means, deviations = scale
    numbers = [*means, *deviations]
    fits = len(means) == len(deviations) == len(task.classes)
    if not fits or not all(isinstance(n, float) and math.isfinite(n) for n in numbers) or min(deviations) <= 0:
        raise MessageRejected("not this federation")
    return task_named(task.name, task.classes, scale)
