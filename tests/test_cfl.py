"""CFL: FedAvg as long as nobody disagrees, how a cluster is split, and when."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import orchard
from helpers import SmallFederation, classes, method, small_experiment, small_run
from orchard.core.federation import Federation
from orchard.experiment import load_experiment
from orchard.methods.cfl import CFLClient, CFLServer, bipartition
from orchard.runs.panel import FEDERATIONS

# --- Exact limits ---


def test_one_cluster_is_fedavg() -> None:
    fedavg = SmallFederation(method="fedavg").run(3)
    cfl = SmallFederation(method=method("cfl", eps1=0.0)).run(3)
    assert torch.equal(cfl.models(), fedavg.models())
    assert isinstance(cfl.server, CFLServer)
    assert torch.equal(cfl.server.models[0], fedavg.global_model())


def test_what_is_evaluated_is_fedavgs_local_copy() -> None:
    cfl, fedavg = small_run(method=method("cfl", eps1=0.0)), small_run(method="fedavg-local")
    assert cfl.scores().tolist() == fedavg.scores().tolist()
    assert all(torch.equal(a[0], b[0]) for a, b in zip(cfl.models, fedavg.models, strict=True))


def test_clusters_of_one_client_each_train_alone() -> None:
    """Any evidence splits: of four clients each is alone after three rounds."""
    cfl = SmallFederation(method=method("cfl", eps1=9.0, eps2=0.0)).run(3)
    assert isinstance(cfl.server, CFLServer)
    assert sorted(cfl.server.clusters) == [[0], [1], [2], [3]]
    trained = cfl.models()
    for i in range(4):
        assert torch.equal(cfl.download(i, 3).vectors["model"], trained[i])


def test_one_client_is_separate() -> None:
    cfl = SmallFederation(method=method("cfl", eps1=9.0, eps2=0.0), clients=1).run(3)
    assert torch.equal(cfl.models(), SmallFederation(method="separate", clients=1).run(3).models())


# --- How a cluster is split ---


def similarities(n: int, seed: int) -> Tensor:
    values = torch.rand(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1
    return (values + values.T) / 2


def across(similarity: Tensor, part: set[int]) -> float:
    """The largest similarity of one inside and one outside."""
    n = len(similarity)
    return max(similarity[i, j].item() for i in part for j in range(n) if j not in part)


@given(n=st.integers(2, 8), seed=st.integers(0, 10_000))
def test_no_bipartition_has_a_lower_largest_similarity_across(n: int, seed: int) -> None:
    similarity = similarities(n, seed)
    found = bipartition(range(n), similarity)
    assert len(found) == 2
    assert sorted(found[0] + found[1]) == list(range(n))
    every = [{0, *others} for size in range(n - 1) for others in combinations(range(1, n), size)]
    assert across(similarity, set(found[0])) == min(across(similarity, part) for part in every)


def test_a_chain_is_cut_at_its_weakest_link() -> None:
    """0 and 3 are opposed, but what joins them is stronger than what joins 4 to them."""
    similarity = torch.full((5, 5), -1.0)
    for i, j, value in [(0, 1, 0.9), (1, 2, 0.5), (2, 3, 0.6), (3, 4, 0.4)]:
        similarity[i, j] = similarity[j, i] = value
    assert bipartition([1, 3, 4, 6, 7], similarity) == [[1, 3, 4, 6], [7]]
    assert bipartition([5], torch.ones(1, 1)) == [[5]]


# --- When it is split ---


def server_for(*samples: int, eps1: float = 0.5, eps2: float = 0.75) -> CFLServer:
    experiment = small_experiment(method=method("cfl", eps1=eps1, eps2=eps2), clients=len(samples))
    server = experiment.method.server(Federation(experiment, samples, (6,), classes(3)))
    assert isinstance(server, CFLServer)
    server.models = [torch.zeros_like(server.models[0])]
    return server


def upload(server: CFLServer, *moves: complex | None) -> None:
    """Move each client's copy from its cluster's model, in a plane; None: it is absent."""
    uploads = {}
    for i, move in enumerate(moves):
        if move is not None:
            model = server.send(i, ("model",))["model"].clone()
            model[0] += move.real
            model[1] += move.imag
            uploads[i] = {"model": model}
    server.aggregate(uploads)


def positions(server: CFLServer) -> list[list[float]]:
    return [model[:2].tolist() for model in server.models]


def test_a_split_by_hand() -> None:
    server = server_for(8, 8, 32, 16)
    upload(server, 2, 2, 2, 2)
    assert (server.scale, server.clusters, positions(server)) == (2, [[0, 1, 2, 3]], [[2, 0]])
    upload(
        server, 3, 3 + 1j, -3, 3 - 4j
    )  # (24 + 24 − 96 + 48)/64 = 0 to the right, (8 − 64)/64 > −1 up; the longest is 5
    assert server.clusters == [[0, 1, 3], [2]]
    assert positions(server) == [[5, (8 - 64) / 32], [-1, 0]]
    assert server.scale == 2


def test_the_mean_is_that_by_samples() -> None:
    """(30·1 − 10·3)/40 = 0: it stands still; (1 − 3)/2 would not."""
    server = server_for(30, 10)
    upload(server, 2, 2)
    upload(server, 1.0, -3.0)
    assert server.clusters == [[0], [1]]


@pytest.mark.parametrize(
    ("moves", "clusters"),
    [
        ((3.0, -1.0), [[0, 1]]),
        ((2.75, -1.0), [[0], [1]]),
        ((1.5, -1.5), [[0, 1]]),
        ((1.75, -1.5), [[0], [1]]),
    ],
)
def test_both_thresholds_count_in_units_of_the_largest_mean(moves: tuple[complex, ...], clusters: object) -> None:
    """s = 2: the mean must be below 1, and the longest above 1.5, both strictly."""
    server = server_for(10, 10)
    upload(server, 2, 2)
    upload(server, *moves)
    assert server.clusters == clusters


def test_the_first_round_splits_nobody_however_opposed() -> None:
    """Its mean is the largest so far."""
    server = server_for(10, 10)
    upload(server, 5.0, -4.0)
    assert server.clusters == [[0, 1]]


def test_a_mean_of_zero_stands_still_once_there_is_a_scale() -> None:
    server = server_for(10, 10, 10, 10)
    upload(server, 1 + 1j, 1 + 1j, -1 - 1j, -1 - 1j)
    assert server.clusters == [[0, 1, 2, 3]]  # 0 is not below 0
    upload(server, 1, 1, 1, 1)
    upload(server, 1 + 1j, 1 + 1j, -1 - 1j, -1 - 1j)
    assert server.clusters == [[0, 1], [2, 3]]


def test_a_half_is_split_again() -> None:
    server = server_for(10, 10, 10, 10)
    upload(server, 2, 2, 2, 2)
    upload(server, 2, 2, -2 + 1j, -2 - 1j)
    assert server.clusters == [[0, 1], [2, 3]]
    upload(server, 1, 1, 3j, -3j)
    assert server.clusters == [[0, 1], [2], [3]]
    assert positions(server) == [[5, 0], [0, 3], [0, -3]]


def test_the_scale_is_the_largest_of_all_clusters() -> None:
    server = server_for(10, 10, 10, 10)
    upload(server, 2, 2, 2, 2)
    upload(server, 2, 2, -2, -2)
    upload(server, 1, 1, 4, 4)
    assert server.scale == 4


@settings(max_examples=20)
@given(exponent=st.integers(-8, 8), seed=st.integers(0, 99))
def test_the_scale_of_updates_decides_nothing(exponent: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    moves = [[complex(*draw.normal(size=2)) for _ in range(5)] for _ in range(4)]
    server, scaled = server_for(*[10] * 5), server_for(*[10] * 5)
    for r in moves:
        upload(server, *r)
        upload(scaled, *(move * 2.0**exponent for move in r))
    assert server.clusters == scaled.clusters


def test_who_does_not_move_resembles_nobody() -> None:
    server = server_for(10, 10, 10)
    upload(server, 2, 2, 2)
    upload(server, 3, -3, 0)
    assert server.clusters == [[0, 2], [1]]  # of equal similarities the first; −1 is less


# --- Absent clients ---


def test_a_cluster_is_split_only_if_all_of_its_clients_are_there() -> None:
    server = server_for(10, 10, 10, 20)
    upload(server, 2, 2, 2, 2)
    upload(server, 3, -3, None, None)
    assert server.clusters == [[0, 1, 2, 3]]
    upload(server, None, 3, None, -6)
    assert positions(server) == [[-1, 0]]  # 2 + (10·3 − 20·6)/30, of those who are there
    server.scale = 2
    upload(server, 2, 2, 2, -3)
    assert server.clusters == [[0, 1, 2], [3]]


def test_who_is_absent_elsewhere_does_not_matter_and_their_model_stays() -> None:
    server = server_for(10, 10, 10, 10)
    upload(server, 2, 2, 2, 2)
    upload(server, 2, 2, -2 + 1j, -2 - 1j)
    upload(server, None, None, 3j, -3j)
    assert server.clusters == [[0, 1], [2], [3]]
    assert positions(server)[0] == [4, 0]


# --- What a client is told ---


def test_a_client_is_told_its_clusters_model_and_who_is_in_it() -> None:
    server = server_for(30, 10, 10)
    upload(server, 2, 2, 2)
    upload(server, 2, 1.0, -7)
    sent = server.send(1, ("model", "weights"))
    assert sent["weights"].tolist() == [0.75, 0.25, 0]
    assert torch.equal(sent["model"], server.models[0])
    assert server.send(2, ("model", "weights"))["weights"].tolist() == [0, 0, 1]


def test_relationships_are_what_it_was_told() -> None:
    federation = SmallFederation(method="cfl").run(1)
    client = federation.clients[1]
    assert isinstance(client, CFLClient)
    torch.testing.assert_close(client.relationships, torch.tensor(federation.federation.shares))


def test_a_newcomer_gets_the_average_then_the_model_in_whose_direction_it_moved() -> None:
    server = server_for(30, 10, 20)
    upload(server, 2, 2, 2)
    server.clusters, server.models = [[0, 1], [2]], [server.models[0] + 1, server.models[0] - 5]
    first = server.welcome(3, ("model", "weights"), None)
    torch.testing.assert_close(first["model"], (40 * server.models[0] + 20 * server.models[1]) / 60)
    torch.testing.assert_close(first["weights"], torch.tensor([30, 10, 20, 0]) / 60)
    # From the average the larger cluster's model is two to the right, the other's four to the left.
    for move, cluster, weights in [(0.1, 0, [0.75, 0.25, 0, 0]), (9.0, 0, [0.75, 0.25, 0, 0]), (-0.1, 1, [0, 0, 1, 0])]:
        then = server.welcome(3, ("model", "weights"), {"model": first["model"] + move})
        assert torch.equal(then["model"], server.models[cluster])
        assert then["weights"].tolist() == weights
    assert server.clusters == [[0, 1], [2]]


def test_a_newcomer_to_one_cluster_gets_its_model() -> None:
    server = server_for(30, 10)
    upload(server, 2, 3)
    for newcomers in (None, {"model": server.models[0] - 1}, {"model": server.models[0]}):
        assert torch.equal(server.welcome(2, ("model", "weights"), newcomers)["model"], server.models[0])


# --- Groups who mean different things by a label ---


def found(**changes: object) -> bool:
    """Whether clients are together after the last round exactly if they mean the same."""
    conventions = {**FEDERATIONS["digits-conventions"], "method": "cfl", **changes}
    result = orchard.run(load_experiment(overrides=conventions))
    groups, relationships = result.distribution.groups, result.relationships
    assert groups is not None
    assert relationships is not None
    return bool(((relationships[-1] > 0) == np.equal.outer(groups, groups)).all())


def test_label_conventions_are_found() -> None:
    assert found(model="mlp", rounds=4, batch_size=32, lr=0.04)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_label_conventions_are_found_as_the_panel_has_them(seed: int) -> None:
    assert found(seed=seed)


@pytest.mark.slow
def test_who_means_the_same_stays_together() -> None:
    same = {k: v for k, v in FEDERATIONS["digits-conventions"].items() if k != "shift"}
    result = orchard.run(load_experiment(overrides={**same, "method": "cfl"}))
    assert result.relationships is not None
    assert bool((result.relationships[-1] > 0).all())


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(orchard.UserError, match=r"method\.eps1 = -1: input should be greater than or equal to 0"):
        small_experiment(method=method("cfl", eps1=-1))
