"""What a site has of a run: its figures, its personalised model and its own relationships, which exist nowhere else."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from orchard.contract import Federation
from orchard.data import Holdings
from orchard.errors import Refusal
from orchard.export import write_model
from orchard.plan import Plan
from orchard.record import Round
from orchard.results import Result
from orchard.site.record import SiteRecord, scores_of
from orchard.site.settings import load_site

Choice = Literal["last", "validation"]


@dataclass(frozen=True)
class Own:
    """A site's record of a run, read back."""

    content: dict[str, Any]
    plan: Plan

    @property
    def index(self) -> int:
        """Which of the sites it is."""
        return self.plan.sites.index(self.content["about"]["site"])


def own_record(kit: Path, run: str | None) -> Own:
    """Read the record of a run; of the newest where none is named."""
    records = load_site(kit).records
    found = sorted(records.glob("*/rounds-*.json"), key=lambda file: file.stat().st_mtime)
    runs = list(dict.fromkeys(file.parent.name for file in reversed(found)))
    if run is not None and run not in runs:
        raise Refusal(f"--run {run}: no such run here; there are: {', '.join(runs) or 'none'}")
    content = SiteRecord(records / (run or runs[0]), {}).newest() if runs else None
    if content is None:
        raise Refusal(f"{records}: holds no whole record of a run yet")
    return Own(content, Plan.from_json(content["about"]["plan"]))


def report(own: Own) -> Iterator[str]:
    """Say in a few lines what the site has."""
    plan, content = own.plan, own.content
    rounds = min(content["rounds"], plan.experiment.rounds)
    yield f"run {plan.run}: {rounds} of {plan.experiment.rounds} rounds of {plan.experiment.method.name}"
    for name, what in (("chosen", "chosen by this site's validation data"), ("last", "the last")):
        model = content[name]
        if model:
            scores = scores_of(model["scores"])
            assert scores is not None  # noqa: S101 (a model is kept with its scores)
            figures = f"test accuracy {scores.test.accuracy:.1%}, validation {scores.validation.accuracy:.1%}"
            yield f"{what}: round {model['round'] + 1}, {figures}"
    notes = content["history"][-1]["notes"]
    if "relationships" in notes:
        yield "directed relationships, known here alone:"
        for site, strength in zip(plan.sites, notes["relationships"], strict=True):
            yield f"  {site:24} {strength:+.4f}{'  (this site)' if plan.sites[own.index] == site else ''}"


def export(own: Own, to: Path, choice: Choice) -> Path:
    """Write the site's personalised model and its card; return where the card is."""
    model = own.content["last" if choice == "last" else "chosen"]
    if model is None:
        raise Refusal("no model has been measured yet; wait for the first round to end")
    return write_model(
        _result(own, model), own.index, (model["vector"], model["buffers"]), (model["round"], choice), to
    )


def _result(own: Own, model: dict[str, Any]) -> Result:
    """Return what this site knows of the run as a result: of the others, nothing but their names."""
    plan, about, index = own.plan, own.content["about"], own.index
    classes, sites = plan.agreement.classes, plan.sites
    nothing = [0] * len(classes)
    counts = {
        part: [row if i == index else nothing for i in range(len(sites))] for part, row in about["counts"].items()
    }
    holdings = Holdings(sites, classes, about["shape"], None, counts)
    federation = Federation(plan.experiment, tuple(about["samples"]), tuple(about["shape"]), len(classes))
    scores = [scores_of(model["scores"]) if i == index else None for i in range(len(sites))]
    nobody = [None] * len(sites)
    entry = Round(
        round=model["round"],
        time=datetime.now(UTC).isoformat(),
        seconds=0.0,
        loss=list(nobody),
        trained=scores,
        exchanged=scores,
        tuned=scores,
        bytes_up=[0] * len(sites),
        bytes_down=[0] * len(sites),
        notes={},
        failures={},
    )
    return Result(plan.experiment, holdings, federation, {}, [entry] * (model["round"] + 1))
