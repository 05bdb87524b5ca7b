"""FedPer: the layers of the body are averaged, those of the head stay with their client.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary, "Federated Learning with Personalization Layers", 2019,
    https://arxiv.org/abs/1912.00818

    (body_i, head_i) ← E epochs of SGD from (body, head_i);   body ← Σ_i (n_i/n)·body_i

The body is uploaded; the head never leaves the client. The head is the last layer that has parameters, or what
`private` names. If nothing is private this is FedAvg-local, if everything is, Separate.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from orchard.core.contract import Download, Vectors
from orchard.core.federation import Federation
from orchard.core.training import ClientContext
from orchard.core.vector import Part
from orchard.errors import UserError
from orchard.method import MethodSettings, Traffic
from orchard.methods.fedavg import AveragingServer, FedAvgClient


class FedPer(MethodSettings):
    """The layers of the body are averaged; each client has a head of its own."""

    travels: ClassVar[str] = "the body, each way"
    keeps: ClassVar[str] = "its head"
    name: Literal["fedper"] = "fedper"
    private: list[str] | None = Field(
        default=None, description="layers that stay with their client, by the start of their parameters' names"
    )

    def body(self, federation: Federation) -> Part:
        """Return the part of a model that travels."""
        layout = federation.layout
        try:
            head = layout.part([layout.last_layer()] if self.private is None else self.private)
        except ValueError as error:
            raise UserError(f"method.private = {self.private}: {error}") from None
        return layout.rest(head)

    def traffic(self, federation: Federation) -> Traffic:
        """Let the body travel, and nothing else."""
        length = len(self.body(federation))
        return Traffic(down={"body": length}, up={"body": length})

    def client(self, index: int, federation: Federation) -> "PartialClient":
        """Make a client."""
        return PartialClient(federation, "body", self.body(federation))

    def server(self, federation: Federation) -> AveragingServer:
        """Make the server, which averages bodies."""
        return AveragingServer(federation, "body", self.body(federation))


class PartialClient(FedAvgClient):
    """A model of which one part is shared, as FedAvg's model is, and the rest is private."""

    def __init__(self, federation: Federation, name: str, shared: Part) -> None:
        super().__init__(federation)
        self.name, self.shared = name, shared

    def select(self, round: int) -> Sequence[str]:
        """Ask for the shared part."""
        return (self.name,)

    def receive(self, context: ClientContext, download: Download) -> None:
        """Take the shared part over."""
        self.model = self.shared.replaced(self.model, download.vectors[self.name])

    def upload(self) -> Vectors:
        """Return the shared part."""
        return {self.name: self.shared.of(self.model)}
