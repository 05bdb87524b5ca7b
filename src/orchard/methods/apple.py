"""APPLE: adaptively learning to personalise.

J. Luo and S. Wu, "Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning",
IJCAI 2022.

The server keeps one core model C_j for each client and nothing else. Client i keeps its core w_i, its
directed relationships p_i (which never leave it) and its last copies Ĉ_j of the other cores. Each step:

    w^p = p_ii·w_i + Σ_{j≠i} p_ij·Ĉ_j                 the personalised model
    g   = ∇L(w^p)                                     one forward and backward of one network
    w_i steps on   p_ii·g                             with learning rate η1
    p_i steps on   ⟨g, W_j⟩ + λ(r)·μ·(p_ij − p0_j)    with learning rate η2; W_i = w_i, W_j = Ĉ_j

w^p is linear in (w_i, p_i), so by the chain rule both gradients are exact for any architecture. p0_j = n_j/n.
λ fades from 1 to 0 over the first L = int(R·scheduler_fraction) rounds, like a cosine or as 10^(−3r/L).

With a budget M < N−1 a client downloads M cores a round: first those it never had (ties at random), then
others drawn without replacement with weights b^|p_ij|, b = max(1.5, r·M/N).
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from orchard.contract import Client, Federation, Notes, Reply, Server, Upload
from orchard.experiment import Experiment, MethodSettings
from orchard.methods.limits import refuse_budget, refuse_divergence
from orchard.randomness import generator
from orchard.training import MomentumSGD, Site, check_finite, gradient, train
from orchard.vector import empty_matrix, shared_matrix


class Apple(MethodSettings):
    """APPLE's parameters; the defaults are the paper's for MNIST, practical split."""

    name: Literal["apple"] = "apple"
    relationship_lr: float = Field(default=1e-3, ge=0, allow_inf_nan=False, description="η2")
    mu: float = Field(default=0.01, ge=0, allow_inf_nan=False, description="μ, the weight of the proximal term")
    scheduler: Literal["cos", "exp"] = Field(default="cos", description="how λ fades")
    scheduler_fraction: float = Field(default=0.3, ge=0, le=1, description="L as a share of all rounds")
    budget: int | None = Field(default=None, ge=1, description="M, cores downloaded a round; none: all")
    selection: Literal["paper", "uniform"] = Field(default="paper", description="which cores, under a budget")

    def check(self, experiment: Experiment) -> None:
        """Refuse a budget that is no limit, and a proximal term on which SGD diverges."""
        refuse_budget(self.budget, experiment)
        strength = self.relationship_lr * self.mu * self.proximal_weight(0, experiment.rounds)
        refuse_divergence("mu", self.mu, strength, "relationship_lr × mu")

    def proximal_weight(self, round: int, rounds: int) -> float:
        """λ(r)."""
        last = int(rounds * self.scheduler_fraction)
        if round >= last:
            return 0.0
        if self.scheduler == "cos":
            return (math.cos(math.pi * round / last) + 1) / 2
        return float(10 ** (-3 * round / last))

    def client(self, index: int, federation: Federation) -> "AppleClient":
        """Make the client half."""
        return AppleClient(self, index, federation)

    def server(self, federation: Federation) -> "AppleServer":
        """Make the server half."""
        return AppleServer(self, federation)


class AppleClient(Client):
    """A core model, the directed relationships, and the last copies of the others' cores.

    Without a budget the others' cores come anew every round. Then their copies go once they have been trained with,
    and what they gave, the personalised model, stays instead: one model to hold and to save rather than N − 1.
    """

    keeps = ("core", "relationships", "copies", "downloaded", "trained")

    def __init__(self, settings: Apple, index: int, federation: Federation) -> None:
        self.settings = settings
        self.limited = settings.budget is not None
        self.index = index
        self.experiment = federation.experiment
        self.core = federation.initial_core(index)
        self.prox_centre = torch.tensor(federation.shares, dtype=self.core.dtype, device=self.core.device)
        self.relationships = self.prox_centre.clone()
        self.others = torch.ones_like(self.relationships)
        self.others[index] = 0
        self.copies = [None if j == index else federation.initial_core(j) for j in range(federation.clients)]
        self.downloaded: frozenset[int] = frozenset()
        self.trained: Tensor | None = None

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state; one that was saved before there was `trained` has its copies still."""
        super().restore({"trained": None, **state})

    def wants(self, round: int) -> tuple[int, ...]:
        """Choose at most M cores: the ones never had, then by the strength of the relationship."""
        others = [j for j in range(len(self.copies)) if j != self.index]
        budget = self.settings.budget
        if budget is None:
            return tuple(others)
        # Largest keys |p|·ln b + Gumbel noise: a draw without replacement with weights b^|p|. Those never had come
        # before, and all alike.
        keys = generator(self.experiment.seed, "cores", self.index, round).gumbel(size=len(others))
        never_had = np.zeros(len(others), dtype=bool)
        if self.settings.selection == "paper":
            base = max(1.5, round * budget / len(self.copies))
            strength = self.relationships[others].abs().cpu().double().numpy()
            never_had = np.array([j not in self.downloaded for j in others])
            keys += np.where(never_had, 0, math.log(base) * strength)
        ranking = np.lexsort((keys, never_had))
        return tuple(sorted(others[k] for k in ranking[-budget:]))

    def receive(self, site: Site, reply: Reply) -> None:
        """Replace the copies of the cores that came; the others stay as they were."""
        self.copies = [reply.models.get(j, copy) for j, copy in enumerate(self.copies)]
        if any(copy is None for j, copy in enumerate(self.copies) if j != self.index):
            raise ValueError("the reply lacks core models that were asked for")
        self.downloaded |= reply.models.keys()
        self.trained = None
        # In one process the server's matrix holds the own core too; then one of the two is enough.
        shared = shared_matrix(self.copies)
        if shared is not None and torch.equal(shared[self.index], self.core):
            self.core = shared[self.index]

    def train(self, site: Site, round: int) -> float:
        """Train the core and the relationships together."""
        network, settings, i = site.network, self.settings, self.index
        core, p = self.core.clone(), self.relationships.clone()
        p_gradient = torch.empty_like(p)
        copies = network.matrix(self.copies)
        core_sgd = MomentumSGD(core, self.experiment.learning_rate(round))
        p_sgd = MomentumSGD(p, settings.relationship_lr * self.experiment.decay(round))
        pull = settings.mu * settings.proximal_weight(round, self.experiment.rounds)

        def step(x: Tensor, y: Tensor) -> Tensor:
            # The own row of the copies counts for nothing: the core, which changes, stands in for it.
            torch.mv(copies.t(), p * self.others, out=network.vector)
            network.vector.addcmul_(core, p[i])
            loss = gradient(network, x, y)
            torch.mv(copies, network.gradient, out=p_gradient)
            p_gradient[i] = torch.dot(core, network.gradient)
            p_gradient.add_(p - self.prox_centre, alpha=pull)
            core_sgd.step(network.gradient.mul_(p[i]))
            p_sgd.step(p_gradient)
            return loss + 0 * p.sum()

        loss = train(site, round, step)
        check_finite("core model", core)
        check_finite("vector of directed relationships", p)
        self.core, self.relationships = core, p
        if not self.limited:
            self.trained, self.copies = self._mixed(), [None] * len(self.copies)
        return loss

    def personalised(self) -> Tensor:
        """Return w^p."""
        return self._mixed() if self.trained is None else self.trained

    def _mixed(self) -> Tensor:
        """Mix core by core: for one mixture it is not worth laying the copies side by side."""
        mixed = self.core * self.relationships[self.index]
        for copy, p in zip(self.copies, self.relationships, strict=True):
            if copy is not None:
                mixed.addcmul_(copy, p)
        return mixed

    def upload(self) -> Tensor:
        """Return the core model, never the personalised one."""
        return self.core

    def notes(self) -> Notes:
        """Return p_i, for a simulation to look at."""
        return {"relationships": self.relationships.tolist()}


class AppleServer(Server):
    """The core models, and nothing else."""

    keeps = ("cores",)

    def __init__(self, settings: Apple, federation: Federation) -> None:
        self.limited = settings.budget is not None
        if self.limited:
            self.cores = [federation.initial_core(j) for j in range(federation.clients)]
        else:
            self.cores = federation.initial_cores()

    def reply(self, client: int, wants: tuple[int, ...]) -> Mapping[int, Tensor]:
        """Return the cores a client asked for; its own it has already."""
        return {j: self.cores[j] for j in wants if j != client}

    def collect(self, uploads: Mapping[int, Upload]) -> None:
        """Replace the cores that were uploaded."""
        self.cores = [uploads[j].vector if j in uploads else core for j, core in enumerate(self.cores)]
        # Cores that everyone downloads are the rows of one matrix, which `Network.matrix` hands on uncopied. Under a
        # budget clients keep copies of different ages. Then each core stands alone, because a row that somebody still
        # holds would keep its whole matrix alive.
        if not self.limited:
            matrix = empty_matrix(len(self.cores), like=self.cores[0])
            self.cores = [row.copy_(core) for row, core in zip(matrix, self.cores, strict=True)]
