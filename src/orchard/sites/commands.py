"""What the coordinator's commands do: begin a run, follow it again, stop it, show who is connected."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

from orchard.errors import UserError
from orchard.runs.folder import RunFolder
from orchard.runs.result import Result
from orchard.runs.run import make_run_folder
from orchard.sites.connection import Connection, SiteStatus
from orchard.sites.coordinator import EVERY_ROUND
from orchard.sites.plan import FILE as PLAN
from orchard.sites.plan import Plan
from orchard.sites.supervision import LOOKS_UNTIL_STUCK, POLL, STATE, STOP, Say, Supervisor, attach_command
from orchard.sites.waiting import SLOW, Waiting
from orchard.whole import write_durably


def begin(plan: Plan, kit: Path, path: Path, say: Say) -> Result:
    """Submit a run and follow it to its end."""
    make_run_folder(path)
    try:
        write_durably(path / PLAN, plan.to_json())
        RunFolder(path).write_experiment(plan.experiment, EVERY_ROUND)  # so that it is listed before it begins
        write_durably(path / STATE, json.dumps({"kit": str(kit.resolve()), "run": plan.run}))
    except OSError as error:
        raise UserError(f"{path}: cannot be used as a folder: {error.strerror}") from None
    return attach(path, None, say)


def attach(path: Path, kit: Path | None, say: Say) -> Result:
    """Follow a run that was submitted earlier to its end."""
    plan, home = planned(path), kit or kit_of(path)
    with RunFolder(path).locked() as folder, Connection(home, waiting=Waiting(say, folder.note_waiting)) as server:
        if folder.read("summary.json").get("state") == "finished":
            return folder.result()
        say(f"run {plan.run}, kept in {path}; connecting to {server.address}")
        (path / STOP).unlink(missing_ok=True)
        folder.note_waiting(None)  # of the process that followed it before
        return Supervisor(server, folder, plan, say).run()


def stop(path: Path, kit: Path | None, *, now: bool, say: Say) -> None:
    """Stop a run after its current round, or at once; a process that follows it ends too."""
    plan, home = planned(path), kit or kit_of(path)
    if RunFolder(path).read("summary.json").get("state") == "finished":
        say(f"{path}: has finished; there is nothing to stop")
        return
    (path / STOP).write_text("", "utf-8")
    say("asking the server to end the run " + ("at once" if now else "after its round"))
    waiting = Waiting(say)
    silent: dict[str, int] = {}
    """By job, checks in a row without an answer; a job that never answers has not started, or never will."""
    with Connection(home, waiting=Waiting(say)) as server:
        while jobs := server.unfinished(plan.run):
            for job in jobs:
                answered = not now and server.progress(job, {"stop": True})
                silent[job] = 0 if answered else silent.get(job, 0) + 1
                if now or silent[job] >= LOOKS_UNTIL_STUCK:
                    server.abort(job)
            waiting.on("the round to end" if not now else "the job to end", after=SLOW)
            time.sleep(POLL)
    say(f"stopped; go on with: {attach_command(path)}")


def planned(path: Path) -> Plan:
    """Return the plan of a run that this coordinator submitted."""
    try:
        return Plan.from_json((path / PLAN).read_text("utf-8"))
    except OSError:
        raise UserError(f"{path}: is not the folder of a run on sites: it has no {PLAN}") from None


def is_submitted(path: Path) -> bool:
    """Tell whether the server has a job of a run."""
    return "job" in RunFolder(path).read(STATE)


def kit_of(path: Path) -> Path:
    """Return the kit that a run was submitted with."""
    return Path(RunFolder(path).read(STATE).get("kit", ""))


def site_table(sites: Sequence[str], there: dict[str, SiteStatus]) -> list[tuple[str, str, str]]:
    """Return each site's name, whether it is connected, and how many jobs it runs."""
    return [
        (site, "connected" if site in there else "absent", str(len(there[site].jobs)) if site in there else "-")
        for site in sites
    ]
