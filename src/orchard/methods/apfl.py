"""APFL: a mixture of the global model and a private one.

Y. Deng, M. M. Kamani, M. Mahdavi, "Adaptive Personalized Federated Learning", 2020,
    https://arxiv.org/abs/2003.13461

The server keeps the global model w. Client i keeps v_i and α_i, both private, v_i = w at the start. Each step:

    v̄ = α·v + (1 − α)·w
    w steps on ∇f(w)             the global branch: exactly FedAvg
    v steps on α·∇f(v̄)           on the same batch
    α ← clip(α − η⟨v − w, ∇f(v̄)⟩, 0, 1)     once per round, at its first step

w is uploaded and averaged by n_i/n; v̄ is evaluated.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from orchard.core.contract import Diagnostics
from orchard.core.federation import Federation
from orchard.core.models import repeated_draws
from orchard.core.training import ClientContext, MomentumSGD, check_finite, gradient, run_epochs
from orchard.experiment import Experiment
from orchard.method import Queries
from orchard.methods.fedavg import Averaging, FedAvgClient


class APFL(Averaging):
    """A learned mixture of the global model and a private one."""

    keeps: ClassVar[str] = "its private model, and their mixture's weight α"
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"alpha": (0.25, 0.5, 0.75)}
    name: Literal["apfl"] = "apfl"
    alpha: float = Field(default=0.5, ge=0, le=1, description="α at the start")
    adaptive: bool = Field(default=True, description="whether α is learned")

    @model_validator(mode="after")
    def _not_stuck(self) -> "APFL":
        if self.adaptive and self.alpha == 0:
            raise ValueError("alpha = 0: v = w at the start, so α would never move; choose a larger one")
        return self

    def queries(self, experiment: Experiment, samples: int, round: int) -> Queries:
        """Count the gradients of both branches."""
        return replace(super().queries(experiment, samples, round), gradients=2)

    def client(self, index: int, federation: Federation) -> "APFLClient":
        """Make a client."""
        return APFLClient(self, federation)


class APFLClient(FedAvgClient):
    """A copy of the global model, as in FedAvg, and beside it the private v and α."""

    state_keys = ("model", "private", "alpha")

    def __init__(self, settings: APFL, federation: Federation) -> None:
        super().__init__(federation)
        self.adaptive = settings.adaptive
        self.private = self.model
        self.alpha = torch.tensor(settings.alpha, dtype=self.model.dtype, device=self.model.device)

    def train(self, context: ClientContext, round: int) -> float:
        """Train both branches on the same batches."""
        network, lr = context.network, context.experiment.learning_rate(round)
        w, v, alpha = self.model.clone(), self.private.clone(), self.alpha
        w_sgd, v_sgd = (MomentumSGD(model, context.experiment, round) for model in (w, v))
        first = True

        def step(x: Tensor, y: Tensor) -> Tensor:
            nonlocal alpha, first
            # A client's BatchNorm statistics are those of the model it uses, which is v̄.
            network.vector.copy_(w)
            with network.preserved_buffers(), repeated_draws() if context.random_layers else nullcontext():
                gradient(network, x, y)
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

        loss = run_epochs(context, round, step)
        check_finite("global copy", w)
        check_finite("private model", v)
        check_finite("mixture weight", alpha)
        self.model, self.private, self.alpha = w, v, alpha
        return loss

    def personalised(self) -> Tensor:
        """Return v̄."""
        return torch.lerp(self.model, self.private, self.alpha)

    def diagnostics(self) -> Diagnostics:
        """Return α."""
        return {"alpha": self.alpha.item()}
