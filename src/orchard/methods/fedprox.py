"""FedProx: FedAvg whose local training is pulled towards the global model.

T. Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020,
    https://arxiv.org/abs/1812.06127

    w_i ← E epochs of momentum SGD from w on ∇F_i(w_i) + μ·(w_i − w);   w ← Σ_i (n_i/n)·w_i

FedProx is evaluated on the new w; FedProx-FT on a copy of it after E_ft epochs on local data without the pull, which is
then discarded. With μ = 0 they are FedAvg and FedAvg-FT. The APPLE paper compares with FedProx-FT, without its μ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from orchard.core.federation import Federation
from orchard.core.training import ClientContext, local_sgd, pull
from orchard.experiment import Experiment
from orchard.method import Moment, Queries
from orchard.methods.fedavg import Averaging, FedAvgClient
from orchard.methods.limits import check_convergence


class Proximal(Averaging):
    """What both share: the pull."""

    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"mu": (0.001, 0.01, 0.1, 1.0)}
    mu: float = Field(default=0.01, ge=0, allow_inf_nan=False, description="μ, the pull towards the global model")

    def check(self, experiment: Experiment) -> None:
        """Raise if SGD diverges on the pull."""
        check_convergence("mu", self.mu, experiment.lr * self.mu, "lr × mu", experiment)


class FedProx(Proximal):
    """FedAvg whose local training is pulled towards the global model."""

    moment: ClassVar[Moment] = "after_aggregation"
    name: Literal["fedprox"] = "fedprox"

    def client(self, index: int, federation: Federation) -> "FedProxClient":
        """Make a client."""
        return FedProxClient(federation, self.mu)


class FedProxFT(Proximal):
    """FedProx, fine-tuned by each client on its own data."""

    moment: ClassVar[Moment] = "after_finetuning"
    also_reports: ClassVar[Mapping[str, Moment]] = {"fedprox": "after_aggregation"}
    name: Literal["fedprox-ft"] = "fedprox-ft"
    tuning_epochs: int | None = Field(default=None, ge=0, description="E_ft; none: as many as local epochs")

    def queries(self, experiment: Experiment, samples: int, round: int) -> Queries:
        """Add fine-tuning."""
        asked = super().queries(experiment, samples, round)
        return (
            replace(asked, batches=asked.batches + experiment.batches(samples, self.tuning_epochs)) if round else asked
        )

    def client(self, index: int, federation: Federation) -> "FedProxClient":
        """Make a client."""
        return FedProxFTClient(federation, self.mu, self.tuning_epochs)


class FedProxClient(FedAvgClient):
    """Trains a copy of the global model that is pulled towards it."""

    def __init__(self, federation: Federation, mu: float) -> None:
        super().__init__(federation)
        self.mu = mu

    def train(self, context: ClientContext, round: int) -> float:
        """Train the copy."""
        self.model, loss = local_sgd(context, round, self.model, correction=pull(self.model, self.mu))
        return loss


class FedProxFTClient(FedProxClient):
    """Also tunes a second copy, without the pull; it is evaluated and discarded."""

    def __init__(self, federation: Federation, mu: float, tuning_epochs: int | None) -> None:
        super().__init__(federation, mu)
        self.tuning_epochs = federation.experiment.epochs if tuning_epochs is None else tuning_epochs

    def finetune(self, context: ClientContext, round: int) -> Tensor:
        """Tune a copy of the global model to the local data."""
        return local_sgd(context, round, self.model, epochs=self.tuning_epochs)[0]
