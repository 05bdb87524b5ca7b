"""The methods that find clusters against a second implementation of them, as in `test_reference.py`."""

from itertools import combinations

import numpy as np
import pytest

from orchard.engines.client_round import run_client_round
from orchard.methods.cfl import CFLServer
from orchard.methods.ifca import IFCAClient, IFCAServer
from reference import ROUNDS, Array, clients_of, equal, federation, loss, numbers


def halves(moves: Array) -> list[list[int]]:
    """The bipartition with the lowest largest cosine across, by trying all."""
    unit, n = moves / np.linalg.norm(moves, axis=1, keepdims=True), len(moves)
    every = [[0, *others] for size in range(n - 1) for others in combinations(range(1, n), size)]
    rests = [[j for j in range(n) if j not in part] for part in every]
    worst = [(unit[part] @ unit[rest].T).max() for part, rest in zip(every, rests, strict=True)]
    best = int(np.argmin(worst))
    return [every[best], rests[best]]


@pytest.mark.parametrize("absent", [{}, {0: {2}, 1: {0}, 3: {0, 1, 4}}])
def test_cfl(absent: dict[int, set[int]]) -> None:
    eps1, eps2, splits = 0.7, 0.8, 0
    small = federation("cfl", eps1=eps1, eps2=eps2)
    clients, n = clients_of(small), 5
    clusters, models = [list(range(n))], [small.federation.initial_model().numpy().copy()]
    scale = 0.0
    for r in range(ROUNDS):
        there = [i for i in range(n) if i not in absent.get(r, ())]
        starts = {i: model for members, model in zip(clusters, models, strict=True) for i in members}
        copies = {i: clients.local_sgd(starts[i], i, r) for i in there}
        moves = {i: copies[i] - starts[i] for i in there}

        def mean(vectors: dict[int, Array], members: list[int]) -> Array:
            some = [i for i in members if i in vectors]
            total = clients.shares[some].sum()
            average: Array = np.sum([clients.shares[i] / total * vectors[i] for i in some], axis=0)
            return average

        still = {c: float(np.linalg.norm(mean(moves, m))) for c, m in enumerate(clusters) if {*m} & {*there}}
        scale = max(scale, *still.values())
        new: list[tuple[list[int], Array]] = []
        for c, members in enumerate(clusters):
            parts = [members]
            if {*members} <= {*there} and len(members) > 1 and still[c] < eps1 * scale:
                stacked = np.stack([moves[i] for i in members])
                if np.linalg.norm(stacked, axis=1).max() > eps2 * scale:
                    parts = [[members[k] for k in half] for half in halves(stacked)]
                    splits += 1
            new += [(part, mean(copies, part) if {*part} & {*there} else models[c]) for part in parts]
        clusters, models = [part for part, _ in new], [model for _, model in new]
        assert isinstance(small.server, CFLServer)
        parties = {i: (small.clients[i], small.contexts[i], small.download(i, r)) for i in there}
        updates = {i: run_client_round(*parties[i], small.federation.traffic) for i in there}
        small.server.aggregate({i: update.upload for i, update in updates.items()})
        assert small.server.clusters == clusters
        equal(numbers(small.server.models), models)
        equal(small.server.scale, scale)
    assert splits > 1, "else nobody would notice how they are split"
    assert any(len(members) > 1 for members in clusters), "nor when"


@pytest.mark.parametrize("count", [2, 3])
def test_ifca(count: int) -> None:
    small = federation("ifca", clusters=count)
    clients, n = clients_of(small), 5
    first = [small.federation.initial_model(), *(small.federation.initial_core(k) for k in range(1, count))]
    models = [model.numpy().copy() for model in first]
    choices = []
    for r in range(ROUNDS):
        chosen = [int(np.argmin([loss(model, *clients.train[i]) for model in models])) for i in range(n)]
        copies = np.stack([clients.local_sgd(models[chosen[i]], i, r) for i in range(n)])
        for k in set(chosen):
            weights = clients.shares * (np.array(chosen) == k)
            models[k] = weights / weights.sum() @ copies
        small.round(r)
        equal(small.models().numpy(), copies)
        assert [client.cluster for client in small.clients if isinstance(client, IFCAClient)] == chosen
        assert isinstance(small.server, IFCAServer)
        equal(numbers(small.server.models), models)
        choices.append(tuple(chosen))
    assert len(set(choices)) > 1 or count > 2, "else nobody would notice if they chose once and for all"
    assert any(len(set(chosen)) > 1 for chosen in choices), "or all the same"
