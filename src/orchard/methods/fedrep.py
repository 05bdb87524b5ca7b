"""FedRep: each client has a head of its own, and trains first the head, then the body that all share.

L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai, "Exploiting Shared Representations for Personalized Federated
    Learning", ICML 2021, https://arxiv.org/abs/2102.07078

    head_i ← E_h epochs of SGD on ∇F_i(body, ·) from head_i        the body is fixed
    body_i ← E_b epochs of SGD on ∇F_i(·, head_i) from body        the head is fixed
    body   ← Σ_i (n_i/n)·body_i

E_h = E and E_b = 1, so that a round has one epoch more than other methods'. Epochs are numbered through: the body sees
the batches of the epochs that follow. Each phase has a fresh momentum. BatchNorm statistics follow the batches of both.

The body is uploaded; the head never leaves the client. As in FedPer the head is the last layer that has parameters, or
what `private` names.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from orchard.core.federation import Federation
from orchard.core.training import ClientContext, fixed, local_sgd
from orchard.experiment import Experiment
from orchard.method import Queries
from orchard.methods.fedper import PartialClient, PrivateLayers


class FedRep(PrivateLayers):
    """FedPer, but a client trains its head with the body fixed, then the body with its head fixed."""

    travels: ClassVar[str] = "the body, each way"
    keeps: ClassVar[str] = "its head"
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"body_epochs": (1, 5)}
    name: Literal["fedrep"] = "fedrep"
    head_epochs: int | None = Field(default=None, ge=0, description="E_h; none: as many as local epochs")
    body_epochs: int = Field(default=1, ge=0, description="E_b")

    def check(self, experiment: Experiment) -> None:
        """Raise if nothing is trained."""
        if self.head_epochs == self.body_epochs == 0:
            raise ValueError("head_epochs = 0: with body_epochs = 0 nothing would be trained")

    def queries(self, experiment: Experiment, samples: int, round: int) -> Queries:
        """Count the epochs of head and body."""
        if round == experiment.rounds:
            return Queries(0)
        head, body = experiment.batches(samples, self.head_epochs), experiment.batches(samples, self.body_epochs)
        return Queries(head + body)

    def client(self, index: int, federation: Federation) -> "FedRepClient":
        """Make a client."""
        return FedRepClient(self, federation)


class FedRepClient(PartialClient):
    """A shared body and a private head, trained in turn."""

    def __init__(self, settings: FedRep, federation: Federation) -> None:
        super().__init__(federation, settings.part, settings.shared(federation))
        self.private = federation.layout.rest(self.shared)
        self.head_epochs = federation.experiment.epochs if settings.head_epochs is None else settings.head_epochs
        self.body_epochs = settings.body_epochs

    def train(self, context: ClientContext, round: int) -> float:
        """Train the head, then the body."""
        e_h, e_b = self.head_epochs, self.body_epochs
        model, head_loss = local_sgd(context, round, self.model, epochs=e_h, correction=fixed(self.shared))
        self.model, body_loss = local_sgd(
            context, round, model, epochs=e_b, first_epoch=e_h, correction=fixed(self.private)
        )
        return (e_h * head_loss + e_b * body_loss) / (e_h + e_b)
