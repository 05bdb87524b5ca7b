"""FedAMP: its weights by hand, its limits, and what a newcomer gets."""

import math

import pytest
import torch
from torch import Tensor

import orchard
from helpers import SmallFederation, method, small_experiment
from orchard.core.training import local_sgd, pull
from orchard.methods.fedamp import FedAMP, FedAMPServer, mixture_weights, squared_distances

EQUAL = torch.zeros(4, 4, dtype=torch.float64)


def server_of(federation: SmallFederation) -> FedAMPServer:
    assert isinstance(federation.server, FedAMPServer)
    return federation.server


# --- Weights ---


def test_weights_by_hand() -> None:
    models = [torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0]), torch.tensor([0.0, 3.0])]
    distances = squared_distances(models)
    assert distances.tolist() == [[0, 1, 9], [1, 0, 10], [9, 10, 0]]
    near, far, farther = (0.25 * math.exp(-d / 2) for d in (1, 9, 10))  # α/σ = 0.5/2
    expected = [[1 - near - far, near, far], [near, 1 - near - farther, farther], [far, farther, 1 - far - farther]]
    torch.testing.assert_close(
        mixture_weights(distances, sigma=2.0, alpha=0.5), torch.tensor(expected, dtype=torch.float64)
    )


def test_weights_of_equal_models() -> None:
    expected = torch.full((4, 4), 0.2, dtype=torch.float64).fill_diagonal_(0.4)
    torch.testing.assert_close(mixture_weights(EQUAL, sigma=5.0, alpha=1.0), expected)
    by_default = mixture_weights(EQUAL, sigma=5.0, alpha=FedAMP(sigma=5.0).step(4))
    assert torch.equal(by_default, torch.full_like(by_default, 0.25))


def test_with_the_largest_step_a_clients_own_weight_is_not_below_zero() -> None:
    """Six times α/σ is 1, but their sum is above it by rounding."""
    equal = torch.zeros(7, 7, dtype=torch.float64)
    assert not mixture_weights(equal, sigma=10.0, alpha=10 / 6).diagonal().any()


def test_a_distance_is_not_below_zero() -> None:
    draw = torch.Generator().manual_seed(0)
    model = torch.randn(50, generator=draw, dtype=torch.float64)
    models = [model, model + 1e-10 * torch.randn(50, generator=draw, dtype=torch.float64)]
    assert float(squared_distances(models).min()) == 0


def test_distances_are_those_of_float64() -> None:
    models = [torch.tensor([1000.0, 1000.0]), torch.tensor([1000.0, 1000.0 + 2**-10])]
    assert squared_distances(models)[0, 1].item() == pytest.approx(2**-20, rel=1e-3)


def test_who_comes_in_another_order_gets_the_same() -> None:
    models = list(torch.randn(4, 50, generator=torch.Generator().manual_seed(0)))
    order = [2, 0, 3, 1]
    sent = []
    for present in (models, [models[j] for j in order]):
        federation = SmallFederation(method=method("fedamp", sigma=50.0))
        server = server_of(federation)
        server.models, server.like = present, present[0]
        server.aggregate({j: {"model": model} for j, model in enumerate(present)})
        sent.append([server.send(i, ())["mixture"] for i in range(4)])
    for i, j in enumerate(order):
        torch.testing.assert_close(sent[1][i], sent[0][j])
    assert not torch.allclose(sent[0][0], models[0])


# --- Training ---


def test_without_a_pull_it_is_separate_training(alone: Tensor) -> None:
    assert torch.equal(SmallFederation(method=method("fedamp", lam=0.0)).run(3).models(), alone)


def test_with_nobody_near_it_is_separate_training_with_a_pull_towards_itself() -> None:
    federation = SmallFederation(method=method("fedamp", sigma=1e-6, lam=2e-6))  # λ/α = 8
    model = federation.federation.initial_model()
    for r in range(3):
        federation.round(r)
        model, _ = local_sgd(federation.contexts[3], r, model, correction=pull(model, 8.0))
        assert torch.equal(federation.models()[3], model)
    assert torch.equal(server_of(federation).weights, torch.eye(4, dtype=torch.float64))


def test_one_client_is_alone_with_a_pull_towards_itself() -> None:
    federation = SmallFederation(method=method("fedamp", sigma=1.0, lam=2.0), clients=1).run(2)
    model = federation.federation.initial_model()
    for r in range(2):
        model, _ = local_sgd(federation.contexts[0], r, model, correction=pull(model, 2.0))
    assert torch.equal(federation.models()[0], model)


def test_a_round_by_hand() -> None:
    """The server weighs what came; the client trains on from its own model, pulled towards the mixture."""
    federation = SmallFederation(method=method("fedamp", sigma=2.0, alpha=0.5, lam=0.8)).run(1)
    models = federation.models()
    distances = (models[:, None].double() - models.double()).square().sum(2)
    weights = mixture_weights(distances, sigma=2.0, alpha=0.5)
    torch.testing.assert_close(server_of(federation).weights, weights)
    received = federation.download(2, 1).vectors["mixture"]
    torch.testing.assert_close(received, (weights[2] @ models.double()).float())
    federation.round(1)
    expected, _ = local_sgd(federation.contexts[2], 1, models[2], correction=pull(received, 1.6))
    assert torch.equal(federation.models()[2], expected)


def test_of_an_absent_client_the_last_model_counts() -> None:
    federation = SmallFederation(method="fedamp").run(1)
    server, before = server_of(federation), federation.models()
    changed = before + 0.1
    server.aggregate({1: {"model": changed[1]}})
    assert torch.equal(torch.stack(server.models), torch.stack([before[0], changed[1], before[2], before[3]]))
    torch.testing.assert_close(
        server.weights, mixture_weights(squared_distances(server.models), 10.0, 10.0 / 4), rtol=0, atol=0
    )


# --- What is refused ---


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"alpha": 4.0}, r"alpha = 4: \(clients − 1\) × alpha / sigma = 1.2, but beyond 1 a client's own model could"),
        ({"alpha": 0.001}, r"lam = 0.1: lr × lam / alpha = 5, but SGD diverges beyond 3.8"),
        ({"lam": 200.0}, r"lam = 200: lr × lam / alpha = 4, but SGD diverges beyond 3.8"),
        ({"sigma": 0.0}, r"sigma = 0.0: input should be greater than 0"),
    ],
)
def test_what_would_be_undefined_or_diverge_is_refused(parameters: dict[str, float], message: str) -> None:
    with pytest.raises(orchard.UserError, match=f"method.{message}"):
        small_experiment(method=method("fedamp", **parameters))


def test_what_is_just_not_refused() -> None:
    for parameters in ({"alpha": 10 / 3}, {"lam": 189.0}):
        small_experiment(method=method("fedamp", **parameters))


# --- A newcomer ---


def test_a_newcomer_first_gets_the_mean_of_all() -> None:
    federation = SmallFederation(method="fedamp").run(1)
    sent = server_of(federation).welcome(4, ("mixture",), None)["mixture"]
    torch.testing.assert_close(sent, federation.models().mean(0))


@pytest.mark.parametrize("alpha", [None, 10 / 3])
def test_a_newcomer_then_gets_what_it_would_as_one_more_client(alpha: float | None) -> None:
    federation = SmallFederation(method=method("fedamp", alpha=alpha)).run(1)
    server = server_of(federation)
    before = server.state()
    own = federation.models()[1] + 0.01
    sent = server.welcome(4, ("mixture",), {"model": own})["mixture"]
    models = torch.stack([*federation.models(), own]).double()
    # With N others, the largest step is σ/N; that of the federation was σ/(N − 1).
    step = 10 / 5 if alpha is None else 10 / 4
    weights = mixture_weights(squared_distances(list(models)), 10.0, step)[-1]
    torch.testing.assert_close(sent, (weights @ models).float())
    assert server.state() == before
