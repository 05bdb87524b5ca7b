"""Separate: every client trains alone, on its own data, and nothing is exchanged.

w_i ← E epochs of momentum SGD on client i's data, every round, from one initial model for all
"""

from typing import Literal

from torch import Tensor

from orchard.contract import Client, Federation, Server
from orchard.experiment import MethodSettings
from orchard.training import Site, descend


class Separate(MethodSettings):
    """Separate training has no parameters."""

    name: Literal["separate"] = "separate"

    def client(self, index: int, federation: Federation) -> "SeparateClient":
        """Make the client half."""
        return SeparateClient(federation)

    def server(self, federation: Federation) -> Server:
        """Make the server half, which has nothing to do."""
        return Server()


class SeparateClient(Client):
    """A model of one's own."""

    keeps = ("model",)

    def __init__(self, federation: Federation) -> None:
        self.model = federation.initial_model()

    def train(self, site: Site, round: int) -> float:
        """Train on."""
        self.model, loss = descend(site, round, self.model)
        return loss

    def personalised(self) -> Tensor:
        """Return the own model."""
        return self.model
