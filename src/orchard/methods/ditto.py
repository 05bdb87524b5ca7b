"""Ditto: FedAvg for all, and beside it a personal model that is pulled towards the global one.

T. Li, S. Hu, A. Beirami, V. Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021,
    https://arxiv.org/abs/2012.04221

    w_i ← E epochs of SGD on ∇F_i(w_i) from w;              w ← Σ_i (n_i/n)·w_i    as in FedAvg
    v_i ← E epochs of SGD on ∇F_i(v_i) + λ·(v_i − w)        w as received this round

w_i is uploaded; v_i is evaluated and never leaves the client. With λ = 0 it is Separate's model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from orchard.core.federation import Federation
from orchard.core.training import ClientContext, local_sgd, pull
from orchard.experiment import Experiment
from orchard.method import Queries
from orchard.methods.fedavg import Averaging, FedAvgClient
from orchard.methods.limits import check_convergence


class Ditto(Averaging):
    """FedAvg, and beside it a personal model that is pulled towards the global one."""

    keeps: ClassVar[str] = "its personal model"
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"lam": (0.01, 0.1, 1.0)}
    name: Literal["ditto"] = "ditto"
    lam: float = Field(default=0.1, ge=0, allow_inf_nan=False, description="λ, the pull towards the global model")

    def check(self, experiment: Experiment) -> None:
        """Raise if SGD diverges on the pull."""
        check_convergence("lam", self.lam, experiment.lr * self.lam, "lr × lam", experiment)

    def queries(self, experiment: Experiment, samples: int, round: int) -> Queries:
        """Count both models' batches."""
        asked = super().queries(experiment, samples, round)
        return replace(asked, batches=2 * asked.batches)

    def client(self, index: int, federation: Federation) -> "DittoClient":
        """Make a client."""
        return DittoClient(self, federation)


class DittoClient(FedAvgClient):
    """A copy of the global model, as in FedAvg, and beside it the personal one."""

    state_keys = ("model", "personal")

    def __init__(self, settings: Ditto, federation: Federation) -> None:
        super().__init__(federation)
        self.lam = settings.lam
        self.personal = self.model

    def train(self, context: ClientContext, round: int) -> float:
        """Train both on the same batches; the BatchNorm statistics are those of the personal model."""
        received = self.model
        with context.network.preserved_buffers():
            self.model, _ = local_sgd(context, round, received)
        self.personal, loss = local_sgd(context, round, self.personal, correction=pull(received, self.lam))
        return loss

    def personalised(self) -> Tensor:
        """Return v_i."""
        return self.personal
