"""MOCHA for networks: each client trains alone, pulled towards what its model has in common with the others'.

V. Smith, C.-K. Chiang, M. Sanjabi, A. Talwalkar, "Federated Multi-Task Learning", NIPS 2017,
    https://arxiv.org/abs/1705.10467

This transfers the paper's idea to networks. It is not the paper's algorithm, which solves the dual of a convex problem
with guarantees, even if clients stop early. The idea is to learn the models W = (w_1 … w_N) and how they are related,

    min Σ_i F_i(w_i) + (λ/2)·tr(WΩWᵀ),   Ω = Σ⁻¹,   Σ = (WᵀW)^½ / tr((WᵀW)^½)

in turns: the clients W, the server Ω from the last models. Equal models, as at the start, have no Σ⁻¹. Hence here

    Ω = ε·(Σ + εI)⁻¹,   ε = 0.01                                  from the Gram matrix, in float64
    w_i ← E epochs of momentum SGD from w_i on ∇F_i(w) + λ·(Σ_j Ω_ij·w_j + w − w_i)

The factor ε only scales λ: all eigenvalues of Ω are now in (0, 1], near 0 for what models have in common, near 1 for
what sets them apart if it is small. So models that differ little are pulled to their mean, and groups that differ much
are left apart. A client receives one vector, Σ_j Ω_ij·w_j of the last models, its own included. It stays as it is
during the training, to which only w − w_i responds, with curvature λ instead of λ·Ω_ii. Since Ω ≤ I, what the clients
minimise adds up to an upper bound of the sum above for this Ω, equal to it where the round starts: nobody overshoots
because others move as well, as could happen with Ω_ii. SGD diverges on it if lr·λ > 2(1 + β), which is refused. λ = 0
is Separate. A client never starts from others' models.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from orchard.core.contract import Client, Download, Server, Vectors
from orchard.core.federation import Federation
from orchard.core.training import ClientContext, local_sgd, pull
from orchard.core.vector import mixture, products
from orchard.experiment import Experiment
from orchard.method import MethodSettings, Traffic
from orchard.methods.limits import check_convergence

RIDGE = 0.01
"""ε."""
ROUNDING = 1e-12
"""An eigenvalue of the Gram matrix that is smaller, relative to the largest, is none: its root would be noise."""


class Mocha(MethodSettings):
    """Each client trains alone, and how all models are related says where its own is pulled; MOCHA's idea only."""

    travels: ClassVar[str] = "a combination of all models made for the client down, its model up"
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"lam": (0.01, 0.1, 1.0)}
    name: Literal["mocha"] = "mocha"
    lam: float = Field(default=0.1, ge=0, allow_inf_nan=False, description="λ, how much the relations count")

    def check(self, experiment: Experiment) -> None:
        """Raise if SGD diverges on the pull."""
        check_convergence("lam", self.lam, experiment.lr * self.lam, "lr × lam", experiment)

    def traffic(self, federation: Federation) -> Traffic:
        """Send each client its combination, and take its model."""
        return Traffic(down={"combination": federation.parameters}, up={"model": federation.parameters})

    def client(self, index: int, federation: Federation) -> "MochaClient":
        """Make a client."""
        return MochaClient(self, federation)

    def server(self, federation: Federation) -> "MochaServer":
        """Make the server."""
        return MochaServer(federation)


class MochaClient(Client):
    """A model of its own, and Σ_j Ω_ij·w_j of this round."""

    state_keys = ("model",)
    round_keys = ("combination",)

    def __init__(self, settings: Mocha, federation: Federation) -> None:
        self.lam = settings.lam
        self.model = federation.initial_model()
        self.combination = torch.zeros_like(self.model)

    def select(self, round: int) -> Sequence[str]:
        """Ask for the combination made for this client."""
        return ("combination",)

    def receive(self, context: ClientContext, download: Download) -> None:
        """Keep the combination for the training; the model stays as it is."""
        self.combination = download.vectors["combination"]

    def train(self, context: ClientContext, round: int) -> float:
        """Train on from the client's own model."""
        towards = pull(self.model - self.combination, self.lam)
        self.model, loss = local_sgd(context, round, self.model, correction=towards)
        return loss

    def personalised(self) -> Tensor:
        """Return the client's model."""
        return self.model

    def upload(self) -> Vectors:
        """Return the client's model."""
        return {"model": self.model}


class MochaServer(Server):
    """The last model of every client, and Ω; on the CPU, since not every device has float64."""

    state_keys = ("models", "relations")

    def __init__(self, federation: Federation) -> None:
        self.first = federation.initial_model()
        self.models = [self.first.cpu()] * federation.clients
        self.relations = relations(products(self.models))

    def send(self, client: int, selected: Sequence[str]) -> Vectors:
        """Return Σ_j Ω_ij·w_j for a client."""
        return {"combination": mixture(self.relations[client], self.models).to(self.first)}

    def welcome(self, newcomer: int, selected: Sequence[str], upload: Vectors | None) -> Vectors:
        """Return the same for one more client; before it has trained it has the initial model, as all had."""
        models = [*self.models, (self.first if upload is None else upload["model"]).cpu()]
        return {"combination": mixture(relations(products(models))[-1], models).to(self.first)}

    def aggregate(self, uploads: Mapping[int, Vectors]) -> None:
        """Keep the new models and recompute Ω."""
        self.models = [uploads[j]["model"].cpu() if j in uploads else model for j, model in enumerate(self.models)]
        self.relations = relations(products(self.models))


def relations(products: Tensor) -> Tensor:
    """Return Ω from the Gram matrix WᵀW."""
    squares, directions = torch.linalg.eigh(products)
    lengths = torch.where(squares > ROUNDING * squares[-1], squares, 0).sqrt()
    shares = lengths / lengths.sum() if lengths.any() else lengths  # the eigenvalues of Σ
    omega: Tensor = directions * (RIDGE / (RIDGE + shares)) @ directions.T
    return omega
