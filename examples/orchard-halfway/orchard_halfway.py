"""Halfway: each round a client starts between its own model and the average of all.

    start_i = keep·w_i + (1 − keep)·w,   w = Σ (n_i/n)·w_i

A method in one file: its parameters, and a client. The server and what travels are FedAvg's.
"""

from typing import Literal

import torch
from pydantic import Field

from orchard.methods import Averaging, ClientContext, Download, FedAvgClient, Federation


class Halfway(Averaging):  # brings FedAvg's server, and lets "model" travel both ways
    """The parameters, checked before anything runs."""

    name: Literal["halfway"] = "halfway"
    keep: float = Field(default=0.5, ge=0, le=1, description="how much of its own model a client keeps")

    def client(self, index: int, federation: Federation) -> "HalfwayClient":
        """Make a client."""
        return HalfwayClient(self, federation)


class HalfwayClient(FedAvgClient):  # selects, trains, uploads and is evaluated as in FedAvg
    """Starts between its own model and the average."""

    def __init__(self, settings: Halfway, federation: Federation) -> None:
        super().__init__(federation)
        self.keep = settings.keep

    def receive(self, context: ClientContext, download: Download) -> None:
        """Go towards the average."""
        self.model = torch.lerp(download.vectors["model"], self.model, self.keep)
