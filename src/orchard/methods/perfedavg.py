"""Per-FedAvg: a global model that is good after a step on a client's own data, first order.

A. Fallah, A. Mokhtari, A. Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020,
    https://arxiv.org/abs/2002.07948

Client i starts from the global model, w_i ← w. Each step takes a batch in two halves, B1 and B2:

    w̃   = w_i − α·∇f(w_i; B1)                  what the model would be after adaptation
    w_i ← w_i − β·∇f(w̃; B2)                    with momentum; without the Hessian of f, which makes it first order

    w   ← Σ_i (n_i/n)·w_i
    used: a copy of the new w after k epochs of w ← w − α·∇f(w; B) on local data, then discarded

β is the experiment's learning rate; α decays as β does. Steps of α are plain, as in the paper: a w̃ of one step has no
momentum, and adaptation takes the same steps. With α = 0 this is FedAvg on the second halves.

Of an odd batch the extra sample is in B2; under privacy a coin for each sample says where it is. A batch of one to
three samples is not cut: it is B1 and B2, since a half of one sample would be too few for BatchNorm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from orchard.core.federation import Federation
from orchard.core.training import ClientContext, MomentumSGD, check_finite, gradient, run_epochs
from orchard.experiment import Experiment
from orchard.method import Moment, Queries
from orchard.methods.fedavg import Averaging, FedAvgClient

SMALLEST_CUT = 4
"""Samples of the smallest batch that is cut in two."""


class PerFedAvg(Averaging):
    """A global model trained to be good after adaptation, and adapted by each client to its own data."""

    moment: ClassVar[Moment] = "after_finetuning"
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"alpha": (None, 0.01, 0.1), "adaptation_epochs": (1, 5)}
    name: Literal["per-fedavg"] = "per-fedavg"
    alpha: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="α, the rate of adaptation; none: the learning rate"
    )
    adaptation_epochs: int = Field(default=1, ge=0, description="k, the epochs of adaptation")

    def queries(self, experiment: Experiment, samples: int, round: int) -> Queries:
        """Add adaptation."""
        asked = super().queries(experiment, samples, round)
        tuning = experiment.batches(samples, self.adaptation_epochs) if round else 0
        return replace(asked, batches=asked.batches + tuning)

    def client(self, index: int, federation: Federation) -> "PerFedAvgClient":
        """Make a client."""
        return PerFedAvgClient(self, federation)


class PerFedAvgClient(FedAvgClient):
    """Trains a copy of the global model for adaptation; adapts a second copy, which is evaluated and discarded."""

    def __init__(self, settings: PerFedAvg, federation: Federation) -> None:
        super().__init__(federation)
        self.settings = settings

    def train(self, context: ClientContext, round: int) -> float:
        """Train the copy; the loss is that of the second halves after adaptation to the first."""
        network, w, alpha = context.network, self.model.clone(), self._alpha(context, round)
        sgd = MomentumSGD(w, context.experiment, round)

        def step(x: Tensor, y: Tensor) -> Tensor:
            if context.private is None:
                first, second = ((x[half], y[half]) for half in halves(len(y)))
            else:
                first, second = context.private.halves(x, y)
            network.vector.copy_(w)
            gradient(network, *first)
            network.vector.add_(network.gradient, alpha=-alpha)
            loss = gradient(network, *second)
            sgd.step(network.gradient)
            return loss

        # Both passes leave their mark on BatchNorm's statistics, so that these are of all samples, as in FedAvg.
        loss = run_epochs(context, round, step)
        check_finite("model", w)
        self.model = w
        return loss

    def finetune(self, context: ClientContext, round: int) -> Tensor:
        """Adapt a copy of the global model to the local data."""
        network, alpha = context.network, self._alpha(context, round)
        adapted = network.vector.copy_(self.model)

        def step(x: Tensor, y: Tensor) -> Tensor:
            loss = gradient(network, x, y)
            adapted.add_(network.gradient, alpha=-alpha)
            return loss

        run_epochs(context, round, step, self.settings.adaptation_epochs)
        check_finite("adapted model", adapted)
        return adapted.clone()

    def _alpha(self, context: ClientContext, round: int) -> float:
        """Return α in a round."""
        alpha, experiment = self.settings.alpha, context.experiment
        return experiment.learning_rate(round) if alpha is None else alpha * experiment.decay(round)


def halves(samples: int) -> tuple[slice, slice]:
    """Return where B1 and B2 are in a batch."""
    if samples < SMALLEST_CUT:
        return slice(None), slice(None)
    return slice(samples // 2), slice(samples // 2, None)
