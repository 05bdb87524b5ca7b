"""Graft: every client grows on the pool of all who do not work against it. Orchard's own method.

The server keeps one core model C_j for each client, as in APPLE, and sends client i its pool and nothing else:

    u_i   = Σ_{j∈G_i} (n_j/n)·C_j               n over G_i: the client, and all whom agreement links to it
    start = u_i + s_i·(C_i − u_i)               s_i: the stock that it keeps of its own
    C_i   ← E epochs of momentum SGD from start, uploaded
    w_i   = ½·(C_i + start of the next round)   the personalised model, after the exchange

Who agrees shows in how cores leave their pools, D_i = C_i − u_i. Over the rounds in which i and j were pooled, but for
the first, in which all leave one random model and much the same way,

    ρ_ij = Σ_r ⟨D_i, D_j⟩ / √(Σ_r‖D_i‖²·Σ_r‖D_j‖²);    they agree if ρ_ij ≥ 0 or cos(ρ_i, ρ_j) ≥ 0

that is, unless they pull apart, and from the same others. A chain of clients who agree links its ends. Clients with
other labels than mine pull elsewhere, a few of them apart from me, but others link us: their pool is FedAvg's average.
Clients who mean another thing by a label pull apart from all who do not; after a few rounds nothing links the groups,
two or more of them. What is not pooled gives no new evidence of the pair: it is pooled again only if others change.

As long as its pool gets better for it, F_i(u_i) < all before, a client starts from the pool alone: s_i = 0. Else it
keeps what its core does not explain yet, s_i = min(1, F_i(C_i)/F_i⁰). F_i is the loss on its training data (256 of
them at most), F_i⁰ that of guessing by the frequency of labels. A large network fits the data of one silo from any
start, so s_i is near 0 soon. A small model may never fit them from the pool; then the client goes on from its own core.

Compared with APPLE: the server sees the same, one core per client. It makes the pools, and can estimate w_i: it lacks
only s_i, which the next core depends on. Other clients see less, an average instead of every core, but a pool of two
gives away the other's. One model travels each way, however many clients there are: no download budget is needed.

Exact limits, with all clients present: with opposition = −1 and stock = 0 it is FedAvg-local for blend = 0, and FedAvg
for blend = 1; with stock = 1 it is Separate.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from orchard.core.contract import Client, Diagnostics, Download, Server, Vectors
from orchard.core.evaluation import mean_loss
from orchard.core.federation import Federation
from orchard.core.training import ClientContext, local_sgd
from orchard.core.vector import cosines, products
from orchard.experiment import Experiment
from orchard.method import MethodSettings, Moment, Queries, Traffic
from orchard.methods.fedavg import average_of

if TYPE_CHECKING:
    from orchard.data.samples import Samples

FIT_SAMPLES = 256
"""Training samples that a client compares losses on, at most."""


class Graft(MethodSettings):
    """Each client starts from the average of all who do not work against it; Orchard's own, nothing to tune."""

    moment: ClassVar[Moment] = "after_aggregation"
    withstands: ClassVar[bool] = True
    travels: ClassVar[str] = "the client's pool and who is in it down, its core up"
    keeps: ClassVar[str] = "how much of its own core it starts from"
    reveals: ClassVar[str] = (
        "the server works out from the cores who opposes whom, tells each site with whom it is pooled, and can "
        "estimate the personalised model; a site sees the average of its pool, which in a pool of two gives away the "
        "other's core"
    )
    name: Literal["graft"] = "graft"
    opposition: float = Field(default=0.0, ge=-1, le=1, description="below this agreement clients are not linked")
    blend: float = Field(default=0.5, ge=0, le=1, description="the next start's share in the personalised model")
    stock: float | None = Field(default=None, ge=0, le=1, description="s_i of all clients; none: as each needs")

    def traffic(self, federation: Federation) -> Traffic:
        """Send each client its pool and who is in it, and take its core."""
        model = federation.parameters
        return Traffic(down={"pool": model, "weights": federation.clients}, up={"core": model})

    def queries(self, experiment: Experiment, samples: int, round: int) -> Queries:
        """Add the losses of pool and core, by which the stock is found."""
        asked = super().queries(experiment, samples, round)
        return replace(asked, train_losses=2) if self.stock is None and round else asked

    def client(self, index: int, federation: Federation) -> "GraftClient":
        """Make a client."""
        return GraftClient(self, index, federation)

    def server(self, federation: Federation) -> "GraftServer":
        """Make the server."""
        return GraftServer(self, federation)


class GraftClient(Client):
    """A core, the model that the client uses, the lowest loss of a pool, and how much of each core its model has."""

    state_keys = ("core", "model", "lowest", "relationships")
    round_keys = ("start",)

    def __init__(self, settings: Graft, index: int, federation: Federation) -> None:
        self.settings, self.index = settings, index
        self.core = self.model = self.start = federation.initial_model()
        self.lowest = math.inf
        self.itself = torch.eye(federation.clients).to(self.core)[index]
        self.relationships = self.itself

    def select(self, round: int) -> Sequence[str]:
        """Ask for the pool made for this client, and who is in it."""
        return ("pool", "weights")

    def receive(self, context: ClientContext, download: Download) -> None:
        """Find the next start between pool and core, and blend it with the core."""
        pool, weights = download.vectors["pool"], download.vectors["weights"]
        stock, blend = self._stock(context, pool, download.round), self.settings.blend
        self.start = torch.lerp(pool, self.core, stock)
        self.model = torch.lerp(self.core, self.start, blend)
        self.relationships = torch.lerp(self.itself, weights, blend * (1 - stock))

    def _stock(self, context: ClientContext, pool: Tensor, round: int) -> float:
        """Return s_i."""
        if self.settings.stock is not None:
            return self.settings.stock
        if round == 0:  # the first pool is nobody's yet
            return 0.0
        loss = fit(context, pool, self.lowest)
        if loss < self.lowest:
            self.lowest = loss
            return 0.0
        guess = context.guess_loss()
        return min(1.0, max(0.0, fit(context, self.core)) / guess) if guess else 0.0

    def train(self, context: ClientContext, round: int) -> float:
        """Train the core."""
        self.core, loss = local_sgd(context, round, self.start)
        self.model = self.core
        return loss

    def personalised(self) -> Tensor:
        """Return the blend of core and start; between training and the exchange, the core."""
        return self.model

    def upload(self) -> Vectors:
        """Return the core."""
        return {"core": self.core}

    def diagnostics(self) -> Diagnostics:
        """Return how much of each core is in the last blend."""
        return {"relationships": self.relationships.tolist()}


class GraftServer(Server):
    """The cores, the pools last sent, who is pooled with whom, and the products of how each has left its pool."""

    state_keys = ("cores", "pools", "trained", "missing", "pooled", "together", "lengths")

    def __init__(self, settings: Graft, federation: Federation) -> None:
        n = federation.clients
        self.opposition, self.samples, self.average = settings.opposition, federation.samples, average_of(federation)
        self.cores = self.pools = [federation.initial_model()] * n
        self.trained = False
        self.missing = torch.zeros(n, dtype=torch.bool)
        self.pooled = torch.ones(n, n, dtype=torch.bool)
        self.together = self.lengths = torch.zeros(n, n, dtype=torch.float64)

    def send(self, client: int, selected: Sequence[str]) -> Vectors:
        """Return a client's pool and its weights."""
        weights = (self.pooled[client] & ~self.missing) * torch.tensor(self.samples, dtype=torch.float64)
        return {"pool": self.pools[client], "weights": (weights / weights.sum()).to(self.pools[client])}

    def aggregate(self, uploads: Mapping[int, Vectors]) -> None:
        """Take in the cores, weigh the evidence, and make the next pools."""
        self.cores = [uploads[j]["core"] if j in uploads else core for j, core in enumerate(self.cores)]
        seen = torch.tensor([j in uploads for j in range(len(self.cores))])
        if self.trained:
            self._weigh(seen)
        # Who has never uploaded has a random core, which is in nobody's pool.
        self.missing = self.missing & ~seen if self.trained else ~seen
        self.trained = True
        rows = [tuple(row) for row in (self.pooled & ~self.missing).tolist()]
        made = {row: self._average(torch.tensor(row)) for row in set(rows)}
        self.pools = [made[row] for row in rows]

    def welcome(self, newcomer: int, selected: Sequence[str], upload: Vectors | None) -> Vectors:
        """Return the average of all cores; then that of the pools towards which the newcomer's core has left it."""
        members = present = ~self.missing
        pools = torch.unique(self.pooled[present] & present, dim=0)
        if upload is not None and len(pools) > 1:
            middle, *ends = (self._average(row).cpu() for row in (present, *pools))
            members = pools[cosines([end - middle for end in (upload["core"].cpu(), *ends)])[0, 1:].argmax()]
        weights = torch.cat([members, torch.zeros(1)]) * torch.tensor([*self.samples, 0])
        return {"pool": self._average(members), "weights": (weights / weights.sum()).to(self.cores[0])}

    def _average(self, members: Tensor) -> Tensor:
        """Return the average of some clients' cores."""
        return self.average(dict(compress(enumerate(self.cores), members.tolist())), self.samples)

    def _weigh(self, seen: Tensor) -> None:
        """Add how those who were seen have left their pools, and decide anew who is pooled."""
        counts = self.pooled & seen & seen[:, None]
        moves = products([core.cpu() for core in self.cores], [pool.cpu() for pool in self.pools])
        self.together = self.together + moves * counts
        self.lengths = self.lengths + moves.diagonal()[:, None] * counts
        # Of whom nothing is known yet is pooled with everybody, but links nobody.
        known = self.lengths.diagonal() > 0
        known = known & known[:, None]
        self.pooled = chained(known & (agreement(self.together, self.lengths) >= self.opposition)) | ~known


def agreement(together: Tensor, lengths: Tensor) -> Tensor:
    """Return the larger of ρ_ij and cos(ρ_i, ρ_j), from Σ⟨D_i, D_j⟩ and Σ‖D_i‖² over the rounds that count."""
    rho = (together / (lengths * lengths.T).sqrt()).nan_to_num(0, 0, 0).fill_diagonal_(1)
    return torch.maximum(rho, cosines(rho)).clamp(-1, 1)


def chained(links: Tensor) -> Tensor:
    """Return who is linked by a chain; links are symmetric."""
    for _ in range(len(links).bit_length()):  # twice the length each time
        links = links | (links.double() @ links.double() > 0)
    return links


def fit(context: ClientContext, model: Tensor, limit: float = math.inf) -> float:
    """Return the mean loss on training samples, all or evenly spaced ones; infinity if it is above a limit.

    Under privacy it is that of all samples, with noise, and there is no limit.
    """
    if context.private is not None:
        return context.loss(model, "train")
    return mean_loss(context.network, model, fit_samples(context), limit)


def fit_samples(context: ClientContext) -> "Samples":
    """Return the training samples that losses are compared on: all, or evenly spaced ones."""
    train = context.data.train
    return train.take(np.arange(0, len(train.y), -(-len(train.y) // FIT_SAMPLES)))
