"""FedDyn: a gradient term at each client, and their sum at the server, make local optima agree with the global one.

D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama, "Federated Learning Based on
Dynamic Regularization", ICLR 2021,
    https://arxiv.org/abs/2111.04263

The server keeps the model θ and h; client i keeps ĝ_i and never gives it away. h and all ĝ_i start at 0.

    θ_i ← E epochs of momentum SGD from θ on ∇F_i(θ_i) − ĝ_i + α·(θ_i − θ)
    ĝ_i ← ĝ_i − α·(θ_i − θ)                               ∇F_i(θ_i), where local training has reached its minimum
    h   ← h − α·(1/N)·Σ_i (θ_i − θ);   θ ← mean_i θ_i − h/α

Sum and mean are over the clients that took part; N counts all. θ_i is uploaded, the new θ is evaluated.

As in the paper n_i does not count: where nothing moves any more, all θ_i = θ, h = 0 is the mean of all ∇F_i(θ), and θ
minimises Σ_i F_i, in which every client has the same weight. So it is for any number of local steps, however much the
clients differ. Where FedAvg comes to rest depends on the number of steps.

α must be large enough for local training to feel it. Else the local copies do not gather, and −h/α, the sum of all the
moves of the past, is added to θ without damping: models swing.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from orchard.core.contract import Vectors
from orchard.core.federation import Federation
from orchard.core.training import ClientContext, local_sgd, pull
from orchard.experiment import Experiment
from orchard.method import Moment
from orchard.methods.fedavg import Averaging, AveragingServer, FedAvgClient, weighted_mean
from orchard.methods.limits import check_convergence


class FedDyn(Averaging):
    """FedAvg whose local losses are corrected until their minima agree with that of their sum."""

    moment: ClassVar[Moment] = "after_aggregation"
    withstands: ClassVar[bool] = False  # its correction is the sum of all clients' terms
    keeps: ClassVar[str] = "its gradient term"
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"alpha": (0.001, 0.01, 0.1, 1.0)}
    name: Literal["feddyn"] = "feddyn"
    alpha: float = Field(default=0.01, gt=0, allow_inf_nan=False, description="α, the pull towards the global model")

    def check(self, experiment: Experiment) -> None:
        """Raise if SGD diverges on the pull."""
        check_convergence("alpha", self.alpha, experiment.lr * self.alpha, "lr × alpha", experiment)

    def client(self, index: int, federation: Federation) -> "FedDynClient":
        """Make a client."""
        return FedDynClient(self, federation)

    def server(self, federation: Federation) -> "FedDynServer":
        """Make the server."""
        return FedDynServer(self, federation)


class FedDynClient(FedAvgClient):
    """A copy of the global model, and the client's gradient term."""

    state_keys = ("model", "gradient")

    def __init__(self, settings: FedDyn, federation: Federation) -> None:
        super().__init__(federation)
        self.alpha = settings.alpha
        self.gradient = torch.zeros_like(self.model)

    def train(self, context: ClientContext, round: int) -> float:
        """Train on the corrected loss, then update the gradient term."""
        received, towards_it = self.model, pull(self.model, self.alpha)

        def correction(w: Tensor, gradient: Tensor) -> None:
            towards_it(w, gradient)
            gradient.sub_(self.gradient)

        self.model, loss = local_sgd(context, round, received, correction=correction)
        self.gradient = self.gradient - self.alpha * (self.model - received)
        return loss


class FedDynServer(AveragingServer):
    """The global model, and the mean of the gradient terms."""

    state_keys = ("model", "h")

    def __init__(self, settings: FedDyn, federation: Federation) -> None:
        super().__init__(federation)
        self.alpha = settings.alpha
        self.h = torch.zeros_like(self.model)

    def aggregate(self, uploads: Mapping[int, Vectors]) -> None:
        """Update both; absent clients have not moved."""
        clients = len(self.samples)
        mean = weighted_mean({i: upload["model"] for i, upload in uploads.items()}, [1] * clients)
        self.h = self.h - self.alpha * (len(uploads) / clients) * (mean - self.model)
        self.model = mean - self.h / self.alpha
