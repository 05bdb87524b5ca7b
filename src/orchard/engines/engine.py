"""The interface between the run loop and an engine."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from orchard.core.contract import ClientUpdate, Diagnostics, Download, Failure, Server
from orchard.core.federation import Federation
from orchard.core.vector import Model
from orchard.data.clients import DataDistribution

Selections = Mapping[int, tuple[str, ...]]
"""By client, the vectors that it selects for the next round."""


class Engine(Protocol):
    """Carries messages between the server and its clients."""

    def quorum(self, failures: Sequence[Failure]) -> int:
        """Return how many clients must answer for a round to count in which these failed."""

    def enrol(self) -> DataDistribution:
        """Ask every client for its samples by class; only before a run's first round."""

    def start(self, federation: Federation) -> Selections:
        """Tell every client about the federation; return what each selects for the first round."""

    def prepare(self, server: Server, selected: Selections) -> None:
        """Prepare a round, before the server sends what the clients selected."""

    def exchange(self, downloads: dict[int, Download]) -> dict[int, ClientUpdate | Failure]:
        """Send each client its download, let it train, and return the updates; this empties `downloads`."""

    def diagnostics(self) -> Sequence[Diagnostics]:
        """Return the clients' private figures; nothing if clients are on other machines."""

    def models(self) -> Iterator[Model]:
        """Yield each client's model as last evaluated at the method's own moment; nothing from other machines."""

    def state(self) -> list[dict[str, Any]]:
        """Return the state of the clients in this process, for a checkpoint."""

    def restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Restore what `state` returned."""
