"""APFL: a mixture of the global model and a private one.

Y. Deng, M. M. Kamani, M. Mahdavi, "Adaptive Personalized Federated Learning", 2020.

The server keeps the global model w. Client i keeps v_i and α_i, both private, v_i = w at the start. Each step:

    v̄ = α·v + (1 − α)·w
    w steps on ∇f(w)             the global branch: exactly FedAvg
    v steps on α·∇f(v̄)           on the same batch
    α ← clip(α − η⟨v − w, ∇f(v̄)⟩, 0, 1)     once a round, at its first step

w is uploaded and averaged by n_i/n; v̄ is evaluated.
"""

from contextlib import nullcontext
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from orchard.contract import Federation, Notes
from orchard.experiment import MethodSettings
from orchard.methods.fedavg import AveragingServer, FedAvgClient
from orchard.models import repeated_draws
from orchard.training import MomentumSGD, Site, check_finite, gradient, train


class APFL(MethodSettings):
    """APFL's parameters."""

    name: Literal["apfl"] = "apfl"
    alpha: float = Field(default=0.5, ge=0, le=1, description="α at the start")
    adaptive: bool = Field(default=True, description="whether α is learned")

    @model_validator(mode="after")
    def _not_stuck(self) -> "APFL":
        if self.adaptive and self.alpha == 0:
            raise ValueError("alpha = 0: v = w at the start, so α would never move; choose a larger one")
        return self

    def client(self, index: int, federation: Federation) -> "APFLClient":
        """Make the client half."""
        return APFLClient(self, federation)

    def server(self, federation: Federation) -> AveragingServer:
        """Make the server half: FedAvg's."""
        return AveragingServer(federation)


class APFLClient(FedAvgClient):
    """A copy of the global model, as in FedAvg, and beside it the private v and α."""

    keeps = ("model", "private", "alpha")

    def __init__(self, settings: APFL, federation: Federation) -> None:
        super().__init__(federation)
        self.adaptive = settings.adaptive
        self.private = self.model
        self.alpha = torch.tensor(settings.alpha, dtype=self.model.dtype, device=self.model.device)

    def train(self, site: Site, round: int) -> float:
        """Train both branches on the same batches."""
        network, lr = site.network, site.experiment.learning_rate(round)
        w, v, alpha = self.model.clone(), self.private.clone(), self.alpha
        w_sgd, v_sgd = MomentumSGD(w, lr), MomentumSGD(v, lr)
        first = True

        def step(x: Tensor, y: Tensor) -> Tensor:
            nonlocal alpha, first
            # The statistics that a client keeps are those of the model it uses, which is v̄.
            statistics = network.buffers()
            network.vector.copy_(w)
            with repeated_draws() if site.random_layers else nullcontext():
                gradient(network, x, y)
            network.load_buffers(statistics)
            w_gradient = network.gradient.clone()
            torch.lerp(w, v, alpha, out=network.vector)
            loss = gradient(network, x, y)
            moved = alpha
            if first and self.adaptive:
                moved = (alpha - lr * torch.dot(v - w, network.gradient)).clamp(0, 1)
            w_sgd.step(w_gradient)
            v_sgd.step(network.gradient.mul_(alpha))
            alpha, first = moved, False
            return loss

        loss = train(site, round, step)
        check_finite("global copy", w)
        check_finite("private model", v)
        check_finite("mixture weight", alpha)
        self.model, self.private, self.alpha = w, v, alpha
        return loss

    def personalised(self) -> Tensor:
        """Return v̄."""
        return torch.lerp(self.model, self.private, self.alpha)

    def notes(self) -> Notes:
        """Return α."""
        return {"alpha": self.alpha.item()}
