"""HeurFedAMP: its mixture weights, and separate training as a special case."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers import SmallFederation, method, small_experiment
from orchard.core.training import local_sgd, pull
from orchard.core.vector import cosines
from orchard.methods.heurfedamp import HeurFedAMPServer, mixture_weights


@given(
    n=st.integers(2, 8),
    sigma=st.floats(0, 100),
    self_weight=st.floats(0, 1),
    seed=st.integers(0, 100),
)
def test_mixture_weights_are_a_distribution(n: int, sigma: float, self_weight: float, seed: int) -> None:
    models = list(torch.randn(n, 20, generator=torch.Generator().manual_seed(seed)))
    weights = mixture_weights(cosines(models), sigma, self_weight)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(1), torch.ones(n, dtype=torch.float64))
    torch.testing.assert_close(weights.diagonal(), torch.full((n,), self_weight, dtype=torch.float64))
    scaled = [5 * models[0], *models[1:]]
    torch.testing.assert_close(mixture_weights(cosines(scaled), sigma, self_weight), weights, rtol=1e-4, atol=1e-6)


def test_mixture_weights_by_hand() -> None:
    models = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0]), torch.tensor([3.0, 0.0])]
    weights = mixture_weights(cosines(models), sigma=1.0, self_weight=0.4)
    e = math.e
    assert weights[0].tolist() == pytest.approx([0.4, 0.6 * 1 / (1 + e), 0.6 * e / (1 + e)])
    assert weights[1].tolist() == pytest.approx([0.3, 0.4, 0.3])


def test_without_sigma_all_others_count_alike() -> None:
    weights = mixture_weights(cosines(list(torch.randn(5, 9))), sigma=0.0, self_weight=0.2)
    torch.testing.assert_close(weights, torch.full((5, 5), 0.2, dtype=torch.float64))


def test_extreme_resemblance_stays_finite() -> None:
    weights = mixture_weights(torch.ones(4, 4, dtype=torch.float64), sigma=100.0, self_weight=0.25)
    assert weights.isfinite().all()


def test_a_mixture_of_equal_models_is_that_model() -> None:
    federation = SmallFederation(method="heurfedamp")
    assert isinstance(federation.server, HeurFedAMPServer)
    model = torch.randn_like(federation.server.models[0])
    federation.server.models = [model] * 4
    federation.server.weights = mixture_weights(cosines([model] * 4), sigma=25.0, self_weight=0.25)
    torch.testing.assert_close(federation.server.send(1, ("mixture",))["mixture"], model)


def test_heurfedamp_on_its_own_is_separate(alone: Tensor) -> None:
    assert torch.equal(SmallFederation(method=method("heurfedamp", self_weight=1.0, lam=0.0)).run(3).models(), alone)


def test_heurfedamp_of_one_client_starts_where_it_ended() -> None:
    federation = SmallFederation(method=method("heurfedamp", lam=0.0), clients=1).run(3)
    assert torch.equal(federation.models(), SmallFederation(method="separate", clients=1).run(3).models())


def test_the_pull_grows_tenfold_every_thirty_rounds() -> None:
    heurfedamp = small_experiment(method="heurfedamp").method
    pulls = [heurfedamp.pull_strength(r) for r in (0, 29, 30, 65)]  # type: ignore[attr-defined]
    assert pulls == pytest.approx([1e-4, 1e-4, 1e-3, 1e-2])


def test_a_round_by_hand() -> None:
    """The server weighs what came; the client starts at its mixture and is pulled back to it."""
    federation = SmallFederation(method=method("heurfedamp", lam=2e5), epochs=1, rounds=9)
    federation.run(1)
    assert isinstance(federation.server, HeurFedAMPServer)
    models = federation.models()
    weights = mixture_weights(cosines(list(models)), sigma=25.0, self_weight=1 / 4)
    torch.testing.assert_close(federation.server.weights, weights)
    mixture = (weights[2] @ models.double()).float()
    client, context = federation.clients[2], federation.contexts[2]
    download = federation.download(2, 1)
    received = download.vectors["mixture"]
    torch.testing.assert_close(received, mixture)
    client.receive(context, download)
    assert torch.equal(client.personalised(), models[2])  # what it uses is still its own
    client.train(context, 1)
    expected, _ = local_sgd(context, 1, received, correction=pull(received, 20.0))
    assert torch.equal(client.personalised(), expected)
    free, _ = local_sgd(context, 1, received)
    assert (expected - mixture).norm() < (free - mixture).norm()
