"""An engine carries messages between server and clients, and knows nothing of methods."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from orchard.contract import Answer, Enrolment, Failure, Federation, Notes, Reply


class Engine(Protocol):
    """How the round loop reaches the clients, wherever they are."""

    def enrol(self) -> Sequence[Enrolment]:
        """Ask every client what it brings."""

    def start(self, federation: Federation) -> dict[int, tuple[int, ...]]:
        """Tell every client what the federation is; return what each wants in the first round."""

    def exchange(self, replies: Mapping[int, Reply]) -> dict[int, Answer | Failure]:
        """Send each client its reply, let it take its turn, bring back the answers."""

    def notes(self) -> Sequence[Notes]:
        """Look at the clients' private figures; empty where clients are not in this process."""
