"""SCAFFOLD: control variates correct the drift of local training.

S. P. Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020 (option II),
    https://arxiv.org/abs/1910.06378

The server keeps the model x and the control variate c; client i keeps c_i. All control variates start at 0.

    y_i ← x;  K steps  y_i ← y_i − η·(∇F_i(y_i) − c_i + c)
    Δc_i = (x − y_i)/(K·η) − c;   c_i ← c_i + Δc_i
    x ← x + η_g·Σ_i (n_i/n)·(y_i − x);   c ← c + (1/N)·Σ_i Δc_i

y_i and Δc_i are uploaded. (x − y_i)/(K·η) is the mean gradient of plain SGD, so the momentum is 0 here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from orchard.core.contract import Client, Download, Server, Vectors
from orchard.core.federation import Federation
from orchard.core.training import ClientContext, local_sgd
from orchard.experiment import Experiment
from orchard.method import MethodSettings, Moment, Traffic
from orchard.methods.fedavg import weighted_mean


class Scaffold(MethodSettings):
    """FedAvg whose local steps are corrected for how a client's gradients differ from all clients' mean."""

    moment: ClassVar[Moment] = "after_aggregation"
    momentum: ClassVar[float] = 0.0
    travels: ClassVar[str] = "a model and a control variate, each way"
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"global_lr": (0.5, 1.0)}
    name: Literal["scaffold"] = "scaffold"
    global_lr: float = Field(default=1.0, gt=0, allow_inf_nan=False, description="η_g, the server's learning rate")

    def check(self, experiment: Experiment) -> None:
        """Raise if the control variates would not be mean gradients."""
        if experiment.local_momentum != 0:
            raise ValueError(f"name = {self.name!r}: its control variates need plain SGD; leave momentum out")
        if experiment.lr == 0:
            raise ValueError(f"name = {self.name!r}: its control variates need a learning rate above 0")

    def traffic(self, federation: Federation) -> Traffic:
        """Let a model and a control variate travel each way."""
        both = {"model": federation.parameters, "control": federation.parameters}
        return Traffic(down=both, up=both)

    def client(self, index: int, federation: Federation) -> "ScaffoldClient":
        """Make a client."""
        return ScaffoldClient(federation)

    def server(self, federation: Federation) -> "ScaffoldServer":
        """Make the server."""
        return ScaffoldServer(self, federation)


class ScaffoldClient(Client):
    """A local copy of the model, and the client's control variate."""

    state_keys = ("model", "control")
    round_keys = ("server_control", "control_change")

    def __init__(self, federation: Federation) -> None:
        self.model = federation.initial_model()
        self.control = self.server_control = self.control_change = torch.zeros_like(self.model)

    def select(self, round: int) -> Sequence[str]:
        """Ask for the model and the server's control variate."""
        return ("model", "control")

    def receive(self, context: ClientContext, download: Download) -> None:
        """Take over both."""
        self.model, self.server_control = download.vectors["model"], download.vectors["control"]

    def train(self, context: ClientContext, round: int) -> float:
        """Train on corrected gradients, then update the control variate."""
        experiment, x, c = context.experiment, self.model, self.server_control
        drift = c - self.control

        def correction(w: Tensor, gradient: Tensor) -> None:
            gradient.add_(drift)

        self.model, loss = local_sgd(context, round, x, correction=correction)
        steps = experiment.epochs * -(-len(context.data.train.y) // experiment.batch_size)
        self.control_change = (x - self.model) / (steps * experiment.learning_rate(round)) - c
        self.control = self.control + self.control_change
        return loss

    def personalised(self) -> Tensor:
        """Return the local copy: trained, or the global model just received."""
        return self.model

    def upload(self) -> Vectors:
        """Return the local copy and the change of the control variate."""
        return {"model": self.model, "control": self.control_change}


class ScaffoldServer(Server):
    """The global model and the global control variate."""

    state_keys = ("model", "control")

    def __init__(self, settings: Scaffold, federation: Federation) -> None:
        self.global_lr, self.samples = settings.global_lr, federation.samples
        self.model = federation.initial_model()
        self.control = torch.zeros_like(self.model)

    def send(self, client: int, selected: Sequence[str]) -> Vectors:
        """Return both."""
        return {"model": self.model, "control": self.control}

    def aggregate(self, uploads: Mapping[int, Vectors]) -> None:
        """Update both; absent clients contribute nothing."""
        mean = weighted_mean({i: upload["model"] for i, upload in uploads.items()}, self.samples)
        self.model = torch.lerp(self.model, mean, self.global_lr)
        changes = weighted_mean({i: upload["control"] for i, upload in uploads.items()}, [1] * len(self.samples))
        self.control = self.control + changes * (len(uploads) / len(self.samples))
