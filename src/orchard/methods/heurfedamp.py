"""HeurFedAMP: the server sends each client a mixture of models that resemble its own.

Y. Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data", AAAI 2021.

The server keeps the last model w_i of every client and sends client i

    u_i = ξ_ii·w_i + Σ_{j≠i} ξ_ij·w_j,   ξ_ij = (1 − ξ_ii)·exp(σ·s_ij) / Σ_{h≠i} exp(σ·s_ih)

where s_ij is the cosine of w_i and w_j. The client starts at u_i and minimises F_i(w) + (λ/2α_k)‖w − u_i‖²,

    gradient + (λ/α_k)·(w − u_i),   α_k = 10^4 · 0.1^⌊k/30⌋ in round k

In the first round all start from one initial model. The paper leaves ξ_ii, σ, λ and α_k to tuning.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from orchard.contract import Client, Federation, Reply, Server, Upload
from orchard.experiment import Experiment, MethodSettings
from orchard.methods.limits import refuse_divergence
from orchard.training import Site, descend

BLOCK = 1 << 14
"""Parameters widened to float64 at a time."""


class HeurFedAMP(MethodSettings):
    """HeurFedAMP's parameters."""

    name: Literal["heurfedamp"] = "heurfedamp"
    self_weight: float | None = Field(default=None, ge=0, le=1, description="ξ_ii; none: 1/N")
    sigma: float = Field(default=25.0, ge=0, allow_inf_nan=False, description="σ, how much resemblance counts")
    lam: float = Field(default=1.0, ge=0, allow_inf_nan=False, description="λ, the pull towards the mixture")

    def check(self, experiment: Experiment) -> None:
        """Refuse a pull on which SGD diverges in some round: it grows tenfold every 30."""
        strengths = [experiment.learning_rate(r) * self.pull(r) for r in range(experiment.rounds)]
        strongest = max(strengths)
        where = f"in round {strengths.index(strongest) + 1} of {experiment.rounds}"
        refuse_divergence("lam", self.lam, strongest, f"lr × lam / α_k {where} (α_k falls tenfold every 30)")

    def pull(self, round: int) -> float:
        """λ/α_k."""
        return self.lam * 1e-4 * 10.0 ** min(round // 30, 100)  # a hundred decades are as good as infinity

    def client(self, index: int, federation: Federation) -> "HeurFedAMPClient":
        """Make the client half."""
        return HeurFedAMPClient(self, index, federation)

    def server(self, federation: Federation) -> "HeurFedAMPServer":
        """Make the server half."""
        return HeurFedAMPServer(self, federation)


class HeurFedAMPClient(Client):
    """An own model, trained from the mixture and not too far from it."""

    keeps = ("model", "mixture")

    def __init__(self, settings: HeurFedAMP, index: int, federation: Federation) -> None:
        self.settings, self.index = settings, index
        self.model = self.mixture = federation.initial_model()

    def wants(self, round: int) -> tuple[int, ...]:
        """Ask for the mixture made for this client."""
        return (self.index,)

    def receive(self, site: Site, reply: Reply) -> None:
        """Take the mixture as the next start; the own model is still the trained one."""
        self.mixture = reply.models[self.index]

    def train(self, site: Site, round: int) -> float:
        """Train from the mixture."""
        pull = self.settings.pull(round)
        self.model, loss = descend(site, round, self.mixture, centre=self.mixture, strength=pull)
        return loss

    def personalised(self) -> Tensor:
        """Return the own model."""
        return self.model

    def upload(self) -> Tensor:
        """Return the own model."""
        return self.model


class HeurFedAMPServer(Server):
    """The last model of every client, and how they are weighed; in main memory, since not every device has float64."""

    keeps = ("models", "weights")

    def __init__(self, settings: HeurFedAMP, federation: Federation) -> None:
        self.sigma = settings.sigma
        self.self_weight = 1 / federation.clients if settings.self_weight is None else settings.self_weight
        self.like = federation.initial_model()
        self.models = [self.like.cpu()] * federation.clients
        self.weights = torch.eye(federation.clients, dtype=torch.float64)

    def reply(self, client: int, wants: tuple[int, ...]) -> Mapping[int, Tensor]:
        """Return the mixture for a client."""
        mixture = torch.cat([self.weights[client] @ block for block in widened(self.models)])
        return {client: mixture.to(self.like)}

    def collect(self, uploads: Mapping[int, Upload]) -> None:
        """Keep the models that came and weigh all of them anew."""
        self.models = [uploads[j].vector.cpu() if j in uploads else model for j, model in enumerate(self.models)]
        self.weights = mixture_weights(cosines(self.models), self.sigma, self.self_weight)


def widened(models: list[Tensor]) -> Iterator[Tensor]:
    """Yield all models side by side in float64, piece by piece, so that a piece stays in the processor's cache."""
    for pieces in zip(*(torch.split(model, BLOCK) for model in models), strict=True):
        yield torch.stack(pieces).double()


def cosines(models: list[Tensor]) -> Tensor:
    """Return the cosine of every pair of models, in float64."""
    products = torch.zeros(len(models), len(models), dtype=torch.float64)
    for block in widened(models):
        products += block @ block.T
    lengths = products.diagonal().sqrt()
    return products / (lengths[:, None] * lengths)


def mixture_weights(cosines: Tensor, sigma: float, self_weight: float) -> Tensor:
    """Return ξ: each row a fixed weight for oneself, the rest by a softmax of resemblance."""
    n = len(cosines)
    if n == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    itself = torch.eye(n, dtype=torch.bool)
    others = torch.softmax((sigma * cosines).masked_fill(itself, -torch.inf), dim=1)
    return torch.where(itself, self_weight, (1 - self_weight) * others)
