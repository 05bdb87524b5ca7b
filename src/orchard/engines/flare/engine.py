"""The server's side: an engine whose clients are sites, each reached by one message at a time."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from orchard.contract import Answer, Enrolment, Failure, Federation, Notes, Reply
from orchard.engines.flare.messages import (
    Bounds,
    Message,
    Refused,
    category,
    pack_reply,
    unpack_answer,
    unpack_enrolment,
)
from orchard.errors import RunFailed
from orchard.plan import Plan

Carry = Callable[[Mapping[str, Message]], Mapping[str, Message | str]]
"""Takes a message to each of some sites and brings back theirs, or a word on why there is none."""

Counts = dict[str, list[int]]
T = TypeVar("T")


class FlareEngine:
    """Carries the messages of a federation whose clients are the sites of a plan, some of which may be absent."""

    def __init__(self, plan: Plan, present: Iterable[str], carry: Carry) -> None:
        self.plan, self.carry = plan, carry
        self.present = [site for site in plan.sites if site in set(present)]
        self.reasons = {site: "absent" for site in plan.sites if site not in self.present}
        """Why sites do not take part."""
        self.enrolled: dict[str, tuple[Enrolment, Counts]] = {}

    def enrol(self) -> Sequence[Enrolment]:
        """Ask every site what it brings; before the first round nobody may be missing."""
        self.call_up()
        self.refuse_fewer_than(len(self.plan.sites))
        return [self.enrolled[site][0] for site in self.plan.sites]

    def call_up(self) -> None:
        """Tell the sites that are there what is planned; keep what they say of themselves."""
        told = {"what": "enrol", "plan": self.plan.to_json()}
        self.enrolled = self._told(told, lambda answer: unpack_enrolment(answer, len(self.plan.agreement.classes)))

    def start(self, federation: Federation) -> dict[int, tuple[int, ...]]:
        """Tell every site what the federation is; return what each wants in the first round."""
        self.bounds = Bounds.of(federation, self.plan.agreement.norm_bound)
        told = {"what": "start", "samples": list(federation.samples), "shape": list(federation.shape)}
        answers = self._told(told, lambda answer: unpack_answer(answer, 0, federation.clients, self.bounds))
        return {self.plan.sites.index(site): answer.wants for site, answer in answers.items()}

    def _told(self, message: Message, unpack: Callable[[Message], T]) -> dict[str, T]:
        """Tell all who are there the same; who does not answer well does not take part."""
        found: dict[str, T] = {}
        for site, answer in self._ask(dict.fromkeys(self.present, message)).items():
            try:
                if isinstance(answer, Refused):
                    raise answer
                found[site] = _unpacked(answer, unpack)
            except Refused as refused:
                self.reasons[site] = str(refused)
        self.present = [site for site in self.present if site in found]
        return found

    def refuse_fewer_than(self, sites: int) -> None:
        """Stop where too few take part, and say why those do not."""
        if len(self.present) < sites:
            reasons = ", ".join(f"{site} ({reason})" for site, reason in self.reasons.items())
            raise RunFailed(f"{len(self.present)} sites take part, {sites} are needed; not there: {reasons}")

    def exchange(self, replies: Mapping[int, Reply]) -> dict[int, Answer | Failure]:
        """Send each site its reply; a site without a good answer has failed this round, and the others go on."""
        answers = self._ask(self._requests(replies))
        sites = {i: self.plan.sites[i] for i in replies}
        # A message goes as its vector comes: both of all sites would be twice the memory.
        return {i: self._answer(site, replies[i].round, answers.pop(site, None)) for i, site in sites.items()}

    def _requests(self, replies: Mapping[int, Reply]) -> dict[str, Message]:
        contents: dict[int, bytes] = {}
        present = {self.plan.sites[i]: reply for i, reply in replies.items() if self.plan.sites[i] in self.present}
        return {site: {"what": "turn", **pack_reply(reply, contents)} for site, reply in present.items()}

    def _answer(self, site: str, round: int, answer: "Message | Refused | None") -> Answer | Failure:
        place = f"{site}, round {round}"
        if answer is None:
            return Failure(f"{place}: {self.reasons[site]}")
        if isinstance(answer, Refused):
            return Failure(f"{place}: {answer}")
        try:
            return _unpacked(answer, lambda answer: unpack_answer(answer, round, len(self.plan.sites), self.bounds))
        except Refused as refused:
            return Failure(f"{place}: refused: {refused}")

    def notes(self) -> Sequence[Notes]:
        """Sites keep their private figures."""
        return []

    def _ask(self, requests: Mapping[str, Message]) -> dict[str, "Message | Refused"]:
        """Carry requests; an answer in another's name counts for nothing."""
        found: dict[str, Message | Refused] = {}
        for site, answer in self.carry(requests).items():
            if isinstance(answer, str):
                found[site] = Refused(answer)
            elif not isinstance(answer, Mapping) or not isinstance(answer.get("site"), str) or answer["site"] != site:
                found[site] = Refused("refused: wrong sender")
            elif "failure" in answer:
                found[site] = Refused(category(answer["failure"]))
            else:
                found[site] = answer
        return found


def _unpacked(answer: Message, unpack: Callable[[Message], T]) -> T:
    """Check and return an answer; whatever a site puts into it, it harms that site's answer alone."""
    try:
        return unpack(answer)
    except Refused:
        raise
    except Exception as error:
        raise Refused("malformed") from error
