"""FedALA: each client learns, for every parameter of its last layers, how far to go towards the global model.

J. Zhang, Y. Hua, H. Wang, T. Song, Z. Xue, R. Ma, H. Guan, "FedALA: Adaptive Local Aggregation for Personalized
    Federated Learning", AAAI 2023,
    https://arxiv.org/abs/2212.01197

    θ̂_i = θ_i + (θ − θ_i)⊙W_i            in the last p layers; θ in the rest
    W_i ← clip(W_i − η_W·∇_W F_i(θ̂_i), 0, 1),   ∇_W F_i = ∇F_i(θ̂_i)⊙(θ − θ_i)      for each batch of a part of the data
    θ_i ← E epochs of momentum SGD from θ̂_i;   θ ← Σ_i (n_i/n)·θ_i

θ_i is the client's model as last trained, θ the global one. W_i is 1 at first and never leaves the client. It is
learned when θ arrives: the first time until the standard deviation of the last 10 epochs' losses is below 0.1, or 100
epochs have passed; later for one epoch a round. A client that has not trained yet takes over θ. The part is s % of the
training data, drawn each round and rounded up to whole batches, so that none is smaller than in training; under privacy
it is all data, for one epoch in the first time too. A layer is a module that has parameters of its own. With W_i = 1
this is FedAvg-local; with W_i = 0 in all layers, Separate.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import pstdev
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from orchard.core.contract import Download
from orchard.core.federation import Federation
from orchard.core.training import ClientContext, gradient, run_epochs
from orchard.experiment import Experiment
from orchard.method import Queries
from orchard.methods.fedavg import Averaging, FedAvgClient
from orchard.randomness import generator

LAST_LOSSES, STILL, MOST_EPOCHS = 10, 0.1, 100
"""W has converged if the standard deviation of the last losses is below this; the paper sets no limit on epochs."""


class FedALA(Averaging):
    """Each client learns how far to go from its own model towards the average, parameter by parameter."""

    keeps: ClassVar[str] = "its weights W, and its last model before the exchange"
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"layers": (1, 2), "weights_lr": (0.1, 1.0)}
    name: Literal["fedala"] = "fedala"
    layers: int = Field(default=1, ge=1, description="p, the last layers that have weights; if there are fewer, all")
    percent: float = Field(default=80.0, gt=0, le=100, description="s, how much of the training data W is learned on")
    weights_lr: float = Field(default=1.0, ge=0, allow_inf_nan=False, description="η_W, the learning rate of W")

    def queries(self, experiment: Experiment, samples: int, round: int) -> Queries:
        """Add the epoch in which W is learned."""
        asked = super().queries(experiment, samples, round)
        return replace(asked, batches=asked.batches + (experiment.batches(samples, 1) if round else 0))

    def client(self, index: int, federation: Federation) -> "FedALAClient":
        """Make a client."""
        return FedALAClient(self, federation)


class FedALAClient(FedAvgClient):
    """A model that meets the global one half way; W is None before it is first learned."""

    state_keys = ("model", "trained", "weights")

    def __init__(self, settings: FedALA, federation: Federation) -> None:
        super().__init__(federation)
        self.settings = settings
        self.adapted = federation.layout.last_layers(settings.layers)
        self.trained = False
        self.weights: Tensor | None = None

    def receive(self, context: ClientContext, download: Download) -> None:
        """Learn W and go towards the global model; the BatchNorm statistics stay those of the trained model."""
        received = download.vectors["model"]
        if self.trained:
            with context.network.preserved_buffers():
                self.model, self.weights = self._learn(context, received, download.round)
        else:
            self.model = received

    def _learn(self, context: ClientContext, received: Tensor, round: int) -> tuple[Tensor, Tensor]:
        """Return θ̂ and W."""
        network, rate = context.network, self.settings.weights_lr
        own, shared = self.adapted.of(self.model), self.adapted.of(received)
        weights = torch.ones_like(own) if self.weights is None else self.weights.clone()

        def mixed() -> Tensor:
            return self.adapted.replaced(received, torch.lerp(own, shared, weights))

        def step(x: Tensor, y: Tensor) -> Tensor:
            network.vector.copy_(mixed())
            loss = gradient(network, x, y)
            slope = self.adapted.of(network.gradient) * (shared - own)
            weights.sub_(slope, alpha=rate).clamp_(0, 1)
            return loss

        part, losses = self._part(context, round), list[float]()
        # Under privacy nobody may look at the losses to see when to stop.
        for _ in range(MOST_EPOCHS if self.weights is None and context.private is None else 1):
            losses.append(run_epochs(part, round, step, epochs=1))
            if len(losses) >= LAST_LOSSES and pstdev(losses[-LAST_LOSSES:]) < STILL:
                break
        return mixed(), weights

    def _part(self, context: ClientContext, round: int) -> ClientContext:
        """Return the context with a random part of the training data, of whole batches."""
        if context.private is not None:
            return context  # whose batches are random parts of all data
        train, batch = context.data.train, context.experiment.batch_size
        batches = math.ceil(len(train.y) * self.settings.percent / 100 / batch)
        draw = generator(context.experiment.seed, "fedala", context.client, round)
        part = train.take(draw.permutation(len(train.y))[: batches * batch])
        return replace(context, data=replace(context.data, train=part))

    def train(self, context: ClientContext, round: int) -> float:
        """Train from θ̂."""
        self.trained = True
        return super().train(context, round)
