"""A run seen from its coordinator: submitted, followed, and submitted again where FLARE gives it up.

FLARE ends a job when a site's process dies, and lets no site back into a job that runs. What is lost is the round at
hand: server and sites go on from their own records in a new job. The coordinator's folder is an ordinary run folder,
without models and relationships.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orchard.checkpoints import write_durably
from orchard.deploy.connection import FINISHED, Connection, Seen, printable
from orchard.deploy.job import BEGINNING
from orchard.errors import Refusal, RunFailed, Stopped
from orchard.folder import RunFolder
from orchard.plan import FILE as PLAN
from orchard.plan import Plan
from orchard.results import Result

Say = Callable[[str], None]

STATE = "deploy.json"
STOP = "stop"
POLL = 1.0
LOOK_AT_SITES = 3.0
"""Seconds between looks at which sites are there."""
SETTLING = 30.0
"""Seconds that a site has to begin with a job."""
FORGOTTEN = 3
"""Looks in a row at which a party does not know of a job that ran there, after which it is over."""
STUCK = 60
"""Looks in a row at which a server that was started anew still has a job to begin, after which it never will."""
TRIES = 5
"""Jobs in a row that bring no round further, after which the run is given up."""
DEATHS = 3
"""Such jobs that one site's death has ended, after which the run goes on without it."""
AGAIN = 600.0
"""Seconds after which a site that could not take part, or kept dying, is asked again."""


class Supervisor:
    """Follows one run; `folder` is held by this process."""

    def __init__(self, server: Connection, folder: RunFolder, plan: Plan, say: Say) -> None:
        self.server, self.folder, self.plan, self.say = server, folder, plan, say
        self.done = len(folder.rounds())
        """Rounds whose lines are complete."""
        self.shown = self.done
        self.lost: set[str] = set()
        """Sites whose loss has ended the job at hand."""
        self.deaths: dict[str, int] = {}
        """By site: jobs since the last complete round that its death has ended."""
        self.left_out: dict[str, float] = {}
        """By site that kept dying: since when the run goes on without it."""

    def run(self) -> Result:
        """Follow the run to its end."""
        job, tries = self._state().get("job"), 0
        while True:
            before = self.done
            if job is None:
                job = self._submitted()
            status = self._watch(job)
            error = "the server was started anew"
            if status.startswith(FINISHED):
                error = self.server.fetch(job, self.folder.path)
            self.done = len(self.folder.rounds())
            if self.folder.read("summary.json").get("state") == "finished":
                return self.folder.result()
            if self._stopping():
                raise Stopped(f"stopped after round {self.done + 1}; go on with: {attach_command(self.folder.path)}")
            left_out = self._count_deaths(error, complete=self.done > before)
            tries = 0 if self.done > before or left_out else tries + 1
            if tries >= TRIES:
                raise RunFailed(f"given up after {tries} tries without a complete round: {error or 'no reason given'}")
            if error:
                self.say(f"the job ended: {error}; going on in a new one")
            job = None

    def _state(self) -> dict[str, Any]:
        return self.folder.read(STATE)

    def _stopping(self) -> bool:
        return (self.folder.path / STOP).exists()

    def _count_deaths(self, error: str, *, complete: bool) -> list[str]:
        """Leave sites out for a while that keep ending jobs, where there are enough without them; return which."""
        lost = self.lost | {site for site in self.plan.sites if error == f"{site}: lost"}
        self.lost = set()
        self.deaths = {} if complete else self.deaths | {site: self.deaths.get(site, 0) + 1 for site in lost}
        left_out = []
        for site, times in list(self.deaths.items()):
            others = [other for other in self._awaited() if other != site]
            if times >= DEATHS and self._enough(others):
                self.say(f"{site} has ended {times} jobs; going on without it for {AGAIN / 60:.0f} minutes")
                self.left_out[site] = time.monotonic()
                del self.deaths[site]
                left_out.append(site)
        return left_out

    def _awaited(self) -> list[str]:
        """Return the sites that should take part now."""
        never = -AGAIN
        return [s for s in self.plan.sites if time.monotonic() - self.left_out.get(s, never) >= AGAIN]

    def _enough(self, sites: Sequence[str]) -> bool:
        """Tell whether a run that has begun can go on with these sites."""
        return len(sites) >= self.plan.min_sites and self.folder.path.joinpath("federation.json").exists()

    # --- One job ---

    def _submitted(self) -> str:
        """Wait for the sites and submit a job for those that are there."""
        for old in self.server.unfinished(self.plan.run):
            self.server.abort(old)
        present = self._gathered()
        job = self.server.submit(self.plan, present)
        self.folder.write(STATE, {**self._state(), "job": job, "present": list(present)})
        return job

    def _gathered(self) -> list[str]:
        """Return the sites that are there: all of them, or enough of them once patience has ended."""
        began, said = time.monotonic(), ""
        while True:
            there = self.server.sites()
            present = [site for site in self._awaited() if site in there]
            missing = ", ".join(site for site in self._awaited() if site not in there)
            patient = time.monotonic() - began < self.plan.agreement.patience_seconds
            if not missing or (self._enough(present) and not patient):
                return present
            if missing != said:
                self.say(f"waiting for: {missing}")
                said = missing
            if self._stopping():
                raise Stopped(f"stopped; go on with: {attach_command(self.folder.path)}")
            time.sleep(POLL)

    def _watch(self, job: str) -> str:
        """Follow a job until it is over; end it where a site has been lost or an absent one is back."""
        began = looked = time.monotonic()
        over = stuck = 0
        asked: dict[str, Any] = {}
        missed: dict[str, int] = {}
        """By site that has been at work on the job, or had the time to begin: looks in a row at which it was not."""
        while True:
            status = self.server.status(job)
            over = over + 1 if self.server.is_over(job, status) else 0
            if status.startswith(FINISHED) or over >= FORGOTTEN:
                return status
            stuck = stuck + 1 if status == "DISPATCHED" and self.server.began_after(job) else 0
            if stuck >= STUCK:
                self.server.abort(job)
            if self._stopping():
                asked = {"stop": True}
            progress = self.server.progress(job, {**asked, "since": self.done})
            self._mirror(progress)
            if progress and time.monotonic() - looked > LOOK_AT_SITES:  # while it begins or ends, sites come and go
                looked = time.monotonic()
                there = self.server.sites()
                if looked - began > SETTLING:
                    missed = dict.fromkeys(self._state().get("present", []), 0) | missed
                lost = self._lost(job, there, missed)
                back = self._returned(there)
                again = self._asked_again(there, progress["out"]) if looked - began > AGAIN else []
                if lost:
                    self.say(f"lost: {', '.join(lost)}")
                    self.lost |= set(lost)
                    self.server.abort(job)
                    missed.clear()
                elif (back or again) and not asked:
                    self.say(f"{', '.join(back + again)}: there; asked to take part from the next round on")
                    asked = {"stop": True}
            time.sleep(POLL)

    def _lost(self, job: str, there: dict[str, Seen], missed: dict[str, int]) -> list[str]:
        """Return the sites that should be at work on a job, and answered several times in a row that they are not."""
        for site, seen in there.items():
            if job in seen.jobs:
                missed[site] = 0
            elif site in missed:
                missed[site] += 1
        return [site for site, times in missed.items() if times >= FORGOTTEN]

    def _returned(self, there: dict[str, Seen]) -> list[str]:
        return [site for site in self._awaited() if site in there and site not in self._state().get("present", [])]

    def _asked_again(self, there: dict[str, Seen], out: list[str]) -> list[str]:
        """Return the sites that are there and could not take part when they were asked."""
        return [site for site in self._awaited() if site in there and site in out]

    # --- The folder ---

    def _mirror(self, progress: dict[str, Any] | None) -> None:
        """Write down what is new of a run, and say it."""
        if progress is None:
            return
        for name in BEGINNING:
            if name in progress["files"] and not (self.folder.path / name).exists():
                write_durably(self.folder.path / name, str(progress["files"][name]))
        lines = progress["lines"]
        try:
            said = {line["round"]: self._line(line) for line in lines}
        except (KeyError, TypeError, ValueError, AttributeError):
            raise RunFailed("the server's figures make no sense") from None
        with (self.folder.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            for line in lines[:-1]:
                file.write(json.dumps(line) + "\n")
        self.done += len(lines[:-1])
        for round, text in said.items():
            if round >= self.shown:
                self.say(text)
                self.shown = round + 1

    def _line(self, line: dict[str, Any]) -> str:
        """Say how a round went, site by site."""
        accuracy = line["trained"]["test"]["accuracy"]
        known = [a for a in accuracy if a is not None]
        mean = f"mean {sum(known) / len(known):.1%}" if known else "nobody"
        each = [
            f"{site} {'-' if a is None else format(a, '.1%')}"
            for site, a in zip(self.plan.sites, accuracy, strict=True)
        ]
        failures = [printable(str(reason)) for reason in line["failures"].values()]
        rounds = self.plan.experiment.rounds
        return "  ".join([f"round {line['round'] + 1}/{rounds}", mean, *each, f"{line['seconds']:.1f} s", *failures])


# --- Commands ---


def begin(plan: Plan, kit: Path, path: Path, say: Say) -> Result:
    """Submit a run and follow it to its end."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(not file.name.startswith(".") for file in path.iterdir()):
            raise Refusal(f"{path}: holds something already; name a new folder, or attach to it")
        write_durably(path / PLAN, plan.to_json())
        write_durably(path / STATE, json.dumps({"kit": str(kit.resolve()), "run": plan.run}))
    except OSError as error:
        raise Refusal(f"{path}: cannot be used as a folder: {error.strerror}") from None
    return attach(path, None, say)


def attach(path: Path, kit: Path | None, say: Say) -> Result:
    """Follow a run that was submitted before, to its end."""
    plan, home = planned(path), kit or kit_of(path)
    with RunFolder(path).held() as folder, Connection(home) as server:
        if folder.read("summary.json").get("state") == "finished":
            return folder.result()
        (path / STOP).unlink(missing_ok=True)
        return Supervisor(server, folder, plan, say).run()


def stop(path: Path, kit: Path | None, *, now: bool, say: Say) -> None:
    """Stop a run after its round, or at once; whoever follows it then leaves it."""
    plan, home = planned(path), kit or kit_of(path)
    (path / STOP).write_text("", "utf-8")
    with Connection(home) as server:
        silent: dict[str, int] = {}
        """By job: looks in a row at which it did not answer; one that never does has not begun, or never will."""
        while jobs := server.unfinished(plan.run):
            for job in jobs:
                answered = not now and server.progress(job, {"stop": True})
                silent[job] = 0 if answered else silent.get(job, 0) + 1
                if now or silent[job] >= STUCK:
                    server.abort(job)
            time.sleep(POLL)
    say(f"stopped; go on with: {attach_command(path)}")


def planned(path: Path) -> Plan:
    """Return the plan of a run that this coordinator submitted."""
    try:
        return Plan.from_json((path / PLAN).read_text("utf-8"))
    except OSError:
        raise Refusal(f"{path}: is not the folder of a run on sites: it has no {PLAN}") from None


def kit_of(path: Path) -> Path:
    """Return the kit that a run was submitted with."""
    return Path(RunFolder(path).read(STATE).get("kit", ""))


def attach_command(path: Path) -> str:
    """Say how to follow a run again."""
    return f"orchard deploy attach {path}"


def where_it_stands(sites: Sequence[str], there: dict[str, Seen]) -> list[tuple[str, str, str]]:
    """Return for each site whether it is connected, and how many jobs it is at work on."""
    return [
        (site, "connected" if site in there else "absent", str(len(there[site].jobs)) if site in there else "-")
        for site in sites
    ]
