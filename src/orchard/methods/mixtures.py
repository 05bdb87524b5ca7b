"""What FedAMP and HeurFedAMP share: the server sends each client a mixture of all models, made for it."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from orchard.core.contract import Client, Download, Server, Vectors
from orchard.core.federation import Federation
from orchard.core.training import ClientContext
from orchard.core.vector import mixture
from orchard.method import MethodSettings, Traffic


class Mixtures(MethodSettings):
    """What both let travel."""

    travels: ClassVar[str] = "a mixture made for the client down, its model up"

    def traffic(self, federation: Federation) -> Traffic:
        """Send each client its mixture, and take its model."""
        return Traffic(down={"mixture": federation.parameters}, up={"model": federation.parameters})


class MixtureClient(Client):
    """A model of its own, and the mixture made for it."""

    state_keys = ("model",)
    round_keys = ("mixture",)

    def __init__(self, federation: Federation) -> None:
        self.model = self.mixture = federation.initial_model()

    def select(self, round: int) -> Sequence[str]:
        """Ask for the mixture made for this client."""
        return ("mixture",)

    def receive(self, context: ClientContext, download: Download) -> None:
        """Keep the mixture for the training; the client's model is still the trained one."""
        self.mixture = download.vectors["mixture"]

    def personalised(self) -> Tensor:
        """Return the client's model."""
        return self.model

    def upload(self) -> Vectors:
        """Return the client's model."""
        return {"model": self.model}


class MixtureServer(Server):
    """The last model of every client and the weights ξ; on the CPU, since not every device has float64."""

    state_keys = ("models", "weights")

    def __init__(self, federation: Federation) -> None:
        self.like = federation.initial_model()
        self.models = [self.like.cpu()] * federation.clients
        self.weights = torch.eye(federation.clients, dtype=torch.float64)

    def weigh(self, models: Sequence[Tensor]) -> Tensor:
        """Return ξ, a row for each model."""
        raise NotImplementedError

    def send(self, client: int, selected: Sequence[str]) -> Vectors:
        """Return the mixture for a client."""
        return {"mixture": mixture(self.weights[client], self.models).to(self.like)}

    def welcome(self, newcomer: int, selected: Sequence[str], upload: Vectors | None) -> Vectors:
        """Return the mixture for one more client; before it has a model, the mean of all."""
        if upload is None:
            weights, models = torch.full((newcomer,), 1 / newcomer, dtype=torch.float64), self.models
        else:
            models = [*self.models, upload["model"].cpu()]
            weights = self.weigh(models)[-1]
        return {"mixture": mixture(weights, models).to(self.like)}

    def aggregate(self, uploads: Mapping[int, Vectors]) -> None:
        """Keep the new models and recompute all weights."""
        self.models = [uploads[j]["model"].cpu() if j in uploads else model for j, model in enumerate(self.models)]
        self.weights = self.weigh(self.models)
