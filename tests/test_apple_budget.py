"""APPLE under a limited budget: what is downloaded, and how it is chosen."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import SmallFederation, classes, small_data, small_experiment
from orchard.core.contract import Download
from orchard.core.federation import Federation
from orchard.core.training import ClientContext
from orchard.methods.apple import Apple, AppleClient, core_of


def state(federation: SmallFederation) -> torch.Tensor:
    clients = [client for client in federation.clients if isinstance(client, AppleClient)]
    return torch.cat([tensor for client in clients for tensor in (client.core, client.relationships)])


def test_a_budget_of_all_others_is_no_budget() -> None:
    """Bit for bit, although under a budget clients keep their copies."""
    free, limited = (SmallFederation(method=Apple(budget=budget)).run(3) for budget in (None, 3))
    assert torch.equal(state(free), state(limited))


@settings(max_examples=40)
@given(n=st.integers(2, 9), data=st.data(), seed=st.integers(0, 1000))
def test_under_a_budget_every_core_is_seen_soon_and_none_twice_a_round(n: int, data: st.DataObject, seed: int) -> None:
    budget = data.draw(st.integers(1, n - 1))
    mine = data.draw(st.integers(0, n - 1))
    experiment = small_experiment(clients=n, seed=seed, method={"name": "apple", "budget": budget})
    federation = Federation(experiment, (10,) * n, (6,), classes(3))
    client = Apple(budget=budget).client(mine, federation)
    context = ClientContext(mine, experiment, small_data(small_experiment()).clients[0], federation.network())
    enough = math.ceil((n - 1) / budget)
    for r in range(enough + 3):
        selected = client.select(r)
        assert len(set(selected)) == len(selected) == budget
        assert core_of(mine) not in selected
        before = list(client.copies)
        client.receive(context, Download(r, {name: torch.full_like(client.core, r) for name in selected}))
        for j in range(n):
            if core_of(j) not in selected:
                assert client.copies[j] is before[j]  # what did not come stays as it was
        if r >= enough - 1:
            assert client.downloaded == set(range(n)) - {mine}


@pytest.mark.parametrize(("round", "base"), [(12, 3.0), (2, 1.5)])
def test_the_choice_follows_the_strength_of_the_relationship(round: int, base: float) -> None:
    """With one slot, core j is drawn with probability b^|p_j| / Σ b^|p|, b = max(1.5, r·1/4)."""
    p = torch.tensor([0.0, 1.0, -2.0, 0.5])
    federation = Federation(small_experiment(), (10,) * 4, (6,), classes(3))
    drawn: Counter[str] = Counter()
    for seed in range(4000):
        client = Apple(budget=1).client(0, federation)
        client.experiment = federation.experiment.model_copy(update={"seed": seed})
        client.relationships, client.downloaded = p, frozenset({1, 2, 3})
        drawn.update(client.select(round))
    weights = base ** np.array([1.0, 2.0, 0.5])
    expected = weights / weights.sum()
    observed = np.array([drawn[core_of(j)] for j in (1, 2, 3)]) / 4000
    assert observed == pytest.approx(expected, abs=3.5 * math.sqrt(0.25 / 4000))


def test_among_cores_never_had_chance_alone_decides() -> None:
    federation = Federation(small_experiment(), (10,) * 5, (6,), classes(3))
    drawn: Counter[str] = Counter()
    for seed in range(3000):
        client = Apple(budget=2).client(0, federation)
        client.experiment = federation.experiment.model_copy(update={"seed": seed})
        client.relationships, client.downloaded = torch.tensor([0.0, 9.0, 9.0, 1.0, 0.0]), frozenset({1})
        drawn.update(client.select(50))
    assert [drawn[core_of(j)] / 3000 for j in (1, 2, 3, 4)] == pytest.approx([0, 2 / 3, 2 / 3, 2 / 3], abs=0.04)


def test_uniform_choice_ignores_relationships_and_history() -> None:
    federation = Federation(small_experiment(), (10,) * 4, (6,), classes(3))
    drawn: Counter[str] = Counter()
    for seed in range(3000):
        client = Apple(budget=1, selection="uniform").client(0, federation)
        client.experiment = federation.experiment.model_copy(update={"seed": seed})
        client.relationships, client.downloaded = torch.tensor([0.0, 9.0, 0.0, 0.0]), frozenset({1})
        drawn.update(client.select(50))
    assert [drawn[core_of(j)] / 3000 for j in (1, 2, 3)] == pytest.approx([1 / 3] * 3, abs=0.04)


def test_chance_is_another_one_in_every_round_and_for_every_client() -> None:
    federation = Federation(small_experiment(), (10,) * 4, (6,), classes(3))
    choices = []
    for i in range(4):
        client = Apple(budget=1).client(i, federation)
        others = [j for j in range(4) if j != i]
        client.downloaded = frozenset(others)
        names = [core_of(j) for j in others]
        choices.append([names.index(name) for r in range(30) for name in client.select(r)])
        assert set(choices[-1]) == {0, 1, 2}
    assert len({tuple(choice) for choice in choices}) == 4


def test_huge_relationships_do_not_overflow_the_choice() -> None:
    federation = Federation(small_experiment(), (10,) * 4, (6,), classes(3))
    client = Apple(budget=2).client(0, federation)
    client.relationships, client.downloaded = torch.tensor([0.0, 1e6, 0.0, -2e6]), frozenset({1, 2, 3})
    assert list(client.select(100)) == [core_of(1), core_of(3)]


def test_a_core_never_downloaded_is_the_seeded_one() -> None:
    small = SmallFederation(method=Apple(budget=1))
    client, known = small.clients[0], small.federation
    assert isinstance(client, AppleClient)
    for j in (1, 2, 3):
        rebuilt = Federation(known.experiment, known.samples, known.shape, known.task).initial_core(j)
        copied = client.copies[j]
        assert copied is not None
        assert torch.equal(copied, rebuilt)
