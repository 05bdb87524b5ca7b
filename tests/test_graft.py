"""Graft: its exact limits, who opposes whom, and what a client keeps of its own."""

import cmath
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import orchard
from helpers import SmallFederation, classes, method, small_experiment, small_run
from orchard.core.evaluation import mean_loss
from orchard.core.training import local_sgd
from orchard.data.samples import Samples
from orchard.experiment import load_experiment
from orchard.methods import weighted_mean
from orchard.methods.graft import GraftClient, GraftServer, agreement, chained, fit_samples
from orchard.runs.panel import FEDERATIONS

EVERYBODY = {"opposition": -1.0, "stock": 0.0}


# --- Exact limits ---


def test_with_everybody_pooled_it_trains_as_fedavg() -> None:
    fedavg = SmallFederation(method="fedavg").run(3)
    graft = SmallFederation(method=method("graft", **EVERYBODY)).run(3)
    assert torch.equal(graft.models(), fedavg.models())


@pytest.mark.parametrize(("blend", "other"), [(0.0, "fedavg-local"), (1.0, "fedavg")])
def test_what_is_evaluated_is_fedavgs_copy_or_average(blend: float, other: str) -> None:
    graft = small_run(method=method("graft", **EVERYBODY, blend=blend))
    fedavg = small_run(method=other)
    assert graft.scores().tolist() == fedavg.scores().tolist()
    assert all(torch.equal(a[0], b[0]) for a, b in zip(graft.models, fedavg.models, strict=True))


def test_keeping_all_of_ones_core_is_separate(alone: Tensor) -> None:
    graft = SmallFederation(method=method("graft", stock=1.0)).run(3)
    assert torch.equal(graft.models(), alone)
    graft.round(3)
    assert all(torch.equal(client.personalised(), alone[i]) for i, client in enumerate(graft.clients))


def test_one_client_is_alone() -> None:
    graft = SmallFederation(method="graft", clients=1).run(3)
    assert torch.equal(graft.models(), SmallFederation(method="separate", clients=1).run(3).models())


# --- Who opposes whom ---


def test_agreement_by_hand() -> None:
    """Two clients pull one way, the third the other way; the fourth has not moved."""
    moves = torch.tensor([[1.0, 0.0], [3.0, 0.0], [-2.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    together = moves @ moves.T
    rho = torch.tensor([[1, 1, -1, 0], [1, 1, -1, 0], [-1, -1, 1, 0], [0, 0, 0, 1]], dtype=torch.float64)
    found = agreement(together, together.diagonal()[:, None].expand(4, 4))
    torch.testing.assert_close(found, rho)  # the cosines of its rows are the same here


def test_those_who_disagree_pull_apart_and_from_the_same_others() -> None:
    """The first two pull apart a little, but both against the others."""
    rho = torch.tensor([[10, -1, -6, -6], [-1, 10, -6, -6], [-6, -6, 10, 9], [-6, -6, 9, 10]], dtype=torch.float64) / 10
    found = agreement(rho, torch.ones_like(rho))
    assert found[0, 1] == pytest.approx((-0.1 - 0.1 + 0.36 + 0.36) / (1 + 0.01 + 0.36 + 0.36))
    assert found[0, 2] == pytest.approx(-0.6)  # and the cosine of their rows is lower still


def test_a_chain_links_whoever_is_on_it() -> None:
    links = torch.eye(7, dtype=torch.bool)
    for i, j in [(0, 1), (1, 2), (2, 3), (3, 4), (5, 6)]:
        links[i, j] = links[j, i] = True
    on_it = torch.arange(7) < 5
    assert torch.equal(chained(links), on_it == on_it[:, None])
    assert torch.equal(chained(torch.eye(3, dtype=torch.bool)), torch.eye(3, dtype=torch.bool))


@given(n=st.integers(2, 6), seed=st.integers(0, 99))
def test_agreement_is_symmetric_and_does_not_depend_on_lengths(n: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    moves = torch.randn(n, 9, generator=draw, dtype=torch.float64)
    scaled = moves * torch.logspace(-2, 2, n, dtype=torch.float64)[:, None]
    found, same = (agreement(m @ m.T, m.square().sum(1, keepdim=True).expand(n, n)) for m in (moves, scaled))
    torch.testing.assert_close(found, found.T)
    torch.testing.assert_close(found, same)
    assert found.diagonal().tolist() == [1.0] * n
    assert bool((found.abs() <= 1 + 1e-12).all())


def server_of_four() -> GraftServer:
    """A server after the first round, which is no evidence."""
    server = SmallFederation(method="graft").server
    assert isinstance(server, GraftServer)
    upload(server, 1, 1, -1, -1)
    assert server.pooled.all()
    return server


def upload(server: GraftServer, *directions: complex | None) -> None:
    """Move each core from its pool, in a plane; None: it is absent."""
    x, y = torch.zeros(2, len(server.pools[0]))
    x[0] = y[1] = 1
    moves = {j: d.real * x + d.imag * y for j, d in enumerate(directions) if d is not None}
    server.aggregate({j: {"core": server.pools[j] + move} for j, move in moves.items()})


def turn(*degrees: float) -> list[complex]:
    """Return directions of length one."""
    return [cmath.rect(1, math.radians(angle)) for angle in degrees]


def test_opponents_are_separated_and_stay_so() -> None:
    server = server_of_four()
    upload(server, 1, 1, -1, -1)
    groups = [[True, True, False, False]] * 2 + [[False, False, True, True]] * 2
    assert server.pooled.tolist() == groups
    evidence = server.together
    upload(server, 1, 1, 1, 1)  # the same way, but no longer from the same pool
    assert server.pooled.tolist() == groups
    assert torch.equal(server.together[:2, 2:], evidence[:2, 2:])
    weights = server.send(0, ("pool", "weights"))["weights"]
    assert weights[2:].tolist() == [0, 0]
    assert weights[0] / weights[1] == pytest.approx(server.samples[0] / server.samples[1])


def test_three_groups_are_separated_too() -> None:
    server = SmallFederation(method="graft", clients=6).server
    assert isinstance(server, GraftServer)
    for _ in range(2):
        upload(server, *turn(0, 120, 240, 0, 120, 240))
    groups = torch.arange(6) % 3
    assert torch.equal(server.pooled, groups == groups[:, None])


def test_two_who_pull_apart_are_pooled_if_others_between_link_them() -> None:
    """As clients do who have different labels: the first and the last pull apart, but not from the second."""
    server = SmallFederation(method="graft", clients=3).server
    assert isinstance(server, GraftServer)
    for _ in range(2):
        upload(server, *turn(0, 60, 120))
    assert agreement(server.together, server.lengths)[0, 2] == pytest.approx(-0.5)
    assert server.pooled.all()


def test_of_whom_nothing_is_known_links_nobody() -> None:
    server = SmallFederation(method="graft", clients=3).server
    assert isinstance(server, GraftServer)
    for _ in range(2):
        upload(server, 1, -1, None)
    assert server.pooled.tolist() == [[True, False, True], [False, True, True], [True, True, True]]
    upload(server, 1, -1, 1)
    assert server.pooled.tolist() == [[True, False, True], [False, True, False], [True, False, True]]


def test_an_absent_client_gives_no_evidence_and_keeps_its_core() -> None:
    server = server_of_four()
    upload(server, 1, 1, 1, 1)
    before, core = server.together, server.cores[3]
    upload(server, 1, 1, 1, None)
    assert torch.equal(server.together[3], before[3])
    assert torch.equal(server.cores[3], core)
    assert server.together[0, 1] > before[0, 1]


def test_who_is_absent_from_the_start_is_in_nobodys_pool() -> None:
    server = SmallFederation(method="graft").server
    assert isinstance(server, GraftServer)
    upload(server, 1, 1, 1, None)
    mean = weighted_mean({j: server.cores[j] for j in range(3)}, server.samples)
    assert all(torch.equal(pool, mean) for pool in server.pools)
    assert server.send(3, ("pool", "weights"))["weights"][3] == 0
    upload(server, 1, 1, 1, 1)
    assert server.send(0, ("pool", "weights"))["weights"][3] > 0


@pytest.mark.parametrize(("opposition", "pooled"), [(-1.0, [[True] * 2] * 2), (1.0, [[True, False], [False, True]])])
def test_all_or_nobody_is_pooled_at_the_ends(opposition: float, pooled: list[list[bool]]) -> None:
    """Of two clients that go exactly opposite ways."""
    server = SmallFederation(method=method("graft", opposition=opposition), clients=2).server
    assert isinstance(server, GraftServer)
    for _ in range(3):
        upload(server, 0.1, -0.3)
    assert server.pooled.tolist() == pooled


@pytest.mark.parametrize("conventions", [2, 3])
def test_label_conventions_are_found(conventions: int) -> None:
    shift = {"kind": "labels", "groups": conventions}
    settings = {**FEDERATIONS["digits-conventions"], "method": "graft", "rounds": 6, "shift": shift}
    result = orchard.run(load_experiment(overrides=settings))
    groups = result.distribution.groups
    relationships = result.relationships
    assert groups is not None
    assert relationships is not None
    same = np.equal.outer(groups, groups)
    assert ((relationships[-1] > 0) == same).all()
    assert result.scores()[-1].mean() > 0.85  # FedAvg's average has 40 %


# --- What a client keeps ---


def test_the_loss_of_a_guess_by_hand() -> None:
    """Of 4 samples 3 are of the first class and 1 of the second; with one more of each of 3 classes there are 7."""
    expected = -(3 * math.log(4 / 7) + math.log(2 / 7)) / 4
    assert classes(3).guess_loss(torch.tensor([0, 1, 0, 0])) == pytest.approx(expected)
    assert 0 < classes(2).guess_loss(torch.zeros(9, dtype=torch.long)) < 0.1  # even of one class alone


def test_losses_are_compared_on_few_samples() -> None:
    context = SmallFederation(method="graft").contexts[0]
    x, y = torch.arange(600.0)[:, None], torch.zeros(600, dtype=torch.long)
    many = replace(context, data=replace(context.data, train=Samples(x, y)))
    assert fit_samples(many).x[:, 0].tolist() == list(range(0, 600, 3))
    assert torch.equal(fit_samples(context).x, context.data.train.x)


def trained_from(federation: SmallFederation, lowest: float) -> tuple[Tensor, Tensor, GraftClient]:
    """Train client 1's second round, after pools of this loss; return the core it had, the pool it got, and it."""
    client, context = federation.clients[1], federation.contexts[1]
    assert isinstance(client, GraftClient)
    core, download = client.core, federation.download(1, 1)
    client.lowest = lowest
    client.receive(context, download)
    assert torch.equal(client.personalised(), torch.lerp(core, client.start, 0.5))
    client.train(context, 1)
    assert torch.equal(client.personalised(), client.core)
    return core, download.vectors["pool"], client


def test_from_a_pool_that_gets_better_it_starts_anew() -> None:
    federation = SmallFederation(method="graft").run(1)
    _, pool, client = trained_from(federation, math.inf)
    assert torch.equal(client.core, local_sgd(federation.contexts[1], 1, pool)[0])
    shares = torch.tensor(federation.federation.shares)
    torch.testing.assert_close(client.relationships, (torch.eye(4)[1] + shares) / 2)


def test_else_it_keeps_what_its_core_does_not_explain() -> None:
    federation = SmallFederation(method="graft").run(1)
    core, pool, client = trained_from(federation, 0.0)
    context = federation.contexts[1]
    stock = mean_loss(context.network, core, context.data.train) / classes(3).guess_loss(context.data.train.y)
    assert 0 < stock < 1
    assert torch.equal(client.core, local_sgd(context, 1, torch.lerp(pool, core, stock))[0])
    shares = torch.tensor(federation.federation.shares)
    expected = torch.lerp(torch.eye(4)[1], shares, (1 - stock) / 2)
    torch.testing.assert_close(client.relationships, expected)


def test_no_byte_of_an_upload_depends_on_the_blend() -> None:
    runs = [SmallFederation(method=method("graft", blend=blend)).run(3) for blend in (0.0, 0.3, 1.0)]
    for i in range(4):
        first, *others = (run.clients[i].upload() for run in runs)
        assert all(torch.equal(first["core"], other["core"]) for other in others)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(
        orchard.UserError, match=r"method\.opposition = -2: input should be greater than or equal to -1"
    ):
        small_experiment(method=method("graft", opposition=-2))
