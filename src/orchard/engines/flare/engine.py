"""The server's side: an engine whose clients are sites, each reached by one message at a time."""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from orchard import __version__
from orchard.core.contract import ClientUpdate, Diagnostics, Download, Failure, Server
from orchard.core.federation import Federation
from orchard.core.vector import Model
from orchard.data.clients import DataDistribution
from orchard.data.statistics import Statistics
from orchard.data.tables.scaling import merge
from orchard.engines.engine import Selections
from orchard.engines.flare.messages import (
    DATA_PARTS,
    Bounds,
    Enrolment,
    Message,
    MessageRejected,
    category,
    pack_download,
    unpack_enrolment,
    unpack_statistics,
    unpack_update,
    version_of,
)
from orchard.engines.memory import return_freed_memory
from orchard.engines.scale import Scale
from orchard.errors import RunFailed
from orchard.tasks.task import Task

Carry = Callable[[Mapping[str, Message]], Mapping[str, Message | str]]
"""Sends messages to sites; returns each site's answer, or the reason why there is none."""

T = TypeVar("T")


@dataclass(frozen=True)
class Invitation:
    """What sites are told at enrolment, and the limits that the server enforces."""

    plan: str
    """As the coordinator signed it."""
    sites: Sequence[str]
    task: Task
    min_sites: int
    norm_bound: float
    scale_bound: float
    samples: Mapping[str, int] | None = None
    """Each site's training samples, if they are agreed."""
    numbers: int = 0
    """How many columns of a table sites standardise together."""
    counted: bool = True
    """Whether sites tell how many samples hold each class; under privacy they do not."""


class FlareEngine:
    """Carries the messages of a federation whose clients are sites, some of which may be absent."""

    def __init__(self, invitation: Invitation, present: Iterable[str], carry: Carry) -> None:
        self.invitation, self.carry = invitation, carry
        self.sites = list(invitation.sites)
        self.present = [site for site in self.sites if site in set(present)]
        self.reasons = {site: "absent" for site in self.sites if site not in self.present}
        """Why sites do not take part, by site."""
        self.enrolled: dict[str, Enrolment] = {}

    def enrol(self) -> DataDistribution:
        """Ask every site for its samples by class; before the first round all sites must answer."""
        self._enrol_present()
        self._need(len(self.sites))
        shapes = {enrolment.shape for enrolment in self.enrolled.values()}
        if len(shapes) > 1:
            raise RunFailed(f"sites differ in the shape of samples: {sorted(shapes)}")
        self._check_samples()
        known, task = [self.enrolled[site] for site in self.sites], self.invitation.task
        numbers = [enrolment.numbers for enrolment in known if enrolment.numbers]
        return DataDistribution(
            clients=self.sites,
            classes=list(task.classes),
            shape=list(shapes.pop()),
            samples={part: [enrolment.samples[part] for enrolment in known] for part in DATA_PARTS},
            counts={part: [enrolment.counts[part] for enrolment in known] for part in DATA_PARTS},
            task=task.name,
            scale=task.agreed([enrolment.moments for enrolment in known]).scale(),
            moments=merge(numbers).model_dump(mode="json") if numbers else None,
        )

    def _check_samples(self) -> None:
        """Raise if a site claims other numbers of samples than agreed, or more than all others without agreement."""
        claims = {site: self.enrolled[site].samples["train"] for site in self.sites}
        agreed = self.invitation.samples
        for site, claim in claims.items():
            if agreed is not None and claim != agreed[site]:
                raise RunFailed(f"{site} claims {claim} training samples; agreed in [deploy] samples: {agreed[site]}")
            if agreed is None and len(claims) > 2 and 2 * claim > sum(claims.values()):
                said = ", ".join(f"{name} = {n}" for name, n in claims.items())
                advice = f"if that is so, agree on it: [deploy] samples = {{{said}}}"
                raise RunFailed(f"{site} claims {claim} training samples, more than all others together; {advice}")

    def _enrol_present(self) -> None:
        """Send the plan to the sites that are present; keep their enrolments."""
        message = {"what": "enrol", "plan": self.invitation.plan, "orchard": __version__}
        self.enrolled = self._tell(message, self._enrolment)

    def _enrolment(self, answer: Message) -> Enrolment:
        if version_of(answer) != __version__:
            raise MessageRejected(_mismatch(answer))
        told = self.invitation
        return unpack_enrolment(answer, told.task, told.numbers, counted=told.counted)

    def statistics(self) -> dict[str, Statistics]:
        """Ask every site for figures about its data; `reasons` says why others told nothing."""
        message = {"what": "statistics", "plan": self.invitation.plan, "orchard": __version__}
        return self._tell(message, self._told)

    def _told(self, answer: Message) -> Statistics:
        if version_of(answer) != __version__:
            raise MessageRejected(_mismatch(answer))
        return unpack_statistics(answer, self.invitation.task)

    def start(self, federation: Federation) -> Selections:
        """Tell every site about the federation; return what each selects for the first round.

        A resumed run has not enrolled its sites yet, and needs only `min_sites` of them.
        """
        needed = len(self.sites) if self.enrolled else self.invitation.min_sites
        if not self.enrolled:
            self._enrol_present()
        self.bounds = Bounds.of(federation, self.invitation.norm_bound)
        self.scale = Scale(federation, self.invitation.scale_bound, self.sites)
        self.rounds = federation.experiment.rounds
        message = {
            "what": "start",
            "samples": list(federation.samples),
            "shape": list(federation.shape),
            "scale": federation.task.scale(),
            "numbers": federation.moments and federation.moments.model_dump(mode="json"),
        }
        updates = self._tell(message, lambda answer: unpack_update(answer, 0, self.bounds, trained=False))
        self._need(needed)
        return {self.sites.index(site): update.selected for site, update in updates.items()}

    def prepare(self, server: Server, selected: Selections) -> None:
        """Free the memory of the last round's messages, which are large and in reference cycles."""
        gc.collect()
        return_freed_memory()

    def exchange(self, downloads: dict[int, Download]) -> dict[int, ClientUpdate | Failure]:
        """Send each site its download; a site without a valid answer fails this round, the others continue."""
        rounds = {i: download.round for i, download in downloads.items()}
        sent = {i: download.vectors for i, download in downloads.items()}
        requests = self._requests(downloads)
        downloads.clear()
        answers = self._ask(requests)
        # Each message is dropped once it is unpacked: messages and vectors of all sites would take twice the memory.
        updates = {i: self._update(self.sites[i], r, answers.pop(self.sites[i], None)) for i, r in rounds.items()}
        return self.scale.checked(max(rounds.values(), default=0), sent, updates)

    def quorum(self, failures: Sequence[Failure]) -> int:
        """Return as many sites as agreed, however others failed."""
        return self.invitation.min_sites

    def diagnostics(self) -> Sequence[Diagnostics]:
        """Return nothing: sites keep their private figures."""
        return []

    def models(self) -> Iterator[Model]:
        """Yield nothing: sites keep their models."""
        return iter(())

    def state(self) -> list[dict[str, Any]]:
        """Return what uploads are compared with; of the sites nothing, they have records of their own."""
        return [self.scale.state()]

    def restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Take over what uploads are compared with; sites restore themselves."""
        for state in states:
            self.scale.restore(state)

    # --- Messages ---

    def _tell(self, message: Message, unpack: Callable[[Message], T]) -> dict[str, T]:
        """Send the same message to all present sites; those without a valid answer do not take part."""
        found: dict[str, T] = {}
        for site, answer in self._ask(dict.fromkeys(self.present, message)).items():
            try:
                if isinstance(answer, MessageRejected):
                    raise answer
                found[site] = _unpacked(answer, unpack)
            except MessageRejected as rejected:
                self.reasons[site] = str(rejected)
        self.present = [site for site in self.present if site in found]
        return found

    def _need(self, sites: int) -> None:
        """Raise if too few sites take part, with the reasons why the others do not."""
        if len(self.present) < sites:
            reasons = ", ".join(f"{site} ({reason})" for site, reason in self.reasons.items())
            raise RunFailed(f"{len(self.present)} sites take part, {sites} are needed; not there: {reasons}")

    def _requests(self, downloads: Mapping[int, Download]) -> dict[str, Message]:
        contents: dict[int, bytes] = {}
        present = {self.sites[i]: download for i, download in downloads.items() if self.sites[i] in self.present}
        return {site: {"what": "round", **pack_download(download, contents)} for site, download in present.items()}

    def _update(self, site: str, round: int, answer: Message | MessageRejected | None) -> ClientUpdate | Failure:
        if answer is None:
            return Failure(site, round, self.reasons[site])
        if isinstance(answer, MessageRejected):
            return Failure(site, round, str(answer))
        try:
            trained = round < self.rounds
            return _unpacked(answer, lambda answer: unpack_update(answer, round, self.bounds, trained=trained))
        except MessageRejected as rejected:
            return Failure(site, round, f"rejected: {rejected}")

    def _ask(self, requests: Mapping[str, Message]) -> dict[str, Message | MessageRejected]:
        """Send requests and return the answers; reject an answer in another site's name."""
        found: dict[str, Message | MessageRejected] = {}
        for site, answer in self.carry(requests).items():
            if isinstance(answer, str):
                found[site] = MessageRejected(answer)
            elif not isinstance(answer, Mapping) or not isinstance(answer.get("site"), str) or answer["site"] != site:
                found[site] = MessageRejected("rejected: wrong sender")
            elif "failure" in answer:
                other = "orchard" in answer and version_of(answer) != __version__
                found[site] = MessageRejected(_mismatch(answer) if other else category(answer["failure"]))
            else:
                found[site] = answer
        return found


def _mismatch(answer: Message) -> str:
    return f"runs Orchard {version_of(answer)}, the server {__version__}: install the same everywhere"


def _unpacked(answer: Message, unpack: Callable[[Message], T]) -> T:
    """Check and return an answer; any error in it rejects only this site's answer."""
    try:
        return unpack(answer)
    except MessageRejected:
        raise
    except Exception as error:
        raise MessageRejected("malformed") from error
