"""FedFomo: each client weighs other clients' models by how much they lower its own validation loss.

M. Zhang et al., "Personalized Federated Learning with First Order Model Optimization", ICLR 2021,
    https://arxiv.org/abs/2012.08565

The server keeps the latest trained models. Client i keeps θ_i and its base θ_i⁻, the model before its last local
training. From the second round on it takes as candidates its M downloads and its own trained model:

    a_n = (L_val(θ_i⁻) − L_val(θ_n)) / (‖θ_n − θ_i⁻‖ + 1e-8)      0 if the distance is below 1e-12
    ã = max(a, 0);   θ_i ← Σ_n (ã_n/Σã)·θ_n,  or θ_i⁻ if no candidate is better

The result is the new base; the client trains it and uploads it. In the first round all train one initial model.

With a budget M < N−1 a client keeps affinities P_i += a/|Σa| (itself 0.1 at the start, others 0). Each of the M
downloads is a random other client's with probability max(0, 0.3 − 0.05·r), else the one of highest affinity.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from orchard.core.contract import Client, Diagnostics, Download, Server, Vectors
from orchard.core.evaluation import Scores
from orchard.core.federation import Federation
from orchard.core.training import ClientContext, local_sgd
from orchard.experiment import Experiment
from orchard.method import MethodSettings, Moment, Queries, Traffic
from orchard.methods.limits import check_budget
from orchard.randomness import generator


def model_of(client: int) -> str:
    """Name the model of a client."""
    return f"model {client}"


class FedFomo(MethodSettings):
    """Each client weighs the others' models by how much they lower its validation loss."""

    withstands: ClassVar[bool] = True  # always: what raises the validation loss has no weight
    travels: ClassVar[str] = "the others' models down (M of them with a budget), its model up"
    keeps: ClassVar[str] = "its base, and whom it turns to"
    name: Literal["fedfomo"] = "fedfomo"
    budget: int | None = Field(default=None, ge=1, description="M, models downloaded per round; none: all")

    def check(self, experiment: Experiment) -> None:
        """Raise if the budget is no limit."""
        check_budget(self.budget, experiment)

    def traffic(self, federation: Federation) -> Traffic:
        """Let every client's model travel to the others."""
        models = {model_of(j): federation.parameters for j in range(federation.clients)}
        return Traffic(down=models, up={"model": federation.parameters})

    def queries(self, experiment: Experiment, samples: int, round: int) -> Queries:
        """Add the validation losses of the base, the client's own model, and M others."""
        others = self.budget or experiment.clients - 1
        return replace(super().queries(experiment, samples, round), validation_losses=others + 2 if round else 0)

    def client(self, index: int, federation: Federation) -> "FedFomoClient":
        """Make a client."""
        return FedFomoClient(self, index, federation)

    def server(self, federation: Federation) -> "FedFomoServer":
        """Make the server."""
        return FedFomoServer(federation)


class FedFomoClient(Client):
    """The client's model, its base, their validation losses if known, and the affinities and weights of the others."""

    state_keys = ("model", "base", "model_loss", "base_loss", "affinity", "weights")

    def __init__(self, settings: FedFomo, index: int, federation: Federation) -> None:
        self.index, self.seed = index, federation.experiment.seed
        self.others = [j for j in range(federation.clients) if j != index]
        self.budget = settings.budget or len(self.others)
        self.limited = self.budget < len(self.others)
        self.model = self.base = federation.initial_model()
        self.model_loss: float | None = None
        self.base_loss: float | None = None
        self.affinity = np.zeros(federation.clients)
        self.affinity[index] = 0.1
        self.weights = np.eye(federation.clients)[index]

    def select(self, round: int) -> Sequence[str]:
        """Ask for the models of M others; in the first round nobody has trained one yet."""
        if round == 0:
            return ()
        return [model_of(j) for j in (self._chosen(round) if self.limited else self.others)]

    def _chosen(self, round: int) -> list[int]:
        """Choose M others, by affinity or at random."""
        draw = generator(self.seed, "models", self.index, round)
        left, chosen = list(self.others), []
        for _ in range(self.budget):
            explore = draw.random() < max(0.0, 0.3 - 0.05 * round)
            best = self.affinity[left].max()
            candidates = left if explore else [j for j in left if self.affinity[j] == best]
            chosen.append(int(draw.choice(candidates)))
            left.remove(chosen[-1])
        return sorted(chosen)

    def receive(self, context: ClientContext, download: Download) -> None:
        """Mix the candidates into the new base."""
        if download.round == 0:
            return
        others = {j: download.vectors[model_of(j)] for j in self.others if model_of(j) in download.vectors}
        candidates = {**others, self.index: self.model}
        worth = self._worth(context, candidates)
        if self.limited and (total := abs(sum(worth.values()))) > 0:
            self.affinity = self.affinity.copy()
            for j, a in worth.items():
                self.affinity[j] += a / total
        positive = {j: max(a, 0.0) for j, a in worth.items()}
        scale = sum(positive.values())
        self.weights = np.zeros(len(self.weights))
        if scale > 0:
            mixture = torch.zeros_like(self.base)
            for j in sorted(positive):
                if positive[j] > 0:  # 0 × infinity is not 0
                    self.weights[j] = positive[j] / scale
                    mixture.add_(candidates[j], alpha=self.weights[j])
            self.base = mixture
        self.model, self.model_loss, self.base_loss = self.base, None, None

    def _worth(self, context: ClientContext, candidates: Mapping[int, Tensor]) -> dict[int, float]:
        """Return a_n of every candidate, from validation data only.

        Without a budget there are no affinities, so every candidate worse than the base counts as 0, and its
        evaluation can stop early.
        """
        base_loss = _loss(context, self.base, self.base_loss)
        limit = math.inf if self.limited else base_loss
        worth = {}
        for j, candidate in candidates.items():
            known = self.model_loss if j == self.index else None
            gain = base_loss - _loss(context, candidate, known, limit)
            worth[j] = _per_distance(gain, candidate, self.base) if math.isfinite(gain) else 0.0
        return worth

    def on_evaluated(self, moment: Moment, scores: Scores) -> None:
        """Keep the losses of base and model for the next round, which saves two evaluations."""
        if moment == "after_aggregation":
            self.base_loss = scores.loss
        elif moment == "after_training":
            self.model_loss = scores.loss

    def train(self, context: ClientContext, round: int) -> float:
        """Train from the base."""
        self.model, loss = local_sgd(context, round, self.base)
        if context.network.buffers():
            self.base_loss = None  # was measured with BatchNorm statistics that training has changed
        return loss

    def personalised(self) -> Tensor:
        """Return the client's model: trained, or the mixture just made."""
        return self.model

    def upload(self) -> Vectors:
        """Return the client's model."""
        return {"model": self.model}

    def diagnostics(self) -> Diagnostics:
        """Return the weights of the last mixture."""
        return {"relationships": self.weights.tolist()}


def _loss(context: ClientContext, model: Tensor, known: float | None, limit: float = math.inf) -> float:
    return context.loss(model, "validation", limit) if known is None else known


def _per_distance(gain: float, candidate: Tensor, base: Tensor) -> float:
    distance = torch.linalg.vector_norm(candidate - base).item()
    return gain / (distance + 1e-8) if 1e-12 <= distance < math.inf else 0.0


class FedFomoServer(Server):
    """The latest trained models."""

    state_keys = ("models",)

    def __init__(self, federation: Federation) -> None:
        self.models = [federation.initial_model()] * federation.clients

    def send(self, client: int, selected: Sequence[str]) -> Vectors:
        """Return the models that a client selected."""
        return {model_of(j): model for j, model in enumerate(self.models) if model_of(j) in selected}

    def aggregate(self, uploads: Mapping[int, Vectors]) -> None:
        """Replace the models that were uploaded."""
        self.models = [uploads[j]["model"] if j in uploads else model for j, model in enumerate(self.models)]
