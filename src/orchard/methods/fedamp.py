"""FedAMP: each client is pulled towards a mixture of models, to which those near its own contribute more.

Y. Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data", AAAI 2021,
    https://arxiv.org/abs/2007.03797

All minimise Σ_i F_i(w_i) + λ·Σ_{i<j} A(‖w_i − w_j‖²), A(x) = 1 − exp(−x/σ), in two steps that take turns: one of the
server on the second sum, from the last models of all clients, and one of the clients on the first.

    u_i = ξ_ii·w_i + Σ_{j≠i} ξ_ij·w_j,   ξ_ij = α·A'(‖w_i − w_j‖²) = (α/σ)·exp(−‖w_i − w_j‖²/σ)
    w_i ← E epochs of momentum SGD from w_i on ∇F_i(w) + (λ/α)·(w − u_i)

with ξ_ii = 1 − Σ_{j≠i} ξ_ij. The paper asks for the minimum of F_i(w) + (λ/2α)‖w − u_i‖² and does not say where the
search starts. Here it starts from w_i: all that comes from others is the pull, and λ = 0 is Separate. The step α is the
same in all rounds. It is refused if (N − 1)·α/σ > 1, where ξ_ii could be negative; with α = σ/N equal models count
alike. Distances and ξ are computed in float64. In the first round all start from one initial model, and ξ_ii = 1.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from orchard.core.federation import Federation
from orchard.core.training import ClientContext, local_sgd, pull
from orchard.core.vector import products
from orchard.experiment import Experiment
from orchard.methods.limits import check_convergence
from orchard.methods.mixtures import MixtureClient, Mixtures, MixtureServer


class FedAMP(Mixtures):
    """Each client is pulled towards a mixture of all models, weighted by how near they are to its own."""

    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"sigma": (1.0, 10.0, 100.0), "lam": (0.01, 0.1, 1.0)}
    name: Literal["fedamp"] = "fedamp"
    sigma: float = Field(default=10.0, gt=0, allow_inf_nan=False, description="σ, the squared distance that is near")
    alpha: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="α, the server's step; none: σ/N")
    lam: float = Field(default=0.1, ge=0, allow_inf_nan=False, description="λ; the pull towards the mixture is λ/α")

    def check(self, experiment: Experiment) -> None:
        """Raise if a client's own weight could be negative, or if SGD diverges on the pull."""
        alpha = self.step(experiment.clients)
        if (most := (experiment.clients - 1) * alpha / self.sigma) > 1:
            raise ValueError(
                f"alpha = {alpha:g}: (clients − 1) × alpha / sigma = {most:g}, but beyond 1 a client's own model "
                "could have a negative weight"
            )
        strength = experiment.lr * self.pull_strength(experiment.clients)
        check_convergence("lam", self.lam, strength, "lr × lam / alpha", experiment)

    def step(self, clients: int) -> float:
        """α."""
        return self.sigma / clients if self.alpha is None else self.alpha

    def pull_strength(self, clients: int) -> float:
        """λ/α."""
        return self.lam / self.step(clients)

    def client(self, index: int, federation: Federation) -> "FedAMPClient":
        """Make a client."""
        return FedAMPClient(self, federation)

    def server(self, federation: Federation) -> "FedAMPServer":
        """Make the server."""
        return FedAMPServer(self, federation)


class FedAMPClient(MixtureClient):
    """Trains its model, which is pulled towards the mixture."""

    def __init__(self, settings: FedAMP, federation: Federation) -> None:
        super().__init__(federation)
        self.strength = settings.pull_strength(federation.clients)

    def train(self, context: ClientContext, round: int) -> float:
        """Train on from the client's own model."""
        self.model, loss = local_sgd(context, round, self.model, correction=pull(self.mixture, self.strength))
        return loss


class FedAMPServer(MixtureServer):
    """Weighs models by their distances."""

    def __init__(self, settings: FedAMP, federation: Federation) -> None:
        super().__init__(federation)
        self.settings = settings

    def weigh(self, models: Sequence[Tensor]) -> Tensor:
        """Return ξ; with a newcomer there is one model more than α was checked for."""
        n, sigma = len(models), self.settings.sigma
        alpha = min(self.settings.step(n), sigma / max(1, n - 1))
        return mixture_weights(squared_distances(models), sigma, alpha)


def squared_distances(models: Sequence[Tensor]) -> Tensor:
    """Return ‖w_i − w_j‖² of every pair of models, in float64."""
    pairs = products(models)
    lengths = pairs.diagonal()
    return (lengths[:, None] + lengths - 2 * pairs).clamp(min=0)


def mixture_weights(distances: Tensor, sigma: float, alpha: float) -> Tensor:
    """Return ξ from squared distances; each row adds up to 1."""
    others = (alpha / sigma * torch.exp(-distances / sigma)).fill_diagonal_(0)
    return others + torch.diag((1 - others.sum(1)).clamp(min=0))
