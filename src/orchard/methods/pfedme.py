"""pFedMe: each client's model minimises its loss near the global model, which moves to where all of these are near.

C. T. Dinh, N. H. Tran, T. D. Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020,
    https://arxiv.org/abs/2006.08848

Client i starts a round with w_i ← w and θ_i ← w. For each batch B of E epochs,

    K times:  θ_i ← θ_i − γ·(∇f(θ_i; B) + λ·(θ_i − w_i))     towards argmin_θ f(θ; B) + (λ/2)·‖θ − w_i‖²
    then      w_i ← w_i − η·λ·(w_i − θ_i)                     λ·(w_i − θ_i): the gradient of that minimum in w_i

    w ← (1 − β)·w + β·Σ_i (n_i/n)·w_i

w_i is uploaded; θ_i is evaluated and never leaves the client. η is the experiment's learning rate, and γ decays as it
does. The paper asks for the argmin up to some accuracy. As in the authors' program the K steps are plain gradient
descent, so the momentum is 0 here, and start where those of the batch before have ended.

With K = 1 and η·λ = 1, w_i is always θ_i: this is FedAvg-local by plain SGD with learning rate γ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from orchard.core.contract import Download, Vectors
from orchard.core.federation import Federation
from orchard.core.training import ClientContext, check_finite, gradient, pull, run_epochs
from orchard.experiment import Experiment
from orchard.method import Queries
from orchard.methods.fedavg import Averaging, AveragingServer, FedAvgClient
from orchard.methods.limits import check_convergence


class PFedMe(Averaging):
    """Each client's model minimises its loss near a global model, which moves towards all of them."""

    momentum: ClassVar[float] = 0.0
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"lam": (5.0, 15.0, 30.0), "inner_lr": (None, 0.01, 0.1)}
    name: Literal["pfedme"] = "pfedme"
    lam: float = Field(default=15.0, gt=0, allow_inf_nan=False, description="λ, the pull towards the global model")
    inner_steps: int = Field(default=5, ge=1, description="K, the steps of θ on each batch")
    inner_lr: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="γ, the learning rate of θ; none: that of w"
    )
    beta: float = Field(default=1.0, gt=0, allow_inf_nan=False, description="β, how far the server goes to the mean")

    def check(self, experiment: Experiment) -> None:
        """Raise if there is momentum, or if steps on either side of the pull diverge."""
        if experiment.local_momentum != 0:
            raise ValueError(f"name = {self.name!r}: its steps are plain gradient descent; leave momentum out")
        check_convergence("lam", self.lam, experiment.lr * self.lam, "lr × lam", experiment)
        if self.inner_lr is not None:
            check_convergence("lam", self.lam, self.inner_lr * self.lam, "inner_lr × lam", experiment)

    def queries(self, experiment: Experiment, samples: int, round: int) -> Queries:
        """Count K gradients of each batch."""
        return replace(super().queries(experiment, samples, round), gradients=self.inner_steps)

    def client(self, index: int, federation: Federation) -> "PFedMeClient":
        """Make a client."""
        return PFedMeClient(self, federation)

    def server(self, federation: Federation) -> "PFedMeServer":
        """Make the server."""
        return PFedMeServer(self, federation)


class PFedMeClient(FedAvgClient):
    """A copy of the global model, and the personal one, which every download replaces by the global one."""

    round_keys = ("personal",)

    def __init__(self, settings: PFedMe, federation: Federation) -> None:
        super().__init__(federation)
        self.settings = settings
        self.personal = self.model

    def receive(self, context: ClientContext, download: Download) -> None:
        """Take over the global model."""
        self.model = self.personal = download.vectors["model"]

    def train(self, context: ClientContext, round: int) -> float:
        """Train both; the BatchNorm statistics are those of the personal model, the only one that sees batches."""
        settings, experiment, network = self.settings, context.experiment, context.network
        eta = experiment.learning_rate(round)
        gamma = eta if settings.inner_lr is None else settings.inner_lr * experiment.decay(round)
        w, theta = self.model.clone(), network.vector.copy_(self.model)
        towards_w = pull(w, settings.lam)

        def step(x: Tensor, y: Tensor) -> Tensor:
            for _ in range(settings.inner_steps):
                loss = gradient(network, x, y)
                towards_w(theta, network.gradient)
                theta.add_(network.gradient, alpha=-gamma)
            w.lerp_(theta, eta * settings.lam)
            return loss

        loss = run_epochs(context, round, step)
        check_finite("global copy", w)
        check_finite("personal model", theta)
        self.model, self.personal = w, theta.clone()
        return loss

    def personalised(self) -> Tensor:
        """Return θ_i, or the global model just received."""
        return self.personal


class PFedMeServer(AveragingServer):
    """The global model, which goes towards the average of the clients' copies."""

    def __init__(self, settings: PFedMe, federation: Federation) -> None:
        super().__init__(federation)
        self.beta = settings.beta

    def aggregate(self, uploads: Mapping[int, Vectors]) -> None:
        """Go towards the average."""
        before = self.model
        super().aggregate(uploads)
        self.model = torch.lerp(before, self.model, self.beta)
