"""The coordinator's side of a run: submit it, follow it, and submit it again if FLARE gives it up.

FLARE ends a job when a site's process dies, and lets no site rejoin a running job. Only the current round is lost:
server and sites continue from their own records in a new job. The coordinator's folder is an ordinary run folder
without models and relationships.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orchard.errors import RunFailed, Stopped
from orchard.runs.files import to_json
from orchard.runs.folder import RunFolder
from orchard.runs.result import Result
from orchard.sites.connection import FINISHED, UNKNOWN, Connection, SiteStatus, printable
from orchard.sites.job import HEADER
from orchard.sites.members import NOT_ACCEPTED
from orchard.sites.plan import Plan
from orchard.sites.waiting import SLOW, Waiting
from orchard.whole import write_durably

Say = Callable[[str], None]

STATE = "deploy.json"
STOP = "stop"
POLL = 1.0
SITE_POLL = 3.0
"""Seconds between checks of which sites are connected."""
START_SECONDS = 30.0
"""Seconds that a site has to start a job."""
MISSES_UNTIL_OVER = 3
"""A job is over at a party after this many checks in a row in which the party does not know it any more."""
LOOKS_UNTIL_STUCK = 60
"""A restarted server never starts a job that it has not started after this many checks in a row."""
TRIES = 5
"""The run fails after this many jobs in a row without a complete round."""
DEATHS_UNTIL_LEFT_OUT = 3
"""The run continues without a site whose death has ended this many of these jobs."""
CONSENT_SECONDS = 30.0
"""Seconds until sites that did not agree to a new member are asked again."""
RETRY_SECONDS = 600.0
"""Seconds after which a site that could not take part, or kept dying, is invited again."""


class Supervisor:
    """Follows one run; this process holds the lock on `folder`."""

    def __init__(self, server: Connection, folder: RunFolder, plan: Plan, say: Say) -> None:
        self.server, self.folder, self.plan, self.say = server, folder, plan, say
        self.done = len(folder.rounds())
        """Rounds whose metrics are complete."""
        self.shown = self.done
        self.lost: set[str] = set()
        """Sites whose loss ended the current job."""
        self.deaths: dict[str, int] = {}
        """How many jobs each site's death has ended since the last complete round."""
        self.left_out: dict[str, float] = {}
        """When each unstable site was left out, by site."""
        self.waiting = Waiting(say, folder.note_waiting)
        self.consent = Waiting(say, folder.note_waiting)
        self.usual = 0.0
        """How many seconds the last round took."""
        self.behind = False
        """Whether the server has lost rounds that are complete here."""

    def run(self) -> Result:
        """Follow the run to its end."""
        job, tries = self._state().get("job"), 0
        while True:
            before = self.done
            if job is None:
                job = self._submitted()
            status = self._watch(job)
            error = "the server was started anew"
            if status == UNKNOWN:
                error = "the server does not know it any more"
            elif status.startswith(FINISHED):
                error = self.server.fetch(job, self.folder.path)
            rounds = self.folder.rounds()
            self.done = len(rounds)
            self._show(json.loads(to_json([entry.as_json() for entry in rounds])))
            if self.folder.read("summary.json").get("state") == "finished":
                return self.folder.result()
            if self._stopping():
                raise Stopped(f"stopped after round {self.done + 1}; go on with: {attach_command(self.folder.path)}")
            if NOT_ACCEPTED in error:
                self._wait_for_consent(error)
                job, tries = None, 0
                continue
            left_out = self._count_deaths(error, complete=self.done > before)
            tries = 0 if self.done > before or left_out else tries + 1
            if tries >= TRIES:
                raise RunFailed(f"given up after {tries} tries without a complete round: {error or 'no reason given'}")
            if error:
                self.say(f"the job ended: {error}; going on in a new one")
            job = None

    def _wait_for_consent(self, error: str) -> None:
        """Give sites a while to agree to a new member; only a new job can tell whether they have."""
        asked = ", ".join(site for site in self.plan.sites if f"{site} ({NOT_ACCEPTED})" in error)
        until = time.monotonic() + CONSENT_SECONDS
        while time.monotonic() < until and not self._stopping():
            self.consent.on(f"the consent of {asked} to a new member (orchard site accept, at each of them)")
            time.sleep(POLL)

    def _state(self) -> dict[str, Any]:
        return self.folder.read(STATE)

    def _stopping(self) -> bool:
        return (self.folder.path / STOP).exists()

    def _count_deaths(self, error: str, *, complete: bool) -> list[str]:
        """Leave out, for a while, the sites that keep ending jobs, if there are enough others; return them."""
        lost = self.lost | {site for site in self.plan.sites if error == f"{site}: lost"}
        self.lost = set()
        self.deaths = {} if complete else self.deaths | {site: self.deaths.get(site, 0) + 1 for site in lost}
        left_out = []
        for site, times in list(self.deaths.items()):
            others = [other for other in self._awaited() if other != site]
            if times >= DEATHS_UNTIL_LEFT_OUT and self._enough(others):
                self.say(f"{site} has ended {times} jobs; going on without it for {RETRY_SECONDS / 60:.0f} minutes")
                self.left_out[site] = time.monotonic()
                del self.deaths[site]
                left_out.append(site)
        return left_out

    def _awaited(self) -> list[str]:
        """Return the sites that should take part now."""
        never = -RETRY_SECONDS
        return [s for s in self.plan.sites if time.monotonic() - self.left_out.get(s, never) >= RETRY_SECONDS]

    def _enough(self, sites: Sequence[str]) -> bool:
        """Tell whether a run that has begun can continue with these sites."""
        return len(sites) >= self.plan.min_sites and self._has_begun()

    def _has_begun(self) -> bool:
        return (self.folder.path / "federation.json").exists()

    # --- One job ---

    def _submitted(self) -> str:
        """Wait for the sites, then submit a job for those that are connected; return its id."""
        for old in self.server.unfinished(self.plan.run):
            self.server.abort(old)
        present = self._gathered()
        job = self.server.submit(self.plan, present)
        self.say(f"submitted, for {', '.join(present)}; a job takes up to half a minute to begin")
        self.folder.write(STATE, {**self._state(), "job": job, "present": list(present)})
        return job

    def _gathered(self) -> list[str]:
        """Wait for all sites, or for enough of them once `patience_seconds` have passed; return the connected ones."""
        began, patience = time.monotonic(), self.plan.agreement.patience_seconds
        while True:
            there = self.server.sites()
            present = [site for site in self._awaited() if site in there]
            missing = ", ".join(site for site in self._awaited() if site not in there)
            enough = self._enough(present)
            if not missing or (enough and time.monotonic() - began >= patience):
                self.waiting.over()
                return present
            self.waiting.on(f"{missing} ({self._why_needed(enough)})", patience if enough else None)
            if self._stopping():
                raise Stopped(f"stopped; go on with: {attach_command(self.folder.path)}")
            time.sleep(POLL)

    def _why_needed(self, enough: bool) -> str:
        if enough:
            return "absent; then the rounds go on without"
        if not self._has_begun():
            return "absent; the first round needs all sites"
        return f"absent; a round needs {self.plan.min_sites} of {len(self.plan.sites)} sites"

    def _watch(self, job: str) -> str:
        """Follow a job until it is over and return its status; end it if a site was lost or an absent one is back."""
        began = looked = time.monotonic()
        over = stuck = 0
        asked: dict[str, Any] = {}
        missed: dict[str, int] = {}
        """By site that has run the job, or had time to start it: checks in a row in which it did not run it."""
        while True:
            status = self.server.status(job)
            over = over + 1 if self.server.is_over(job, status) else 0
            if status.startswith(FINISHED) or over >= MISSES_UNTIL_OVER:
                self.waiting.over()
                return status
            stuck = stuck + 1 if status == "DISPATCHED" and self.server.began_after(job) else 0
            if stuck >= LOOKS_UNTIL_STUCK:
                self.server.abort(job)
            if self._stopping():
                asked = {"stop": True}
            progress = self.server.progress(job, {**asked, "since": self.done})
            self._mirror(progress)
            self._say_what_lasts(progress)
            if progress and time.monotonic() - looked > SITE_POLL:  # sites come and go while a job starts or ends
                looked = time.monotonic()
                there = self.server.sites()
                if looked - began > START_SECONDS:
                    missed = dict.fromkeys(self._state().get("present", []), 0) | missed
                lost = self._lost(job, there, missed)
                back = self._returned(there)
                again = self._asked_again(there, progress["out"]) if looked - began > RETRY_SECONDS else []
                if lost:
                    self.say(f"lost: {', '.join(lost)}")
                    self.lost |= set(lost)
                    self.server.abort(job)
                    missed.clear()
                elif (back or again) and not asked:
                    self.say(f"{', '.join(back + again)}: there; asked to take part from the next round on")
                    asked = {"stop": True}
            time.sleep(POLL)

    def _say_what_lasts(self, progress: dict[str, Any] | None) -> None:
        """Say which sites take long over a round, or that the job takes long to begin or to end."""
        if progress is None:
            self.waiting.on("the server, whose job does not answer: it begins, or ends", after=SLOW)
            return
        late = ", ".join(site for site in self.plan.sites if site in progress.get("waiting", []))
        if late:
            at = f"round {self.done + 1}" if self._has_begun() else "the beginning"
            self.waiting.on(f"{late} ({at})", self.plan.agreement.round_seconds, max(SLOW, 3 * self.usual))
        else:
            self.waiting.over()

    def _lost(self, job: str, there: dict[str, SiteStatus], missed: dict[str, int]) -> list[str]:
        """Return the sites that should run a job but answered several times in a row that they do not."""
        for site, seen in there.items():
            if job in seen.jobs:
                missed[site] = 0
            elif site in missed:
                missed[site] += 1
        return [site for site, times in missed.items() if times >= MISSES_UNTIL_OVER]

    def _returned(self, there: dict[str, SiteStatus]) -> list[str]:
        return [site for site in self._awaited() if site in there and site not in self._state().get("present", [])]

    def _asked_again(self, there: dict[str, SiteStatus], out: list[str]) -> list[str]:
        """Return the connected sites that could not take part when they were invited."""
        return [site for site in self._awaited() if site in there and site in out]

    # --- The folder ---

    def _mirror(self, progress: dict[str, Any] | None) -> None:
        """Write new files and metrics of the run into the folder, and report new rounds."""
        if progress is None:
            return
        for name in HEADER:
            if name in progress["files"] and not (self.folder.path / name).exists():
                write_durably(self.folder.path / name, str(progress["files"][name]))
        if progress.get("rounds"):
            self.consent.over()
        self._compare(progress.get("rounds"))
        lines = progress["lines"]
        self._show(lines)
        with (self.folder.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            for line in lines[:-1]:
                file.write(json.dumps(line) + "\n")
        self.done += len(lines[:-1])

    def _show(self, lines: list[dict[str, Any]]) -> None:
        """Say what the rounds have brought that were not shown yet; the last ones come with a job's results."""
        try:
            said = {line["round"]: text for line in lines if (text := self._line(line))}
            self.usual = float(lines[-1]["seconds"]) if lines else self.usual
        except (KeyError, TypeError, ValueError, AttributeError):
            raise RunFailed("the server's figures make no sense") from None
        for round, text in said.items():
            if round >= self.shown:
                self.say(text)
                self.shown = round + 1

    def _compare(self, rounds: object) -> None:
        """Say so if the server has fewer rounds than this folder: it was restored from a backup."""
        before, self.behind = self.behind, isinstance(rounds, int) and 0 < rounds <= self.done
        if self.behind and not before:
            self.say(f"the server was restored: it is at round {rounds} again, and sites repeat what they answered")

    def _line(self, line: dict[str, Any]) -> str:
        """Return a line about a round: the mean score, each site's score, and failures.

        It is empty as long as the method's own evaluation is to come, which for some is in the next exchange.
        """
        task, moment = self.plan.task, self.plan.experiment.method.moment
        score, measured = task.measures[task.score], line["after_training"]
        if moment != "after_training":
            measured = line.get(moment, {"measured": []})
            if not any(measured.get("measured", [True])):
                return ""
        values = measured.get("test", {}).get(task.score, [None] * len(self.plan.sites))
        known = [value for value in values if value is not None]
        mean = f"mean {score.text(sum(known) / len(known))}" if known else "nobody"
        each = [f"{site} {score.text(value)}" for site, value in zip(self.plan.sites, values, strict=True)]
        failures = [printable(str(reason)) for reason in line["failures"].values()]
        rounds = self.plan.experiment.rounds
        return "  ".join([f"round {line['round'] + 1}/{rounds}", mean, *each, f"{line['seconds']:.1f} s", *failures])


def attach_command(path: Path) -> str:
    """Return the command that follows a run again."""
    return f"orchard deploy attach {path}"
