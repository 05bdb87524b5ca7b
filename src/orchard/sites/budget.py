"""What all runs at a site may tell about single records together: the limit that it sets itself, and what is spent.

A run's whole ε counts from its first recorded round on. ε add up, and so do δ: that is simple, and never too little.
"""

import math
from collections.abc import Iterator
from pathlib import Path

from orchard.engines.flare.messages import MessageRejected
from orchard.errors import UserError
from orchard.privacy.accounting import account_of
from orchard.runs.checkpoints import read_newest, rounds_written
from orchard.sites.plan import Plan
from orchard.sites.settings import SiteSettings


def check_budget(plan: Plan, samples: int, settings: SiteSettings) -> None:
    """Raise if a run with so many training samples would tell more than this site allows."""
    if settings.epsilon is None:
        return
    if plan.experiment.privacy is None:
        raise MessageRejected("privacy needed here")
    if spent(settings.records, plan.run) + account_of(plan.experiment, samples).epsilon > settings.epsilon:
        raise MessageRejected("privacy spent here")


def spent(records: Path, but: str = "") -> float:
    """Return the ε of all runs that are recorded, but for one; infinite if a run had no noise or cannot be read."""
    folders = sorted(records.iterdir()) if records.is_dir() else []
    return math.fsum(_epsilon(folder) for folder in folders if folder.name != but and rounds_written(folder))


def said(plan: Plan, samples: int, settings: SiteSettings) -> Iterator[str]:
    """Say what other runs have spent here, and what this site allows."""
    if before := spent(settings.records, plan.run):
        total = before + account_of(plan.experiment, samples).epsilon
        yield f"Runs recorded here have spent ε = {before:.3g}; with this one it is {total:.3g}."
    if settings.epsilon is not None:
        yield f"This site allows ε = {settings.epsilon:g} for all runs together, and none without [privacy]."


def _epsilon(folder: Path) -> float:
    try:
        about = read_newest(folder)[0]["about"]
        experiment = Plan.from_json(about["plan"]).experiment
    except (TypeError, LookupError, UserError):  # damaged, or of another Orchard
        return math.inf
    return math.inf if experiment.privacy is None else account_of(experiment, about["sizes"]["train"]).epsilon
