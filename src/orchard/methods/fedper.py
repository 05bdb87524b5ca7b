"""FedPer and LG-FedAvg: some layers are averaged, the others stay with their client.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary, "Federated Learning with Personalization Layers", 2019,
    https://arxiv.org/abs/1912.00818
P. P. Liang, T. Liu, L. Ziyin, N. B. Allen, R. P. Auerbach, D. Brent, R. Salakhutdinov, L.-P. Morency, "Think Locally,
    Act Globally: Federated Learning with Local and Global Representations", 2020, https://arxiv.org/abs/2001.01523

    FedPer      (body_i, head_i) ← E epochs of SGD from (body, head_i);   body ← Σ_i (n_i/n)·body_i
    LG-FedAvg   (body_i, head_i) ← E epochs of SGD from (body_i, head);   head ← Σ_i (n_i/n)·head_i

What is averaged is uploaded; the other part never leaves the client. The head is the last layer that has parameters.
`private` names other layers that stay, with which both are the same method. If nothing is private this is FedAvg-local,
if everything is, Separate.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from orchard.core.contract import Download, Vectors
from orchard.core.federation import Federation
from orchard.core.training import ClientContext
from orchard.core.vector import Layout, Part
from orchard.errors import UserError
from orchard.method import MethodSettings, Traffic
from orchard.methods.fedavg import AveragingServer, FedAvgClient


class Partial(MethodSettings):
    """What the family shares: one part of the model is averaged, the rest stays with its client."""

    withstands: ClassVar[bool] = True
    part: ClassVar[str] = "body"
    """What messages call the part that travels."""

    def shared(self, federation: Federation) -> Part:
        """Return the part that travels."""
        raise NotImplementedError(f"{type(self).__name__} has no method shared(federation)")

    def traffic(self, federation: Federation) -> Traffic:
        """Let the shared part travel, and nothing else."""
        length = len(self.shared(federation))
        return Traffic(down={self.part: length}, up={self.part: length})

    def client(self, index: int, federation: Federation) -> "PartialClient":
        """Make a client."""
        return PartialClient(federation, self.part, self.shared(federation))

    def server(self, federation: Federation) -> AveragingServer:
        """Make the server, which averages the shared part."""
        return AveragingServer(federation, self.part, self.shared(federation))


class PrivateLayers(Partial):
    """Layers are private that are named, or by default the head."""

    private: list[str] | None = Field(
        default=None, description="layers that stay with their client, by the start of their parameters' names"
    )

    def shared(self, federation: Federation) -> Part:
        """Return the parameters of all other layers."""
        layout = federation.layout
        if self.private is None:
            return layout.rest(self.private_by_default(layout))
        try:
            return layout.rest(layout.part(self.private))
        except ValueError as error:
            raise UserError(f"method.private = {self.private}: {error}") from None

    def private_by_default(self, layout: Layout) -> Part:
        """Return the head."""
        return layout.part([layout.last_layer()])


class FedPer(PrivateLayers):
    """The layers of the body are averaged; each client has a head of its own."""

    travels: ClassVar[str] = "the body, each way"
    keeps: ClassVar[str] = "its head"
    name: Literal["fedper"] = "fedper"


class LGFedAvg(PrivateLayers):
    """The head is averaged; each client has a body of its own."""

    part: ClassVar[str] = "head"
    travels: ClassVar[str] = "the head, each way"
    keeps: ClassVar[str] = "its body"
    name: Literal["lg-fedavg"] = "lg-fedavg"

    def private_by_default(self, layout: Layout) -> Part:
        """Return the body."""
        return layout.rest(super().private_by_default(layout))


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
