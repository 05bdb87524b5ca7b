"""Separate: every client trains alone, on its own data, and nothing is exchanged.

    w_i ← E epochs of momentum SGD on client i's data, every round

All start from one initial model.
"""

from typing import ClassVar, Literal

from torch import Tensor

from orchard.core.contract import Client, Server
from orchard.core.federation import Federation
from orchard.core.training import ClientContext, local_sgd
from orchard.method import MethodSettings


class Separate(MethodSettings):
    """Every client trains alone."""

    keeps: ClassVar[str] = "its model"
    withstands: ClassVar[bool] = True  # nothing of others reaches a client
    name: Literal["separate"] = "separate"

    def client(self, index: int, federation: Federation) -> "SeparateClient":
        """Make a client."""
        return SeparateClient(federation)

    def server(self, federation: Federation) -> Server:
        """Make the server, which has nothing to do."""
        return Server()


class SeparateClient(Client):
    """A model trained on the client's own data only."""

    state_keys = ("model",)

    def __init__(self, federation: Federation) -> None:
        self.model = federation.initial_model()

    def train(self, context: ClientContext, round: int) -> float:
        """Continue training."""
        self.model, loss = local_sgd(context, round, self.model)
        return loss

    def personalised(self) -> Tensor:
        """Return the client's model."""
        return self.model
