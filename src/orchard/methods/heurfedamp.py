"""HeurFedAMP: the server sends each client a mixture of models that resemble its own.

Y. Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data", AAAI 2021,
    https://arxiv.org/abs/2007.03797

The server keeps the last model w_i of every client and sends client i

    u_i = ξ_ii·w_i + Σ_{j≠i} ξ_ij·w_j,   ξ_ij = (1 − ξ_ii)·exp(σ·s_ij) / Σ_{h≠i} exp(σ·s_ih)

where s_ij is the cosine of w_i and w_j. The client starts at u_i and minimises F_i(w) + (λ/2α_k)‖w − u_i‖²,

    gradient + (λ/α_k)·(w − u_i),   α_k = 10^4 · 0.1^⌊k/30⌋ in round k

In the first round all start from one initial model. The paper leaves ξ_ii, σ, λ and α_k to tuning.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from orchard.core.contract import Client, Download, Server, Vectors
from orchard.core.federation import Federation
from orchard.core.training import ClientContext, local_sgd, pull
from orchard.core.vector import cosines, float64_blocks
from orchard.experiment import Experiment
from orchard.method import MethodSettings, Traffic
from orchard.methods.limits import check_convergence


class HeurFedAMP(MethodSettings):
    """Each client starts from a mixture of all models, weighted by how much they resemble its own."""

    travels: ClassVar[str] = "a mixture made for the client down, its model up"
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"sigma": (5.0, 25.0, 100.0), "self_weight": (None, 0.5)}
    name: Literal["heurfedamp"] = "heurfedamp"
    self_weight: float | None = Field(default=None, ge=0, le=1, description="ξ_ii; none: 1/N")
    sigma: float = Field(default=25.0, ge=0, allow_inf_nan=False, description="σ, how much resemblance counts")
    lam: float = Field(default=1.0, ge=0, allow_inf_nan=False, description="λ, the pull towards the mixture")

    def check(self, experiment: Experiment) -> None:
        """Raise if SGD diverges on the pull in some round: it grows tenfold every 30 rounds."""
        strengths = [experiment.learning_rate(r) * self.pull_strength(r) for r in range(experiment.rounds)]
        strongest = max(strengths)
        where = f"in round {strengths.index(strongest) + 1} of {experiment.rounds}"
        meaning = f"lr × lam / α_k {where} (α_k falls tenfold every 30)"
        check_convergence("lam", self.lam, strongest, meaning, experiment)

    def pull_strength(self, round: int) -> float:
        """λ/α_k."""
        return self.lam * 1e-4 * 10.0 ** min(round // 30, 100)  # a hundred decades are as good as infinity

    def traffic(self, federation: Federation) -> Traffic:
        """Send each client its mixture, and take its model."""
        return Traffic(down={"mixture": federation.parameters}, up={"model": federation.parameters})

    def client(self, index: int, federation: Federation) -> "HeurFedAMPClient":
        """Make a client."""
        return HeurFedAMPClient(self, federation)

    def server(self, federation: Federation) -> "HeurFedAMPServer":
        """Make the server."""
        return HeurFedAMPServer(self, federation)


class HeurFedAMPClient(Client):
    """A model of its own, trained from the mixture and pulled towards it."""

    state_keys = ("model",)
    round_keys = ("mixture",)

    def __init__(self, settings: HeurFedAMP, federation: Federation) -> None:
        self.settings = settings
        self.model = self.mixture = federation.initial_model()

    def select(self, round: int) -> Sequence[str]:
        """Ask for the mixture made for this client."""
        return ("mixture",)

    def receive(self, context: ClientContext, download: Download) -> None:
        """Keep the mixture as the next start; the client's model is still the trained one."""
        self.mixture = download.vectors["mixture"]

    def train(self, context: ClientContext, round: int) -> float:
        """Train from the mixture."""
        correction = pull(self.mixture, self.settings.pull_strength(round))
        self.model, loss = local_sgd(context, round, self.mixture, correction=correction)
        return loss

    def personalised(self) -> Tensor:
        """Return the client's model."""
        return self.model

    def upload(self) -> Vectors:
        """Return the client's model."""
        return {"model": self.model}


class HeurFedAMPServer(Server):
    """The last model of every client and the weights ξ; on the CPU, since not every device has float64."""

    state_keys = ("models", "weights")

    def __init__(self, settings: HeurFedAMP, federation: Federation) -> None:
        self.sigma = settings.sigma
        self.self_weight = 1 / federation.clients if settings.self_weight is None else settings.self_weight
        self.like = federation.initial_model()
        self.models = [self.like.cpu()] * federation.clients
        self.weights = torch.eye(federation.clients, dtype=torch.float64)

    def send(self, client: int, selected: Sequence[str]) -> Vectors:
        """Return the mixture for a client."""
        return {"mixture": mixture(self.weights[client], self.models).to(self.like)}

    def welcome(self, newcomer: int, selected: Sequence[str], upload: Vectors | None) -> Vectors:
        """Return the mixture for one more client; before it has a model, the mean of all."""
        if upload is None:
            weights, models = torch.full((newcomer,), 1 / newcomer, dtype=torch.float64), self.models
        else:
            models = [*self.models, upload["model"].cpu()]
            weights = mixture_weights(cosines(models), self.sigma, self.self_weight)[-1]
        return {"mixture": mixture(weights, models).to(self.like)}

    def aggregate(self, uploads: Mapping[int, Vectors]) -> None:
        """Keep the new models and recompute all weights."""
        self.models = [uploads[j]["model"].cpu() if j in uploads else model for j, model in enumerate(self.models)]
        self.weights = mixture_weights(cosines(self.models), self.sigma, self.self_weight)


def mixture(weights: Tensor, models: Sequence[Tensor]) -> Tensor:
    """Return Σ_j ξ_j·w_j, in float64."""
    return torch.cat([weights @ block for block in float64_blocks(models)])


def mixture_weights(cosines: Tensor, sigma: float, self_weight: float) -> Tensor:
    """Return ξ: in each row a fixed weight for the client itself, the rest by a softmax of the cosines."""
    n = len(cosines)
    if n == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    itself = torch.eye(n, dtype=torch.bool)
    others = torch.softmax((sigma * cosines).masked_fill(itself, -torch.inf), dim=1)
    return torch.where(itself, self_weight, (1 - self_weight) * others)
