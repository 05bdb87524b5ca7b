"""MOCHA's idea: how models are related, where they are pulled, and what a newcomer gets."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import orchard
from helpers import SmallFederation, method, small_experiment
from orchard.core.training import local_sgd, pull
from orchard.core.vector import products
from orchard.methods.mocha import RIDGE, MochaServer, relations

IDENTITY = torch.eye(3, dtype=torch.float64)
MEAN = torch.full((3, 3), 1 / 3, dtype=torch.float64)


def server_of(federation: SmallFederation) -> MochaServer:
    assert isinstance(federation.server, MochaServer)
    return federation.server


def gram(columns: list[list[float]]) -> Tensor:
    return products([torch.tensor(column) for column in columns])


# --- How models are related ---


def test_relations_of_orthogonal_models_by_hand() -> None:
    """Σ is diagonal: each model's length, of the sum of all."""
    expected = torch.diag(torch.tensor([0.01 / 0.76, 0.01 / 0.26], dtype=torch.float64))
    torch.testing.assert_close(relations(gram([[3.0, 0.0], [0.0, 1.0]])), expected)


def test_relations_of_equal_models_by_hand() -> None:
    """Σ is the projection on what they have in common, which is hardly pulled; the rest is, fully."""
    torch.testing.assert_close(relations(gram([[2.0, 1.0]] * 3)), IDENTITY - MEAN + 0.01 / 1.01 * MEAN)


def test_relations_are_the_inverse_of_the_papers_matrix_with_a_ridge() -> None:
    models = torch.randn(5, 40, generator=torch.Generator().manual_seed(0)).double() + 1
    omega = relations(products(list(models)))
    sigma = RIDGE * (torch.linalg.inv(omega) - torch.eye(5))
    assert sigma.trace().item() == pytest.approx(1)
    root = sigma @ sigma / (models @ models.T)  # Σ² is the Gram matrix, but for its scale
    torch.testing.assert_close(root, root[0, 0].expand(5, 5))


def test_models_without_length_are_related_to_nothing() -> None:
    assert torch.equal(relations(torch.zeros(3, 3, dtype=torch.float64)), IDENTITY)


def test_who_comes_in_another_order_gets_the_same() -> None:
    pairs = products(list(torch.randn(4, 50, generator=torch.Generator().manual_seed(0))))
    order = [2, 0, 3, 1]
    torch.testing.assert_close(relations(pairs[order][:, order]), relations(pairs)[order][:, order])


@given(n=st.integers(1, 8), common=st.floats(-3, 3), centred=st.booleans(), seed=st.integers(0, 100))
def test_where_clients_are_pulled_all_at_once_lowers_what_relates_them(
    n: int, common: float, centred: bool, seed: int
) -> None:
    """All that holds λ = 1 together: without own losses each goes to w_i − Σ_j Ω_ij·w_j."""
    models = torch.randn(n, 20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + common
    models = models - models.mean(0) if centred else models
    omega = relations(products(list(models)))
    strengths = torch.linalg.eigvalsh(omega)
    assert 0 < float(strengths.min()) <= float(strengths.max()) < 1 + 1e-12

    def whole(models: Tensor) -> float:
        return float((omega * (models @ models.T)).sum())

    assert whole(models - omega @ models) <= whole(models)


def test_models_that_differ_little_are_pulled_to_their_mean_and_groups_that_differ_much_are_not() -> None:
    draw = torch.Generator().manual_seed(0)
    centres = 10 * torch.randn(2, 500, generator=draw).double()
    models = torch.cat([centre + 1e-3 * torch.randn(3, 500, generator=draw).double() for centre in centres])
    pulled = models - relations(products(list(models))) @ models
    for group in (slice(0, 3), slice(3, 6)):
        spread = (models[group] - models[group].mean(0)).norm()
        assert (pulled[group] - pulled[group].mean(0)).norm() < 0.1 * spread
        assert (pulled[group] - models[group]).norm() < 0.03 * models[group].norm()


# --- Training ---


def test_without_relations_it_is_separate_training(alone: Tensor) -> None:
    assert torch.equal(SmallFederation(method=method("mocha", lam=0.0)).run(3).models(), alone)


def test_a_round_by_hand() -> None:
    """A client trains on from its own model, towards it less what it received."""
    federation = SmallFederation(method=method("mocha", lam=0.7)).run(1)
    models = federation.models()
    omega = relations(products(list(models)))
    received = federation.download(2, 1).vectors["combination"]
    torch.testing.assert_close(received, (omega[2] @ models.double()).float())
    client, context = federation.clients[2], federation.contexts[2]
    client.receive(context, federation.download(2, 1))
    assert torch.equal(client.personalised(), models[2])
    client.train(context, 1)
    expected, _ = local_sgd(context, 1, models[2], correction=pull(models[2] - received, 0.7))
    assert torch.equal(client.personalised(), expected)


def test_stronger_relations_bring_models_nearer_to_each_other() -> None:
    spreads = []
    for lam in (0.0, 0.5, 5.0):
        models = SmallFederation(method=method("mocha", lam=lam)).run(3).models()
        spreads.append((models - models.mean(0)).norm().item())
    assert spreads[0] > spreads[1] > spreads[2]


def test_of_an_absent_client_the_last_model_counts() -> None:
    federation = SmallFederation(method="mocha").run(1)
    server, before = server_of(federation), federation.models()
    server.aggregate({1: {"model": before[1] + 0.1}})
    expected = torch.stack([before[0], before[1] + 0.1, before[2], before[3]])
    assert torch.equal(torch.stack(server.models), expected)
    assert torch.equal(server.relations, relations(products(list(expected))))


def test_relations_on_which_sgd_diverges_are_refused() -> None:
    small_experiment(method=method("mocha", lam=75.0))
    with pytest.raises(orchard.UserError, match=r"method.lam = 77: lr × lam = 3.85, but SGD diverges beyond 3.8"):
        small_experiment(method=method("mocha", lam=77.0))


# --- A newcomer ---


def test_a_newcomer_gets_what_it_would_as_one_more_client() -> None:
    federation = SmallFederation(method="mocha").run(2)
    server, first = server_of(federation), federation.federation.initial_model()
    before = server.state()
    for own, upload in ((first, None), (federation.models()[1] + 0.01, federation.models()[1] + 0.01)):
        sent = server.welcome(4, ("combination",), None if upload is None else {"model": upload})["combination"]
        models = torch.stack([*federation.models(), own])
        expected = relations(products(list(models)))[-1] @ models.double()
        torch.testing.assert_close(sent, expected.float())
    assert server.state() == before
