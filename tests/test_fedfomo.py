"""FedFomo: worth, mixture and choice by hand."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import orchard
from helpers import SmallFederation, method, small_arrays, small_experiment
from orchard.core import evaluation, training
from orchard.core.contract import Download
from orchard.core.evaluation import mean_loss, outputs_of
from orchard.core.vector import Network
from orchard.data.samples import Samples
from orchard.methods.fedfomo import FedFomoClient, model_of


def fomo_clients(federation: SmallFederation) -> list[FedFomoClient]:
    return [client for client in federation.clients if isinstance(client, FedFomoClient)]


def test_the_first_round_of_fedfomo_is_separate() -> None:
    fomo = SmallFederation(method="fedfomo").run(1)
    assert torch.equal(fomo.models(), SmallFederation(method="separate").run(1).models())


def test_fedfomo_weights_are_a_distribution_or_nothing() -> None:
    federation = SmallFederation(method="fedfomo", rounds=6)
    for r in range(6):
        federation.round(r)
        for client in fomo_clients(federation):
            assert (client.weights >= 0).all()
            assert client.weights.sum() == pytest.approx(1) or not client.weights.any()


def received(
    worth: dict[int, float], monkeypatch: pytest.MonkeyPatch
) -> tuple[FedFomoClient, Tensor, dict[int, Tensor]]:
    """Client 1 of four, after receiving three models that are worth this much."""
    federation = SmallFederation(method=method("fedfomo", budget=2)).run(1)
    client = fomo_clients(federation)[1]
    base = client.base
    models = {j: torch.randn_like(base) for j in (0, 2, 3)} | {1: client.model}
    monkeypatch.setattr(client, "_worth", lambda _context, _candidates: worth)
    client.receive(federation.contexts[1], Download(1, {model_of(j): models[j] for j in (0, 2, 3)}))
    return client, base, models


def test_where_nobody_helps_the_base_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    client, base, _ = received({0: -1.0, 1: 0.0, 2: -0.5, 3: -3.0}, monkeypatch)
    assert torch.equal(client.personalised(), base)
    assert not client.weights.any()


def test_the_mixture_and_the_affinity_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    client, _, models = received({0: 3.0, 1: 1.0, 2: -2.0, 3: 0.0}, monkeypatch)
    torch.testing.assert_close(client.base, 0.75 * models[0] + 0.25 * models[1])
    assert client.affinity.tolist() == pytest.approx([1.5, 0.1 + 0.5, -1.0, 0.0])  # a/|Σa| with Σa = 2


def test_worth_by_hand_and_a_candidate_equal_to_the_base() -> None:
    federation = SmallFederation(method="fedfomo").run(1)
    client, context = fomo_clients(federation)[0], federation.contexts[0]
    other = client.base + 0.1
    worth = client._worth(context, {1: other, 2: client.base.clone()})
    loss = mean_loss(context.network, client.base, context.data.validation)
    gain = loss - mean_loss(context.network, other, context.data.validation)
    assert worth[1] == pytest.approx(gain / (0.1 * math.sqrt(len(other)) + 1e-8), rel=1e-4)
    assert worth[2] == 0.0


def test_a_loss_above_the_limit_is_infinite_and_any_other_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "FIRST_BATCH", 2)
    federation = SmallFederation()
    context, model = federation.contexts[0], federation.federation.initial_model()
    whole = mean_loss(context.network, model, context.data.train)
    scores = outputs_of(context.network, model, context.data.train.x)
    assert whole == pytest.approx(functional.cross_entropy(scores, context.data.train.y).item(), rel=1e-6)
    assert mean_loss(context.network, model, context.data.train, limit=whole) == whole
    for limit in (math.nextafter(whole, 0), whole / 2, 0.0):
        assert mean_loss(context.network, model, context.data.train, limit=limit) == math.inf
    seen: list[int] = []
    context.network.module.register_forward_hook(lambda _module, _inputs, scores: seen.append(len(scores)))
    mean_loss(context.network, model, context.data.train, limit=0.0)
    assert seen == [2]
    mean_loss(context.network, model, context.data.train)
    assert seen[1:] == [2, 4, 8, 3]


def test_stopping_at_what_is_worse_than_the_base_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "FIRST_BATCH", 2)
    stopped = 0

    def counted(network: Network, model: Tensor, samples: Samples, limit: float = math.inf) -> float:
        nonlocal stopped
        stopped += math.isinf(found := mean_loss(network, model, samples, limit))
        return found

    def in_full(network: Network, model: Tensor, samples: Samples, _limit: float = math.inf) -> float:
        return mean_loss(network, model, samples)

    monkeypatch.setattr(training, "mean_loss", counted)
    quick = SmallFederation(method="fedfomo", rounds=6).run(6)
    monkeypatch.setattr(training, "mean_loss", in_full)
    slow = SmallFederation(method="fedfomo", rounds=6).run(6)
    assert stopped
    assert torch.equal(quick.models(), slow.models())
    for one, other in zip(fomo_clients(quick), fomo_clients(slow), strict=True):
        assert np.array_equal(one.weights, other.weights)


def test_the_losses_of_base_and_model_are_those_of_the_last_round(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = SmallFederation(method="fedfomo", rounds=6).run(2)
    for client, context in zip(fomo_clients(federation), federation.contexts, strict=True):
        for model, loss in ((client.model, client.model_loss), (client.base, client.base_loss)):
            assert loss == pytest.approx(mean_loss(context.network, model, context.data.validation), rel=1e-5)
    run = 0

    def counted(network: Network, model: Tensor, samples: Samples, limit: float = math.inf) -> float:
        nonlocal run
        run += 1
        return mean_loss(network, model, samples, limit)

    monkeypatch.setattr(training, "mean_loss", counted)
    federation.round(2)
    assert run == len(federation.clients) * (len(federation.clients) - 1)  # the others' models alone


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def test_a_base_that_was_measured_with_other_statistics_is_measured_again() -> None:
    federation = SmallFederation(method="fedfomo", model=normalised, batch_size=64).run(2)
    for client, context in zip(fomo_clients(federation), federation.contexts, strict=True):
        assert client.base_loss is None
        assert client.model_loss == pytest.approx(
            mean_loss(context.network, client.model, context.data.validation), rel=1e-5
        )


def test_test_data_never_affect_fedfomo() -> None:
    arrays = small_arrays()
    first = orchard.run(small_experiment(method="fedfomo"), arrays)
    for client in arrays:
        np.asarray(client.x_test)[:] = 0
    second = orchard.run(small_experiment(method="fedfomo"), arrays)
    assert np.array_equal(first.relationships, second.relationships)  # type: ignore[arg-type]
    assert torch.equal(torch.stack([m for m, _ in first.models]), torch.stack([m for m, _ in second.models]))


def test_fedfomo_explores_early_and_then_takes_the_best() -> None:
    federation = SmallFederation(method=method("fedfomo", budget=1))
    client = fomo_clients(federation)[0]
    client.affinity = np.array([0.1, 0.5, 0.9, -0.2])
    late, early = [], []
    for seed in range(2000):
        client.seed = seed
        late.append(tuple(client.select(6)))
        early.append(tuple(client.select(1)))
    assert set(late) == {(model_of(2),)}
    assert early.count((model_of(2),)) / 2000 == pytest.approx(0.75 + 0.25 / 3, abs=0.04)
    client.affinity[1] = 0.9
    ties = []
    for seed in range(500):
        client.seed = seed
        ties.append(tuple(client.select(9)))
    assert ties.count((model_of(1),)) / 500 == pytest.approx(0.5, abs=0.1)


def test_ties_are_drawn_anew_in_every_round_and_by_every_client() -> None:
    federation = SmallFederation(method=method("fedfomo", budget=1))
    choices = []
    for i, client in enumerate(fomo_clients(federation)):
        others = [model_of(j) for j in range(4) if j != i]
        choices.append([others.index(name) for r in range(6, 36) for name in client.select(r)])
        assert set(choices[-1]) == {0, 1, 2}
    assert len({tuple(choice) for choice in choices}) == 4


def test_a_candidate_that_overflows_is_worth_nothing_and_spoils_nothing() -> None:
    federation = SmallFederation(method="fedfomo").run(1)
    client, context = fomo_clients(federation)[1], federation.contexts[1]
    sound = federation.server.send(1, client.select(1))
    client.receive(context, Download(1, {**sound, model_of(0): torch.full_like(client.base, 1e30)}))
    assert client.weights[0] == 0
    assert client.weights.sum() == pytest.approx(1)
    assert client.personalised().isfinite().all()
    assert np.isfinite(client.affinity).all()
