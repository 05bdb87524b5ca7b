"""FedAvg and its relatives: one global model, averaged from the clients' copies every round.

B. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017,
    https://arxiv.org/abs/1602.05629
K. Wang et al., "Federated Evaluation of On-device Personalization", 2019 (fine-tuning),
    https://arxiv.org/abs/1910.10252

    w_i ← E epochs of momentum SGD from w
    w   ← Σ_i (n_i/n)·w_i                   accumulated in float64

What is evaluated:

    FedAvg        the new w
    FedAvg-local  w_i, before averaging
    FedAvg-FT     a copy of the new w after E_ft epochs on local data, then discarded

Fine-tuning uses the learning rate and the batches of the next round. With E_ft = E it is therefore the next round's
local training, and is done once for both.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from orchard.core.contract import Client, Download, Server, Vectors
from orchard.core.federation import Federation
from orchard.core.training import ClientContext, local_sgd
from orchard.core.vector import Part
from orchard.experiment import Experiment
from orchard.method import MethodSettings, Moment, Queries, Traffic
from orchard.methods.robust import robust_mean


class Averaging(MethodSettings):
    """What the family shares: clients train copies of one model, the server averages them."""

    travels: ClassVar[str] = "a model, each way"
    withstands: ClassVar[bool] = True

    def traffic(self, federation: Federation) -> Traffic:
        """Let one model travel each way."""
        return Traffic(down={"model": federation.parameters}, up={"model": federation.parameters})

    def client(self, index: int, federation: Federation) -> "FedAvgClient":
        """Make a client."""
        return FedAvgClient(federation)

    def server(self, federation: Federation) -> "AveragingServer":
        """Make the server."""
        return AveragingServer(federation)


class FedAvg(Averaging):
    """One model for all: the average of the clients' trained copies."""

    moment: ClassVar[Moment] = "after_aggregation"
    also_reports: ClassVar[Mapping[str, Moment]] = {"fedavg-local": "after_training"}
    name: Literal["fedavg"] = "fedavg"


class FedAvgLocal(Averaging):
    """FedAvg, evaluated on each client's local copy."""

    moment: ClassVar[Moment] = "after_training"
    name: Literal["fedavg-local"] = "fedavg-local"


class FedAvgFT(Averaging):
    """FedAvg, fine-tuned by each client on its own data."""

    moment: ClassVar[Moment] = "after_finetuning"
    also_reports: ClassVar[Mapping[str, Moment]] = {"fedavg": "after_aggregation", "fedavg-local": "after_training"}
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"tuning_epochs": (None, 1)}
    name: Literal["fedavg-ft"] = "fedavg-ft"
    tuning_epochs: int | None = Field(default=None, ge=0, description="E_ft; none: as many as local epochs")

    def queries(self, experiment: Experiment, samples: int, round: int) -> Queries:
        """Add fine-tuning; with E_ft = E it is the round's training."""
        asked = super().queries(experiment, samples, round)
        if round == 0 or (asked.batches and self.tuning_epochs in (None, experiment.epochs)):
            return asked
        return replace(asked, batches=asked.batches + experiment.batches(samples, self.tuning_epochs))

    def client(self, index: int, federation: Federation) -> "FedAvgClient":
        """Make a client."""
        return FinetuningClient(federation, self.tuning_epochs)


class FedAvgClient(Client):
    """Trains a copy of the global model."""

    state_keys: tuple[str, ...] = ("model",)

    def __init__(self, federation: Federation) -> None:
        self.model = federation.initial_model()

    def select(self, round: int) -> Sequence[str]:
        """Ask for the global model."""
        return ("model",)

    def receive(self, context: ClientContext, download: Download) -> None:
        """Take over the global model."""
        self.model = download.vectors["model"]

    def train(self, context: ClientContext, round: int) -> float:
        """Train the copy."""
        self.model, loss = local_sgd(context, round, self.model)
        return loss

    def personalised(self) -> Tensor:
        """Return the copy: trained, or the global model just received."""
        return self.model

    def upload(self) -> Vectors:
        """Return the copy."""
        return {"model": self.model}


class FinetuningClient(FedAvgClient):
    """Also tunes a second copy, which is evaluated and discarded."""

    round_keys = ("ahead",)

    def __init__(self, federation: Federation, tuning_epochs: int | None) -> None:
        super().__init__(federation)
        epochs = federation.experiment.epochs
        self.tuning_epochs = epochs if tuning_epochs is None else tuning_epochs
        self.tuning_is_training = self.tuning_epochs == epochs
        self.ahead: tuple[Tensor, float, dict[str, Tensor]] | None = None

    def finetune(self, context: ClientContext, round: int) -> Tensor:
        """Tune a copy of the global model to the local data."""
        tuned, loss = local_sgd(context, round, self.model, epochs=self.tuning_epochs)
        if self.tuning_is_training:
            self.ahead = tuned, loss, context.network.buffers()
        return tuned

    def train(self, context: ClientContext, round: int) -> float:
        """Train the copy, unless fine-tuning has just done exactly that."""
        if self.ahead is None:
            return super().train(context, round)
        self.model, loss, buffers = self.ahead
        context.network.load_buffers(buffers)
        return loss


class AveragingServer(Server):
    """The global model, or a part of it: the average of what the clients upload."""

    state_keys: tuple[str, ...] = ("model",)

    def __init__(self, federation: Federation, name: str = "model", part: Part | None = None) -> None:
        self.name, self.samples, self.average = name, federation.samples, average_of(federation)
        self.model = federation.initial_model() if part is None else part.of(federation.initial_model())

    def send(self, client: int, selected: Sequence[str]) -> Vectors:
        """Return the average."""
        return {self.name: self.model}

    def aggregate(self, uploads: Mapping[int, Vectors]) -> None:
        """Average the uploads, weighted by the clients' numbers of samples."""
        self.model = self.average({i: upload[self.name] for i, upload in uploads.items()}, self.samples)


Average = Callable[[Mapping[int, Tensor], Sequence[int]], Tensor]
"""Takes vectors by client and the clients' numbers of samples."""


def average_of(federation: Federation) -> Average:
    """Return how a server averages: one that dishonest clients cannot move far, if the experiment asks for that."""
    return robust_mean if federation.experiment.robust else weighted_mean


def weighted_mean(vectors: Mapping[int, Tensor], samples: Sequence[int]) -> Tensor:
    """Return Σ (n_i/n)·w_i over the clients in `vectors`, accumulated in float64."""
    total = sum(samples[i] for i in vectors)
    like = next(iter(vectors.values()))
    mean = torch.zeros(like.shape, dtype=torch.float64)
    for i in sorted(vectors):
        mean.add_(vectors[i].cpu(), alpha=samples[i] / total)
    return mean.to(like)
