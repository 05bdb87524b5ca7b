"""FedFomo: each client weighs other clients' models by how much they lower its own validation loss.

M. Zhang et al., "Personalized Federated Learning with First Order Model Optimization", ICLR 2021.

The server keeps the latest trained models. Client i keeps θ_i and its base θ_i⁻, the model before its last local
training. From the second round on it takes as candidates its M downloads and its own trained model:

    a_n = (L_val(θ_i⁻) − L_val(θ_n)) / (‖θ_n − θ_i⁻‖ + 1e-8)      0 where the distance is below 1e-12
    ã = max(a, 0);   θ_i ← Σ_n (ã_n/Σã)·θ_n,  or θ_i⁻ if no candidate is better

The result is the new base; the client trains it and uploads it. In the first round all train one initial model.

With a budget M < N−1 a client keeps affinities P_i += a/|Σa| (itself 0.1 at the start, others 0). Each of the M
downloads is a random other client's with probability max(0, 0.3 − 0.05·r), else the one of highest affinity.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from orchard.contract import Client, Federation, Notes, Reply, Server, Upload
from orchard.experiment import Experiment, MethodSettings, Moment
from orchard.methods.limits import refuse_budget
from orchard.randomness import generator
from orchard.training import Scores, Site, descend, mean_loss


class FedFomo(MethodSettings):
    """FedFomo's parameters."""

    name: Literal["fedfomo"] = "fedfomo"
    budget: int | None = Field(default=None, ge=1, description="M, models downloaded a round; none: all")

    def check(self, experiment: Experiment) -> None:
        """Refuse a budget that is no limit."""
        refuse_budget(self.budget, experiment)

    def client(self, index: int, federation: Federation) -> "FedFomoClient":
        """Make the client half."""
        return FedFomoClient(self, index, federation)

    def server(self, federation: Federation) -> "FedFomoServer":
        """Make the server half."""
        return FedFomoServer(federation)


class FedFomoClient(Client):
    """The own model, its base, their validation losses where known, and how much the others' were worth so far."""

    keeps = ("model", "base", "model_loss", "base_loss", "affinity", "weights")

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

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state; one that was saved before losses were kept has them computed anew."""
        super().restore({"model_loss": None, "base_loss": None, **state})

    def wants(self, round: int) -> tuple[int, ...]:
        """Choose M others; in the first round nobody has anything to give yet."""
        if round == 0:
            return ()
        if not self.limited:
            return tuple(self.others)
        draw = generator(self.seed, "models", self.index, round)
        left, chosen = list(self.others), []
        for _ in range(self.budget):
            explore = draw.random() < max(0.0, 0.3 - 0.05 * round)
            best = self.affinity[left].max()
            candidates = left if explore else [j for j in left if self.affinity[j] == best]
            chosen.append(int(draw.choice(candidates)))
            left.remove(chosen[-1])
        return tuple(sorted(chosen))

    def receive(self, site: Site, reply: Reply) -> None:
        """Mix the candidates into the new base."""
        if reply.round == 0:
            return
        candidates = {**reply.models, self.index: self.model}
        worth = self._worth(site, candidates)
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
                if positive[j] > 0:  # nothing of what is worth nothing, however large it is
                    self.weights[j] = positive[j] / scale
                    mixture.add_(candidates[j], alpha=self.weights[j])
            self.base = mixture
        self.model, self.model_loss, self.base_loss = self.base, None, None

    def _worth(self, site: Site, candidates: Mapping[int, Tensor]) -> dict[int, float]:
        """Return a_n of every candidate, from validation data alone.

        Without a budget no affinities are kept, and how much worse than the base a candidate is makes no difference:
        it counts as 0, and need not be run over all of the data.
        """
        base_loss = _loss(site, self.base, self.base_loss)
        limit = math.inf if self.limited else base_loss
        worth = {}
        for j, candidate in candidates.items():
            known = self.model_loss if j == self.index else None
            gain = base_loss - _loss(site, candidate, known, limit)
            worth[j] = _per_distance(gain, candidate, self.base) if math.isfinite(gain) else 0.0
        return worth

    def measured(self, moment: Moment, scores: Scores) -> None:
        """Keep the losses of base and model, with which the next round begins: two models less to run."""
        if moment == "exchanged":
            self.base_loss = scores.loss
        elif moment == "trained":
            self.model_loss = scores.loss

    def train(self, site: Site, round: int) -> float:
        """Train from the base."""
        self.model, loss = descend(site, round, self.base)
        if site.network.buffers():
            self.base_loss = None  # it was measured with statistics that training has moved
        return loss

    def personalised(self) -> Tensor:
        """Return the own model: trained, or the mixture just made."""
        return self.model

    def upload(self) -> Tensor:
        """Return the own model."""
        return self.model

    def notes(self) -> Notes:
        """Return the weights of the last mixture."""
        return {"relationships": self.weights.tolist()}


def _loss(site: Site, model: Tensor, known: float | None, limit: float = math.inf) -> float:
    return mean_loss(site.network, model, site.data.validation, limit) if known is None else known


def _per_distance(gain: float, candidate: Tensor, base: Tensor) -> float:
    distance = torch.linalg.vector_norm(candidate - base).item()
    return gain / (distance + 1e-8) if 1e-12 <= distance < math.inf else 0.0


class FedFomoServer(Server):
    """The latest trained models."""

    keeps = ("models",)

    def __init__(self, federation: Federation) -> None:
        self.models = [federation.initial_model()] * federation.clients

    def reply(self, client: int, wants: tuple[int, ...]) -> Mapping[int, Tensor]:
        """Return the models a client asked for; its own it has already."""
        return {j: self.models[j] for j in wants if j != client}

    def collect(self, uploads: Mapping[int, Upload]) -> None:
        """Replace the models that were uploaded."""
        self.models = [uploads[j].vector if j in uploads else model for j, model in enumerate(self.models)]
