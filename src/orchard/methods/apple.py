"""APPLE: adaptively learning to personalise.

J. Luo and S. Wu, "Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning",
IJCAI 2022, https://arxiv.org/abs/2110.08394

The server keeps one core model C_j for each client and nothing else. Client i keeps its core w_i, its
directed relationships p_i (which never leave it) and its last copies Ĉ_j of the other cores. Each step:

    w^p = p_ii·w_i + Σ_{j≠i} p_ij·Ĉ_j                 the personalised model
    g   = ∇L(w^p)                                     one forward and backward of one network
    w_i steps on   p_ii·g                             with learning rate η1
    p_i steps on   ⟨g, W_j⟩ + λ(r)·μ·(p_ij − p0_j)    with learning rate η2; W_i = w_i, W_j = Ĉ_j

Rounds r count from 0. Momentum and decay of both learning rates are the experiment's.

w^p is linear in (w_i, p_i), so by the chain rule both gradients are exact for any architecture. p0_j = n_j/n.
λ fades from 1 to 0 over the first L = int(R·scheduler_fraction) rounds, like a cosine or as 10^(−3r/L).

Two settings depart from the paper, to see what they change where APPLE hardly starts. N independent first cores mixed
by n_j/n almost cancel: `initial = "shared"` lets all cores start as one. A step on p_ii·g moves w^p by p_ii²·η1·g, a
hundredth of a plain step for p_ii = 0.1: with `steps = "full"` w_i steps on g.

A third departs from it to save work. Each step reads all cores twice, once to mix them and once for ⟨g, W_j⟩; with
large networks and small batches that takes longer than forward and backward. With `relationships_every = k` p_i steps
after k batches, on the sum of their gradients, and the others' share Σ_{j≠i} p_ij·Ĉ_j stays as it is in between.

With a budget M < N−1 a client downloads M cores per round: first those it never had (ties at random), then
others drawn without replacement with weights b^|p_ij|, b = max(1.5, r·M/N). Of the rest it keeps its last copies.

The defaults are the paper's for MNIST, practical split. In an experiment with `robust = true` cores that spoil w^p on
the client's validation data count as zero for a round (see `screening.py`).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from orchard.core.contract import Client, Diagnostics, Download, Server, Vectors
from orchard.core.federation import Federation
from orchard.core.training import ClientContext, MomentumSGD, check_finite, gradient, run_epochs
from orchard.core.vector import Network
from orchard.experiment import Experiment
from orchard.method import MethodSettings, Traffic
from orchard.methods.limits import check_budget, check_convergence
from orchard.methods.screening import spoilers
from orchard.randomness import generator


def core_of(client: int) -> str:
    """Name the core model of a client."""
    return f"core {client}"


class Apple(MethodSettings):
    """Each client learns how much of every other client's core to mix into its own model."""

    withstands: ClassVar[bool] = True
    travels: ClassVar[str] = "the others' cores down (M of them with a budget), its core up"
    keeps: ClassVar[str] = "its directed relationships"
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"relationship_lr": (1e-4, 1e-3, 1e-2), "mu": (0.01, 0.1, 1.0)}
    name: Literal["apple"] = "apple"
    relationship_lr: float = Field(default=1e-3, ge=0, allow_inf_nan=False, description="η2")
    mu: float = Field(default=0.01, ge=0, allow_inf_nan=False, description="μ, the weight of the proximal term")
    scheduler: Literal["cos", "exp"] = Field(default="cos", description="how λ fades")
    scheduler_fraction: float = Field(default=0.3, ge=0, le=1, description="L as a share of all rounds")
    budget: int | None = Field(default=None, ge=1, description="M, cores downloaded per round; none: all")
    initial: Literal["independent", "shared"] = Field(default="independent", description="the first cores")
    steps: Literal["paper", "full"] = Field(default="paper", description="what a core steps on: p_ii·g, or g")
    relationships_every: int = Field(default=1, ge=1, description="batches a step of p_i; more save work")
    selection: Literal["paper", "uniform"] = Field(default="paper", description="which cores, under a budget")

    def check(self, experiment: Experiment) -> None:
        """Raise if the budget is no limit, or if SGD diverges on the proximal term."""
        check_budget(self.budget, experiment)
        if experiment.robust and experiment.privacy is not None:
            raise ValueError(
                "robust = true: leaves cores out by exact validation losses; [privacy] does not allow that"
            )
        strength = self.relationship_lr * self.mu * self.proximal_weight(0, experiment.rounds)
        every, product = self.relationships_every, "relationship_lr × mu"
        product += " × relationships_every" if every > 1 else ""
        check_convergence("mu", self.mu, strength * every, product, experiment)

    def proximal_weight(self, round: int, rounds: int) -> float:
        """λ(r)."""
        last = int(rounds * self.scheduler_fraction)
        if round >= last:
            return 0.0
        if self.scheduler == "cos":
            return (math.cos(math.pi * round / last) + 1) / 2
        return float(10 ** (-3 * round / last))

    def first_core(self, client: int, federation: Federation) -> Tensor:
        """Return the core that a client starts with."""
        return federation.initial_core(client) if self.initial == "independent" else federation.initial_model()

    def traffic(self, federation: Federation) -> Traffic:
        """Let core models travel, and nothing else."""
        cores = {core_of(j): federation.parameters for j in range(federation.clients)}
        return Traffic(down=cores, up={"core": federation.parameters})

    def client(self, index: int, federation: Federation) -> "AppleClient":
        """Make a client."""
        return AppleClient(self, index, federation)

    def server(self, federation: Federation) -> "AppleServer":
        """Make the server."""
        return AppleServer(self, federation)


class AppleClient(Client):
    """A core model, the directed relationships, and the last copies of the others' cores."""

    state_keys: tuple[str, ...] = ("core", "relationships")

    def __init__(self, settings: Apple, index: int, federation: Federation) -> None:
        self.settings, self.index, self.experiment = settings, index, federation.experiment
        self.core = settings.first_core(index, federation)
        self.p0 = torch.tensor(federation.shares, dtype=self.core.dtype, device=self.core.device)
        self.relationships = self.p0.clone()
        self.others = [j for j in range(federation.clients) if j != index]
        self.copies: list[Tensor | None] = [None] * federation.clients
        self.downloaded: frozenset[int] = frozenset()
        self.left_out: list[int] = []
        if self.experiment.robust:
            self.state_keys = (*self.state_keys, "left_out")
        if settings.budget is None:  # all cores are downloaded every round
            self.round_keys = ("copies",)
        else:
            self.state_keys = (*self.state_keys, "copies", "downloaded")
            firsts = [settings.first_core(j, federation) for j in range(federation.clients)]
            self.copies = [None if j == index else core for j, core in enumerate(firsts)]

    def select(self, round: int) -> Sequence[str]:
        """Ask for all others' cores, or for M of them."""
        budget = self.settings.budget
        return [core_of(j) for j in (self.others if budget is None else self._chosen(round, budget))]

    def _chosen(self, round: int, budget: int) -> list[int]:
        """Choose M cores: first those never had, then by the strength of the relationship."""
        # The largest keys |p|·ln b + Gumbel noise are a draw without replacement with weights b^|p|.
        keys = generator(self.experiment.seed, "cores", self.index, round).gumbel(size=len(self.others))
        never_had = np.zeros(len(self.others), dtype=bool)
        if self.settings.selection == "paper":
            base = max(1.5, round * budget / len(self.copies))
            strength = self.relationships[self.others].abs().cpu().double().numpy()
            never_had = np.array([j not in self.downloaded for j in self.others])
            keys += np.where(never_had, 0, math.log(base) * strength)
        ranking = np.lexsort((keys, never_had))
        return sorted(self.others[k] for k in ranking[-budget:])

    def receive(self, context: ClientContext, download: Download) -> None:
        """Replace the copies of the downloaded cores; keep the others."""
        self.copies = [download.vectors.get(core_of(j), copy) for j, copy in enumerate(self.copies)]
        if any(self.copies[j] is None for j in self.others):
            raise ValueError("the download lacks core models that were asked for")
        if self.settings.budget is not None:
            self.downloaded |= {j for j in self.others if core_of(j) in download.vectors}
        if self.experiment.robust:
            self._leave_out(context)

    def _leave_out(self, context: ClientContext) -> None:
        """Let cores that spoil the mixture count as zero in this round."""
        cores = [self.core if copy is None else copy for copy in self.copies]
        self.left_out = spoilers(context, self.relationships, cores, self.index)
        nothing = torch.zeros_like(self.core)
        self.copies = [nothing if j in self.left_out else copy for j, copy in enumerate(self.copies)]

    def train(self, context: ClientContext, round: int) -> float:
        """Train the core and the relationships together."""
        network, settings, i = context.network, self.settings, self.index
        w, p = self.core.clone(), self.relationships.clone()
        mixing = Mixing(network, context.stack(self.copies), i, w, p, settings.relationships_every)
        w_sgd = MomentumSGD(w, self.experiment, round)
        p_sgd = MomentumSGD(p, self.experiment, round, lr=settings.relationship_lr)
        full = settings.steps == "full"
        proximal = settings.mu * settings.proximal_weight(round, self.experiment.rounds)

        def p_step(batches: int, products: Tensor) -> None:
            p_sgd.step(products.add_(p - self.p0, alpha=batches * proximal))

        def step(x: Tensor, y: Tensor) -> Tensor:
            mixing.mix()
            loss = gradient(network, x, y)
            g = network.gradient
            mixing.add(g)
            due = mixing.take() if mixing.batches == settings.relationships_every else None
            w_sgd.step(g if full else g.mul_(p[i]))
            if due:
                p_step(*due)
            return loss + 0 * p.sum()  # not finite if p is not, so that the step is named

        loss = run_epochs(context, round, step)
        if mixing.batches:
            p_step(*mixing.take())
        check_finite("core model", w)
        check_finite("vector of directed relationships", p)
        self.core, self.relationships = w, p
        return loss

    def personalised(self) -> Tensor:
        """Return w^p."""
        if any(self.copies[j] is None for j in self.others):
            raise RuntimeError("without a budget the cores of others are there within a round only")
        mixed = self.core * self.relationships[self.index]
        for copy, p in zip(self.copies, self.relationships, strict=True):
            if copy is not None:
                mixed.addcmul_(copy, p)
        return mixed

    def upload(self) -> Vectors:
        """Return the core model, never the personalised one."""
        return {"core": self.core}

    def diagnostics(self) -> Diagnostics:
        """Return p_i, which only a simulation sees, and whose cores were left out."""
        left_out = {"left_out": [float(j in self.left_out) for j in range(len(self.copies))]}
        return {"relationships": self.relationships.tolist(), **(left_out if self.experiment.robust else {})}


class Mixing:
    """The mixture of a client that trains, and the products of its gradients with all cores.

    Row i of the copies is not used: w, which changes, takes its place.
    """

    def __init__(self, network: Network, copies: Tensor, i: int, w: Tensor, p: Tensor, every: int) -> None:
        self.network, self.copies, self.i, self.w, self.p = network, copies, i, w, p
        self.not_self = torch.ones_like(p)
        self.not_self[i] = 0
        self.batches = 0
        self.own = torch.zeros_like(p[i])
        # If p steps at each batch, neither has to outlast it.
        self.others = network.vector if every == 1 else torch.empty_like(w)
        self.sum = network.gradient if every == 1 else torch.empty_like(w)

    def mix(self) -> None:
        """Make w^p; the others' share is made anew once p has changed."""
        if self.batches == 0:
            torch.mv(self.copies.t(), self.p * self.not_self, out=self.others)
        torch.addcmul(self.others, self.w, self.p[self.i], out=self.network.vector)

    def add(self, g: Tensor) -> None:
        """Add a batch's gradient."""
        self.own.add_(torch.dot(self.w, g))
        if self.sum is not g:
            (self.sum.add_ if self.batches else self.sum.copy_)(g)
        self.batches += 1

    def take(self) -> tuple[int, Tensor]:
        """Return how many batches were added, and Σ⟨g, W_j⟩ over them; begin anew."""
        batches, products = self.batches, torch.mv(self.copies, self.sum)
        products[self.i] = self.own
        self.batches = 0
        self.own.zero_()
        return batches, products


class AppleServer(Server):
    """The core models, and nothing else."""

    state_keys = ("cores",)

    def __init__(self, settings: Apple, federation: Federation) -> None:
        self.cores = [settings.first_core(j, federation) for j in range(federation.clients)]

    def send(self, client: int, selected: Sequence[str]) -> Vectors:
        """Return the cores that a client selected."""
        return {core_of(j): core for j, core in enumerate(self.cores) if core_of(j) in selected}

    def aggregate(self, uploads: Mapping[int, Vectors]) -> None:
        """Replace the cores that were uploaded."""
        self.cores = [uploads[j]["core"] if j in uploads else core for j, core in enumerate(self.cores)]
