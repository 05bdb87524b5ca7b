"""The server's part of a run: the ordinary run loop, in an ordinary run folder, with sites as clients.

A round counts when enough sites have answered, and is saved before the next one begins. After a crash, a round that
was not saved is run again; sites that had finished it answer from their records.
"""

from pathlib import Path

from orchard.engines.flare.engine import Carry, FlareEngine, Invitation
from orchard.errors import UserError
from orchard.experiment import RunOptions
from orchard.runs.environment import environment
from orchard.runs.folder import RunFolder
from orchard.runs.loop import Progress, Run, Stop, new_run, restored_run, run_to_end
from orchard.runs.resuming import check_same_experiment
from orchard.sites.plan import Plan

EVERY_ROUND = RunOptions(checkpoint_every=1)


def engine_for(plan: Plan, present: list[str], carry: Carry) -> FlareEngine:
    """Return an engine whose clients are the sites of a plan."""
    agreed = plan.agreement
    invitation = Invitation(
        plan=plan.to_json(),
        sites=plan.sites,
        task=plan.task,
        min_sites=plan.min_sites,
        norm_bound=agreed.norm_bound,
        scale_bound=agreed.scale_bound,
        samples=agreed.samples,
        numbers=plan.shared_numbers,
        counted=plan.experiment.privacy is None,
    )
    return FlareEngine(invitation, present, carry)


def coordinate(plan: Plan, path: Path, engine: FlareEngine, follow: Progress, stop: Stop) -> bool:
    """Run the remaining rounds; return True if the run is finished, False if it was stopped after a round."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)  # other users of this machine may not read the models
    with RunFolder(path).locked() as folder:
        if folder.read("summary.json").get("state") == "finished":
            return True
        run = _restored(plan, folder, engine) or _new(plan, folder, engine)
        follow(run.result)
        return run_to_end(run, folder, EVERY_ROUND, follow, stop)


def _new(plan: Plan, folder: RunFolder, engine: FlareEngine) -> Run:
    """Start a new run with all sites."""
    run = new_run(plan.experiment, engine, EVERY_ROUND)
    with folder.on_disk():
        folder.create(run.result, EVERY_ROUND, environment(plan.experiment, EVERY_ROUND))
    return run


def _restored(plan: Plan, folder: RunFolder, engine: FlareEngine) -> Run | None:
    """Continue from the last complete round with the sites that are present; None if there is no checkpoint."""
    checkpoint, problems = folder.newest_checkpoint()
    if checkpoint is None:
        if problems:
            raise UserError("\n".join(problems))
        return None
    check_same_experiment(folder, plan.experiment, checkpoint)
    if folder.experiment().rounds != plan.experiment.rounds:
        raise UserError(f"{folder.path}: the run began with another number of rounds")
    run = restored_run(plan.experiment, engine, EVERY_ROUND, folder, checkpoint)
    with folder.on_disk():
        folder.write_federation(run.result)
        folder.truncate(run.done - 1)
    return run
