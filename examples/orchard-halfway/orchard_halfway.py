"""Halfway: each round a client starts between its own model and the average of all.

    start_i = keep·w_i + (1 − keep)·w,   w = Σ (n_i/n)·w_i

An example of a method in one file: its parameters, a client half and a server half. The server half is FedAvg's.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from orchard.contract import Client, Federation, Reply
from orchard.experiment import MethodSettings
from orchard.methods.fedavg import GLOBAL, AveragingServer
from orchard.training import Site, descend


class Halfway(MethodSettings):
    """The parameters, checked before anything runs, and how the two halves are made from them."""

    name: Literal["halfway"] = "halfway"
    keep: float = Field(default=0.5, ge=0, le=1, description="how much of its own model a client keeps")

    def client(self, index: int, federation: Federation) -> "HalfwayClient":
        """Make the client half."""
        return HalfwayClient(self, federation)

    def server(self, federation: Federation) -> AveragingServer:
        """Make the server half."""
        return AveragingServer(federation)


class HalfwayClient(Client):
    """Lives with the data: chooses what to download, trains, says what it would use and what it uploads."""

    keeps = ("model",)

    def __init__(self, settings: Halfway, federation: Federation) -> None:
        self.keep = settings.keep
        self.model = federation.initial_model()

    def wants(self, round: int) -> tuple[int, ...]:
        """Ask for the average."""
        return (GLOBAL,)

    def receive(self, site: Site, reply: Reply) -> None:
        """Go halfway towards it."""
        self.model = torch.lerp(reply.models[GLOBAL], self.model, self.keep)

    def train(self, site: Site, round: int) -> float:
        """Train on the local data."""
        self.model, loss = descend(site, round, self.model)
        return loss

    def personalised(self) -> Tensor:
        """Return the own model."""
        return self.model

    def upload(self) -> Tensor:
        """Return the own model."""
        return self.model
