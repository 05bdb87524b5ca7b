"""CFL: FedAvg, until the clients of a cluster pull its model apart; then the cluster is split in two.

F. Sattler, K.-R. Müller, W. Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization
under Privacy Constraints", IEEE TNNLS 2020, https://arxiv.org/abs/1910.01991

At first all clients are one cluster. Every client i of a cluster c trains a copy of the cluster's model, as in FedAvg,

    w_i ← E epochs of momentum SGD from w_c;   Δ_i = w_i − w_c;   w_c ← w_c + Σ_{i∈c} (n_i/n_c)·Δ_i

Where the average stands still and its clients do not, they disagree. Their cluster is split before it is averaged:

    if ‖Σ_{i∈c} (n_i/n_c)·Δ_i‖ < ε1·s  and  max_{i∈c} ‖Δ_i‖ > ε2·s:   c → (a, b) = argmin max_{i∈a, j∈b} cos(Δ_i, Δ_j)

Joining the most similar pairs until two parts are left finds this minimum: the joins are a maximum spanning tree
without its weakest edge, and every bipartition cuts an edge of that tree. An absent client puts the split off.

The paper's thresholds are absolute (s = 1), found by looking at norms, and depend on model, learning rate and epochs.
Here s is the largest norm of a cluster's mean update so far. The defaults find two and three codings of labels among
the embedded digits; noise and unequal labels may split clients who agree. ε1 = 0 is FedAvg-local. Left out: γ_max, the
paper's check of a cut, and its tree of all splits, which leads newcomers to a cluster. Here a newcomer gets the average
of all clusters, and once it has trained, the model of the cluster in whose direction it moved.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from orchard.core.contract import Diagnostics, Download, Server, Vectors
from orchard.core.federation import Federation
from orchard.core.training import ClientContext
from orchard.core.vector import cosines, products
from orchard.method import MethodSettings, Traffic
from orchard.methods.fedavg import FedAvgClient, weighted_mean


class CFL(MethodSettings):
    """FedAvg, until the clients of a cluster pull its model apart; then the cluster is split in two."""

    travels: ClassVar[str] = "the cluster's model and who is in it down, a model up"
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"eps1": (0.5, 0.75), "eps2": (0.75, 1.25)}
    reveals: ClassVar[str] = (
        "the server works out who pulls against whom, and a site sees who is in its cluster and their average: of two, "
        "the other's model"
    )
    name: Literal["cfl"] = "cfl"
    eps1: float = Field(default=0.75, ge=0, allow_inf_nan=False, description="ε1, below which an average stands still")
    eps2: float = Field(default=1.25, ge=0, allow_inf_nan=False, description="ε2, above which a client still moves")

    def traffic(self, federation: Federation) -> Traffic:
        """Send each client its cluster's model and who is in it, and take its copy."""
        model = federation.parameters
        return Traffic(down={"model": model, "weights": federation.clients}, up={"model": model})

    def client(self, index: int, federation: Federation) -> "CFLClient":
        """Make a client."""
        return CFLClient(index, federation)

    def server(self, federation: Federation) -> "CFLServer":
        """Make the server."""
        return CFLServer(self, federation)


class CFLClient(FedAvgClient):
    """Trains a copy of its cluster's model, and knows who is in the cluster."""

    state_keys = ("model", "relationships")

    def __init__(self, index: int, federation: Federation) -> None:
        super().__init__(federation)
        self.relationships = torch.eye(federation.clients).to(self.model)[index]

    def select(self, round: int) -> Sequence[str]:
        """Ask for the cluster's model and who is in it."""
        return ("model", "weights")

    def receive(self, context: ClientContext, download: Download) -> None:
        """Take over both."""
        self.model, self.relationships = download.vectors["model"], download.vectors["weights"]

    def diagnostics(self) -> Diagnostics:
        """Return each client's share of the cluster."""
        return {"relationships": self.relationships.tolist()}


class CFLServer(Server):
    """The clusters, their models, and the largest norm of a mean update so far."""

    state_keys = ("clusters", "models", "scale")

    def __init__(self, settings: CFL, federation: Federation) -> None:
        self.settings, self.samples = settings, federation.samples
        self.clusters, self.models, self.scale = [list(range(federation.clients))], [federation.initial_model()], 0.0

    def send(self, client: int, selected: Sequence[str]) -> Vectors:
        """Return the model of a client's cluster, and each client's share in it."""
        cluster = next(k for k, members in enumerate(self.clusters) if client in members)
        return {"model": self.models[cluster], "weights": self._shares(self.clusters[cluster], len(self.samples))}

    def aggregate(self, uploads: Mapping[int, Vectors]) -> None:
        """Split the clusters whose clients disagree; then average the models of each."""
        trained = {i: upload["model"] for i, upload in uploads.items()}
        before, after = list(zip(self.clusters, self.models, strict=True)), list[tuple[list[int], Tensor]]()
        moves = [self._moves({i: trained[i] - model for i in c if i in trained}) for c, model in before]
        self.scale = max(self.scale, *(mean for mean, _, _ in moves))
        for (members, model), (mean, longest, similarity) in zip(before, moves, strict=True):
            disagree = mean < self.settings.eps1 * self.scale and longest > self.settings.eps2 * self.scale
            complete = all(i in trained for i in members)
            for part in bipartition(members, similarity) if disagree and complete else [members]:
                copies = {i: trained[i] for i in part if i in trained}
                after.append((part, weighted_mean(copies, self.samples) if copies else model))
        self.clusters, self.models = [members for members, _ in after], [model for _, model in after]

    def welcome(self, newcomer: int, selected: Sequence[str], upload: Vectors | None) -> Vectors:
        """Return the average of all clusters; then the model of the cluster in whose direction the newcomer moved."""
        sizes = [sum(self.samples[i] for i in members) for members in self.clusters]
        model, members = weighted_mean(dict(enumerate(self.models)), sizes), list(range(newcomer))
        if upload is not None:
            moves = [end.cpu() - model.cpu() for end in (upload["model"], *self.models)]
            k = int(cosines(moves)[0, 1:].argmax())
            model, members = self.models[k], self.clusters[k]
        return {"model": model, "weights": self._shares(members, newcomer + 1)}

    def _moves(self, updates: Mapping[int, Tensor]) -> tuple[float, float, Tensor]:
        """Return the norm of the mean update, the largest norm, and the cosine of every pair."""
        pairs = products([update.cpu() for update in updates.values()])
        weights = torch.tensor([self.samples[i] for i in updates], dtype=torch.float64)
        shares, lengths = weights / weights.sum(), pairs.diagonal().sqrt()
        similarity = (pairs / (lengths[:, None] * lengths)).nan_to_num(0)  # who does not move resembles nobody
        mean = (shares @ pairs @ shares).clamp(min=0).sqrt()  # rounding may leave it below 0
        return mean.item(), max(lengths.tolist(), default=0.0), similarity

    def _shares(self, members: Sequence[int], clients: int) -> Tensor:
        """Return n_i/n_c of a cluster's members, and 0 of all others."""
        weights = torch.tensor([self.samples[i] if i in members else 0 for i in range(clients)], dtype=torch.float64)
        return (weights / weights.sum()).to(self.models[0])


def bipartition(members: Sequence[int], similarity: Tensor) -> list[list[int]]:
    """Return the two parts with the lowest largest similarity across; a single member stays one part."""
    parts = [[k] for k in range(len(members))]
    for pair in sorted(combinations(range(len(members)), 2), key=lambda pair: -similarity[pair].item()):
        one, other = (next(part for part in parts if k in part) for k in pair)
        if len(parts) > 2 and one is not other:
            parts = [*(part for part in parts if part not in (one, other)), one + other]
    return sorted(sorted(members[k] for k in part) for part in parts)
