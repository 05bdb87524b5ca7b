"""A site's own view of a run: its figures, personalised model and relationships, which only the site has."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchard.core.evaluation import Scores
from orchard.core.federation import Federation
from orchard.data.division import scaled
from orchard.data.samples import Samples
from orchard.data.site import site_data
from orchard.data.tables.scaling import Preparation
from orchard.errors import UserError
from orchard.export.by_class import has_classes
from orchard.export.export import write_model
from orchard.export.trained_model import TrainedModel
from orchard.privacy.accounting import account_of
from orchard.privacy.statement import described
from orchard.sites.plan import Plan
from orchard.sites.record import SiteRecord
from orchard.sites.settings import load_site
from orchard.tasks.registry import task_named

Choice = Literal["last", "validation"]


@dataclass(frozen=True)
class SiteRun:
    """A site's record of a run, read back."""

    content: dict[str, Any]
    plan: Plan
    data: Path
    """The site's own data."""

    @property
    def about(self) -> dict[str, Any]:
        """What the site knew when the run began."""
        about: dict[str, Any] = self.content["about"]
        return about


def site_run(kit: Path, run: str | None) -> SiteRun:
    """Read the record of a run, by default the newest."""
    settings = load_site(kit)
    records = settings.records
    found = sorted(records.glob("*/rounds-*.json"), key=lambda file: file.stat().st_mtime)
    runs = list(dict.fromkeys(file.parent.name for file in reversed(found)))
    if run is not None and run not in runs:
        raise UserError(f"--run {run}: no such run here; there are: {', '.join(runs) or 'none'}")
    content = SiteRecord(records / (run or runs[0]), {}).newest() if runs else None
    if content is None:
        raise UserError(f"{records}: holds no whole record of a run yet")
    return SiteRun(content, Plan.from_json(content["about"]["plan"]), settings.data)


def report(site_run: SiteRun) -> Iterator[str]:
    """Yield a short report, line by line."""
    plan, content = site_run.plan, site_run.content
    rounds = min(content["rounds"], plan.experiment.rounds)
    yield f"run {plan.run}: {rounds} of {plan.experiment.rounds} rounds of {plan.experiment.method.name}"
    for name, what in (("chosen", "chosen by this site's validation data"), ("last", "the last")):
        model = content[name]
        if model:
            score = plan.task.measures[plan.task.score]
            test, validation = (score.text(model["scores"][part][plan.task.score]) for part in ("test", "validation"))
            figures = f"test {score.title} {test}, validation {validation}"
            yield f"{what}: round {model['round'] + 1}, {figures}"
    if plan.experiment.privacy is not None:
        spent = account_of(plan.experiment, site_run.about["sizes"]["train"])
        yield f"privacy: {described(spent)}, δ = {spent.delta:g}; the figures here are exact, and for this site alone"
    yield from _left_out(site_run)
    diagnostics = content["history"][-1]["diagnostics"]
    if "relationships" in diagnostics:
        alone = "" if plan.experiment.method.reveals else ", known here alone"
        yield f"directed relationships{alone}:"
        for site, strength in zip(plan.sites, diagnostics["relationships"], strict=True):
            own = "  (this site)" if site == site_run.about["site"] else ""
            yield f"  {site:24} {strength:+.4f}{own}"


def _left_out(site_run: SiteRun) -> Iterator[str]:
    """Say whose models this site has left out, and in which rounds."""
    by_round = [
        entry["diagnostics"].get("left_out", [])
        for entry in site_run.content["history"][: site_run.plan.experiment.rounds]
    ]
    for j, site in enumerate(site_run.plan.sites):
        rounds = [str(r + 1) for r, flags in enumerate(by_round) if flags and flags[j]]
        if rounds:
            yield f"left out, since it made this site's model worse: {site}, in rounds {', '.join(rounds)}"


def export(site_run: SiteRun, to: Path, choice: Choice | None = None) -> Path:
    """Write the site's personalised model and its card; return the card's path.

    The round is the one that validation data choose; under privacy the last, since that choice would have no noise.
    """
    private = site_run.plan.experiment.privacy is not None
    if private and choice == "validation":
        raise UserError("--round validation: under [privacy] that choice would show in the model; take the last round")
    choice = choice or ("last" if private else "validation")
    model, about, plan = site_run.content["last" if choice == "last" else "chosen"], site_run.about, site_run.plan
    if model is None:
        raise UserError("no model has been evaluated yet; wait for the first round to end")
    task = task_named(plan.task.name, plan.task.classes, about["scale"])
    trained = TrainedModel(
        federation=Federation(plan.experiment, tuple(about["samples"]), tuple(about["shape"]), task),
        client=about["site"],
        clients=len(plan.sites),
        sizes=about["sizes"],
        counts=about["counts"],
        scores=Scores.from_plain(model["scores"]),
        round=model["round"],
        choice="own-validation" if choice == "validation" else choice,
        model=(model["vector"], model["buffers"]),
        preparation=about["preparation"],
        test=_test_samples(site_run) if has_classes(task) and not private else None,
        told=not private,
    )
    return write_model(trained, to)


def _test_samples(site_run: SiteRun) -> Samples | None:
    """Return the site's test samples; None if its data are not there any more, or others."""
    about, plan = site_run.about, site_run.plan
    try:
        data = site_data(site_run.data, about["site"], plan.sites.index(about["site"]), plan.task, plan.experiment)
    except UserError:
        return None
    if data.fingerprint() != about["data"]:
        return None
    client = data.clients[0]
    if data.unscaled:
        client = scaled(client, data.unscaled, Preparation.model_validate(about["preparation"]).scaling)
    return client.test
