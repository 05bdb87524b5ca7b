"""FedAvg and its relatives: one global model, averaged from the clients' copies every round.

B. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
K. Wang et al., "Federated Evaluation of On-device Personalization", 2019 (fine-tuning).
T. Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020 (FedProx).

    w_i ← E epochs of momentum SGD from w;  FedProx: on the gradient + μ(w_i − w)
    w   ← Σ_i (n_i/n)·w_i                   accumulated in float64

What is evaluated:   FedAvg        the new w
                     FedAvg-local  w_i, before averaging
                     FedAvg-FT     a copy of the new w after E_ft epochs on local data, then discarded
                     FedProx-FT    the same, where w is FedProx's

Fine-tuning uses the learning rate and the batches of the next round. With E_ft = E (and no μ) it is therefore
the next round's local training, and is done once for both.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from orchard.contract import Client, Federation, Reply, Server, Upload
from orchard.experiment import Experiment, MethodSettings, Moment
from orchard.methods.limits import refuse_divergence
from orchard.training import Site, descend

GLOBAL = 0
"""The index under which the one model of the server is asked for."""


class Averaging(MethodSettings):
    """What the family shares: the server averages, the clients train copies."""

    def client(self, index: int, federation: Federation) -> "FedAvgClient":
        """Make the client half."""
        return FedAvgClient(federation)

    def server(self, federation: Federation) -> "AveragingServer":
        """Make the server half."""
        return AveragingServer(federation)


class FedAvg(Averaging):
    """FedAvg has no parameters."""

    moment: ClassVar[Moment] = "exchanged"
    gives: ClassVar[Mapping[str, Moment]] = {"fedavg-local": "trained"}
    name: Literal["fedavg"] = "fedavg"


class FedAvgLocal(Averaging):
    """FedAvg, where each client keeps its local copy for itself."""

    moment: ClassVar[Moment] = "trained"
    name: Literal["fedavg-local"] = "fedavg-local"


class FedAvgFT(Averaging):
    """FedAvg with fine-tuning."""

    moment: ClassVar[Moment] = "tuned"
    gives: ClassVar[Mapping[str, Moment]] = {"fedavg": "exchanged", "fedavg-local": "trained"}
    name: Literal["fedavg-ft"] = "fedavg-ft"
    tuning_epochs: int | None = Field(default=None, ge=0, description="E_ft; none: as many as local epochs")

    def client(self, index: int, federation: Federation) -> "FedAvgClient":
        """Make the client half."""
        return TuningClient(federation, self.tuning_epochs)


class FedProxFT(Averaging):
    """FedProx with fine-tuning; the paper does not report its μ."""

    moment: ClassVar[Moment] = "tuned"
    name: Literal["fedprox-ft"] = "fedprox-ft"
    mu: float = Field(default=0.01, ge=0, allow_inf_nan=False, description="μ, the pull towards the global model")
    tuning_epochs: int | None = Field(default=None, ge=0, description="E_ft; none: as many as local epochs")

    def check(self, experiment: Experiment) -> None:
        """Refuse a pull on which SGD diverges."""
        refuse_divergence("mu", self.mu, experiment.lr * self.mu, "lr × mu")

    def client(self, index: int, federation: Federation) -> "FedAvgClient":
        """Make the client half."""
        return TuningClient(federation, self.tuning_epochs, self.mu)


class FedAvgClient(Client):
    """Trains a copy of the global model."""

    keeps: ClassVar[tuple[str, ...]] = ("model",)

    def __init__(self, federation: Federation) -> None:
        self.model = federation.initial_model()

    def wants(self, round: int) -> tuple[int, ...]:
        """Ask for the global model."""
        return (GLOBAL,)

    def receive(self, site: Site, reply: Reply) -> None:
        """Take the global model over."""
        self.model = reply.models[GLOBAL]

    def train(self, site: Site, round: int) -> float:
        """Train the copy."""
        self.model, loss = descend(site, round, self.model)
        return loss

    def personalised(self) -> Tensor:
        """Return the copy: trained, or the global model just received."""
        return self.model

    def upload(self) -> Tensor:
        """Return the copy."""
        return self.model


class TuningClient(FedAvgClient):
    """Also tunes a second copy, which is evaluated and discarded; may be pulled towards the global model."""

    def __init__(self, federation: Federation, tuning_epochs: int | None, mu: float = 0.0) -> None:
        super().__init__(federation)
        epochs = federation.experiment.epochs
        self.tuning_epochs = epochs if tuning_epochs is None else tuning_epochs
        self.mu = mu
        self.tuning_is_training = self.tuning_epochs == epochs and mu == 0
        # From tuning to training, within one turn.
        self.ahead: tuple[Tensor, float, dict[str, Tensor]] | None = None

    def fine_tuned(self, site: Site, round: int) -> Tensor:
        """Tune a copy of the global model to the local data."""
        tuned, loss = descend(site, round, self.model, epochs=self.tuning_epochs)
        if self.tuning_is_training:
            self.ahead = tuned, loss, site.network.buffers()
        return tuned

    def train(self, site: Site, round: int) -> float:
        """Train the copy, unless tuning has just done exactly that."""
        if self.ahead is None:
            self.model, loss = descend(site, round, self.model, centre=self.model, strength=self.mu)
        else:
            self.model, loss, statistics = self.ahead
            site.network.load_buffers(statistics)
            self.ahead = None
        return loss


class AveragingServer(Server):
    """The global model."""

    keeps = ("model",)

    def __init__(self, federation: Federation) -> None:
        self.model = federation.initial_model()
        self.samples = federation.samples

    def reply(self, client: int, wants: tuple[int, ...]) -> Mapping[int, Tensor]:
        """Return the global model."""
        return {GLOBAL: self.model}

    def collect(self, uploads: Mapping[int, Upload]) -> None:
        """Average the copies that came, by the clients' numbers of samples."""
        total = sum(self.samples[i] for i in uploads)
        mean = torch.zeros(self.model.shape, dtype=torch.float64)
        for i in sorted(uploads):
            mean.add_(uploads[i].vector.cpu(), alpha=self.samples[i] / total)
        self.model = mean.to(self.model)
