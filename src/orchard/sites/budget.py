"""What all runs at a site may tell about single records together: the limit that it sets itself, and what is spent.

A run's whole ε counts once its first round has begun. ε add up, and so do δ: that is simple, and never too little.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchard.engines.flare.messages import MessageRejected
from orchard.errors import UserError
from orchard.privacy.accounting import account_of
from orchard.runs.checkpoints import rounds_written
from orchard.sites.plan import Plan
from orchard.sites.settings import SiteSettings
from orchard.whole import write_durably

ACCOUNT = "account.json"
"""The file in a run's records: the plan, and the lineage of every round that has begun."""


def check_budget(plan: Plan, samples: int, settings: SiteSettings) -> None:
    """Raise if a run with so many training samples would tell more than this site allows."""
    if settings.epsilon is None:
        return
    privacy = plan.experiment.privacy
    if privacy is None:
        raise MessageRejected("privacy needed here")
    if privacy.delta * samples >= 1:  # so large a chance that nothing is promised
        raise MessageRejected("delta not below one in n")
    if spent(settings.records, plan.run) + account_of(plan.experiment, samples).epsilon > settings.epsilon:
        raise MessageRejected("privacy spent here")


def spent(records: Path, but: str = "") -> float:
    """Return the ε of all runs that have begun here, but for one."""
    folders = sorted(records.iterdir()) if records.is_dir() else []
    return math.fsum(_epsilon(folder) for folder in folders if folder.name != but and folder.is_dir())


def said(plan: Plan, samples: int, settings: SiteSettings) -> Iterator[str]:
    """Say what other runs have spent here, and what this site allows."""
    if before := spent(settings.records, plan.run):
        total = before + account_of(plan.experiment, samples).epsilon
        yield f"Runs recorded here have spent ε = {before:.3g}; with this one it is {total:.3g}."
    if settings.epsilon is not None:
        yield f"This site allows ε = {settings.epsilon:g} for all runs together, and none without [privacy]."


def _epsilon(folder: Path) -> float:
    """Return the ε of a run that has begun; infinite if it has no noise, or is not to be read."""
    account = folder / ACCOUNT
    if not account.exists():
        return math.inf if rounds_written(folder) else 0.0
    try:
        content = json.loads(account.read_text("utf-8"))
        return account_of(Plan.from_json(content["plan"]).experiment, content["samples"]).epsilon
    except (OSError, ValueError, TypeError, LookupError, UserError):  # damaged, or of another Orchard
        return math.inf


def begin(folder: Path, plan: Plan, samples: int, round: int, lineage: str) -> None:
    """Note, before noise is drawn, what a round is made of; raise if it began with anything else before.

    A round that fails leaves no record, but tells that it failed. With another download each time it would tell more
    with every try, and the account has each round once.
    """
    file = folder / ACCOUNT
    before: dict[str, Any] = {"plan": plan.to_json(), "rounds": {}}
    if file.exists():
        before = json.loads(file.read_text("utf-8"))
    if Plan.from_json(before["plan"]).experiment != plan.experiment:
        raise MessageRejected("plan changed")
    if before["rounds"].get(str(round), lineage) != lineage:
        raise MessageRejected("round spent")
    rounds = {**before["rounds"], str(round): lineage}
    if rounds != before["rounds"]:
        write_durably(file, json.dumps({"plan": plan.to_json(), "samples": samples, "rounds": rounds}))
