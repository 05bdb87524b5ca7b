"""The eight baselines against exact degenerate cases. "is" in a name means bit for bit."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

import orchard
from helpers import SmallFederation, small_arrays, small_experiment
from orchard.data import Samples
from orchard.experiment import Moment
from orchard.methods.apfl import APFLClient
from orchard.methods.fedavg import AveragingServer, FedAvgClient
from orchard.methods.fedfomo import FedFomoClient
from orchard.methods.heurfedamp import HeurFedAMPServer, cosines, mixture_weights
from orchard.training import descend, gradient, mean_loss

ALL = ["separate", "fedavg", "fedavg-local", "fedavg-ft", "fedprox-ft", "apfl", "heurfedamp", "fedfomo", "apple"]


def method(name: str, **parameters: object) -> dict[str, object]:
    return {"name": name, **parameters}


def accuracies(name: str, moment: Moment, **parameters: object) -> NDArray[np.float64]:
    run = orchard.run(small_experiment(rounds=4, method=method(name, **parameters)), small_arrays())
    return run.accuracy(moment=moment)


def global_model(federation: SmallFederation) -> Tensor:
    assert isinstance(federation.server, AveragingServer)
    return federation.server.model


@pytest.fixture(scope="module")
def alone() -> Tensor:
    return SmallFederation(method="separate").run(3).models()


# --- Separate and the FedAvg family ---------------------------------------------------------------------


def test_separate_sends_nothing_and_nobody_elses_data_matter() -> None:
    arrays = small_arrays()
    first = orchard.run(small_experiment(method="separate"), arrays)
    arrays[0].x_train[:] = 0
    second = orchard.run(small_experiment(method="separate"), arrays)
    for i in (1, 2, 3):
        assert torch.equal(first.models[i][0], second.models[i][0])
    assert not torch.equal(first.models[0][0], second.models[0][0])
    assert {byte for entry in first.rounds for byte in entry.bytes_up + entry.bytes_down} == {0}


def test_all_clients_start_from_one_model() -> None:
    for name in ALL[:-1]:
        models = SmallFederation(method=name).models()
        assert all(torch.equal(model, models[0]) for model in models)


def test_fedavg_averages_by_samples() -> None:
    federation = SmallFederation(method="fedavg")
    answers = federation.round(0)
    shares = np.array(federation.federation.shares)
    uploads = np.stack([answer.upload.vector.numpy() for answer in answers if answer.upload]).astype(np.float64)
    np.testing.assert_array_equal(global_model(federation).numpy(), (shares @ uploads).astype(np.float32))


def test_an_absent_client_is_left_out_of_the_average() -> None:
    federation = SmallFederation(method="fedavg")
    answers = federation.round(0)
    uploads = {i: a.upload for i, a in enumerate(answers) if a.upload and i != 2}
    federation.server.collect(uploads)
    samples = federation.federation.samples
    total = samples[0] + samples[1] + samples[3]
    expected = sum(samples[i] / total * upload.vector.double() for i, upload in uploads.items())
    torch.testing.assert_close(global_model(federation).double(), expected, rtol=1e-6, atol=1e-8)


def test_fedavg_of_one_client_is_separate() -> None:
    together = SmallFederation(method="fedavg", clients=1).run(3)
    apart = SmallFederation(method="separate", clients=1).run(3)
    assert torch.equal(together.models(), apart.models())
    assert torch.equal(global_model(together), apart.models()[0])


def test_the_first_round_of_fedavg_local_is_separate() -> None:
    assert torch.equal(
        SmallFederation(method="fedavg-local").run(1).models(), SmallFederation(method="separate").run(1).models()
    )


def test_fedprox_without_mu_is_fedavg() -> None:
    prox = SmallFederation(method=method("fedprox-ft", mu=0.0, tuning_epochs=1)).run(3)
    assert torch.equal(global_model(prox), global_model(SmallFederation(method="fedavg").run(3)))


def test_one_step_of_fedprox_is_fedavg_for_any_mu() -> None:
    prox, plain = (
        SmallFederation(method=name, epochs=1, batch_size=1000).run(3)
        for name in (method("fedprox-ft", mu=50.0), "fedavg")
    )
    assert torch.equal(global_model(prox), global_model(plain))


def test_a_larger_mu_drifts_less() -> None:
    def drift(mu: float) -> float:
        federation = SmallFederation(method=method("fedprox-ft", mu=mu), epochs=10)
        start = global_model(federation)
        federation.round(0)
        return float((federation.models() - start).norm(dim=1).sum())

    drifts = [drift(mu) for mu in (0.0, 1.0, 10.0)]
    assert drifts[0] > drifts[1] > drifts[2]


def test_the_proximal_gradient_is_inside_the_momentum() -> None:
    """Two steps by hand on client 0: v1 = g1, w1 = w0 − ηv1; v2 = 0.9·v1 + g2 + μ(w1 − w0), w2 = w1 − ηv2."""
    federation = SmallFederation(method=method("fedprox-ft", mu=3.0), epochs=2, batch_size=1000)
    site, client = federation.sites[0], federation.clients[0]
    x, y = site.data.train
    w0, lr, network = global_model(federation).clone(), federation.experiment.lr, site.network

    def slope(w: Tensor) -> Tensor:
        network.vector.copy_(w)
        gradient(network, x, y)
        return network.gradient.clone()

    v = slope(w0)
    w1 = w0 - lr * v
    v = 0.9 * v + slope(w1) + 3.0 * (w1 - w0)
    client.train(site, 0)
    torch.testing.assert_close(client.personalised(), w1 - lr * v, rtol=1e-5, atol=1e-7)


def test_no_tuning_at_all_is_fedavg() -> None:
    assert np.array_equal(accuracies("fedavg-ft", "tuned", tuning_epochs=0), accuracies("fedavg", "exchanged"))


def test_tuning_after_a_round_is_local_training_of_the_next() -> None:
    tuned, local = accuracies("fedavg-ft", "tuned"), accuracies("fedavg-local", "trained")
    assert np.array_equal(tuned[:-1], local[1:])
    assert not np.isnan(tuned[-1]).any()


@pytest.mark.parametrize("epochs", [None, 1])
def test_one_tuning_run_gives_the_three_rows(epochs: int | None) -> None:
    run = orchard.run(small_experiment(rounds=4, method=method("fedavg-ft", tuning_epochs=epochs)), small_arrays())
    assert np.array_equal(run.accuracy(moment="exchanged"), accuracies("fedavg", "exchanged"))
    assert np.array_equal(run.accuracy(moment="trained"), accuracies("fedavg-local", "trained"))


def test_tuning_like_training_costs_no_second_training(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*arguments: Any, **options: Any) -> tuple[Tensor, float]:
        calls.append(arguments)
        return descend(*arguments, **options)

    monkeypatch.setattr("orchard.methods.fedavg.descend", counted)
    federation = SmallFederation(method="fedavg-ft")
    for r in range(4):  # three rounds, and the exchange that ends the run
        federation.round(r)
    assert len(calls) == 4 * (3 + 1)


def test_tuned_models_are_discarded() -> None:
    with_tuning = SmallFederation(method=method("fedavg-ft", tuning_epochs=7)).run(3)
    assert torch.equal(global_model(with_tuning), global_model(SmallFederation(method="fedavg").run(3)))


# --- APFL -----------------------------------------------------------------------------------------------


def apfl(**parameters: object) -> SmallFederation:
    return SmallFederation(method=method("apfl", **parameters))


def apfl_clients(federation: SmallFederation) -> list[APFLClient]:
    return [client for client in federation.clients if isinstance(client, APFLClient)]


def test_apfl_with_alpha_one_is_separate(alone: Tensor) -> None:
    federation = apfl(alpha=1.0, adaptive=False).run(3)
    assert torch.equal(torch.stack([client.private for client in apfl_clients(federation)]), alone)
    assert torch.equal(federation.models(), alone)


def test_apfl_with_alpha_zero_is_fedavg_local_and_the_private_model_stays() -> None:
    federation = apfl(alpha=0.0, adaptive=False)
    start = apfl_clients(federation)[0].private.clone()
    federation.run(3)
    assert torch.equal(federation.models(), SmallFederation(method="fedavg-local").run(3).models())
    assert all(torch.equal(client.private, start) for client in apfl_clients(federation))


def test_the_global_branch_of_apfl_is_fedavg_whatever_alpha() -> None:
    fedavg = global_model(SmallFederation(method="fedavg").run(3))
    for parameters in ({}, {"alpha": 0.9}, {"alpha": 0.3, "adaptive": False}):
        assert torch.equal(global_model(apfl(**parameters).run(3)), fedavg)


def test_alpha_stays_between_zero_and_one() -> None:
    federation = SmallFederation(method="apfl", lr=0.9, rounds=9)
    for r in range(9):
        federation.round(r)
        assert all(0 <= client.alpha.item() <= 1 for client in apfl_clients(federation))


def test_alpha_moves_once_a_round_by_its_gradient() -> None:
    federation = SmallFederation(method="apfl", model=lambda: torch.nn.Linear(6, 3).double(), batch_size=1000, rounds=9)
    client, site = apfl_clients(federation)[1], federation.sites[1]
    data = site.data
    x, y = data.train.x.double(), data.train.y
    object.__setattr__(data, "train", Samples(x, y))
    client.private = client.private + 0.1 * torch.randn(21, dtype=torch.float64)

    def objective(alpha: float) -> float:
        mixed = alpha * client.private + (1 - alpha) * client.model
        return mean_loss(site.network, mixed, data.train)

    before, h = client.alpha.item(), 1e-5
    slope = (objective(before + h) - objective(before - h)) / (2 * h)
    client.train(site, 0)  # two epochs of one step each
    assert client.alpha.item() == pytest.approx(before - federation.experiment.lr * slope, rel=1e-6)


# --- HeurFedAMP -----------------------------------------------------------------------------------------


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
    torch.testing.assert_close(federation.server.reply(1, (1,))[1], model)


def test_heurfedamp_on_its_own_is_separate(alone: Tensor) -> None:
    assert torch.equal(SmallFederation(method=method("heurfedamp", self_weight=1.0, lam=0.0)).run(3).models(), alone)


def test_heurfedamp_of_one_client_starts_where_it_ended() -> None:
    federation = SmallFederation(method=method("heurfedamp", lam=0.0), clients=1).run(3)
    assert torch.equal(federation.models(), SmallFederation(method="separate", clients=1).run(3).models())


def test_the_pull_grows_tenfold_every_thirty_rounds() -> None:
    heurfedamp = small_experiment(method="heurfedamp").method
    pulls = [heurfedamp.pull(r) for r in (0, 29, 30, 65)]  # type: ignore[attr-defined]
    assert pulls == pytest.approx([1e-4, 1e-4, 1e-3, 1e-2])


# --- FedFomo --------------------------------------------------------------------------------------------


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
    federation = SmallFederation(method="fedfomo").run(1)
    client = fomo_clients(federation)[1]
    base = client.base
    models = {j: torch.randn_like(base) for j in (0, 2, 3)} | {1: client.model}
    monkeypatch.setattr(client, "_worth", lambda _site, _candidates: worth)
    client.receive(federation.sites[1], orchard.contract.Reply(1, {j: models[j] for j in (0, 2, 3)}))
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
    client, site = fomo_clients(federation)[0], federation.sites[0]
    other = client.base + 0.1
    worth = client._worth(site, {1: other, 2: client.base.clone()})
    loss = mean_loss(site.network, client.base, site.data.validation)
    gain = loss - mean_loss(site.network, other, site.data.validation)
    assert worth[1] == pytest.approx(gain / (0.1 * math.sqrt(len(other)) + 1e-8), rel=1e-4)
    assert worth[2] == 0.0


def test_test_data_never_affect_fedfomo() -> None:
    arrays = small_arrays()
    first = orchard.run(small_experiment(method="fedfomo"), arrays)
    for client in arrays:
        client.x_test[:] = 0
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
        late.append(client.wants(6))
        early.append(client.wants(1))
    assert set(late) == {(2,)}
    assert early.count((2,)) / 2000 == pytest.approx(0.75 + 0.25 / 3, abs=0.04)
    client.affinity[1] = 0.9
    ties = []
    for seed in range(500):
        client.seed = seed
        ties.append(client.wants(9))
    assert ties.count((1,)) / 500 == pytest.approx(0.5, abs=0.1)


# --- All of them ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_traffic_equals_the_table(name: str) -> None:
    run = orchard.run(small_experiment(rounds=3, method=name), small_arrays())
    m = 4 * run.summary()["parameters"]
    up, down = {"separate": (0, 0), "fedfomo": (m, 3 * m), "apple": (m, 3 * m)}.get(name, (m, m))
    for entry in run.rounds[1:]:
        assert entry.bytes_up == [up] * 4
        assert entry.bytes_down == [down] * 4
    first = run.rounds[0]
    # FedFomo's first round starts from one initial model, so that there is nothing to download yet.
    assert (first.bytes_up, first.bytes_down) == ([up] * 4, [0 if name == "fedfomo" else down] * 4)


@pytest.mark.parametrize("name", ["fedfomo", "apple"])
def test_traffic_under_a_budget(name: str) -> None:
    run = orchard.run(small_experiment(rounds=3, method=method(name, budget=2)), small_arrays())
    m = 4 * run.summary()["parameters"]
    assert run.rounds[-1].bytes_down == [2 * m] * 4


@pytest.mark.parametrize("name", ALL)
def test_workers_change_nothing(name: str) -> None:
    runs = [orchard.run(small_experiment(method=name, workers=w), small_arrays()) for w in (1, 3)]
    first, second = (torch.stack([m for m, _ in run.models]) for run in runs)
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (method("apfl", alpha=1.5), "method.alpha = 1.5: input should be less than or equal to 1"),
        (method("apfl", alpha=-0.1), "method.alpha = -0.1: input should be greater than or equal to 0"),
        (method("apfl", alpha=0.0), "method.alpha = 0: v = w at the start, so α would never move"),
        (method("heurfedamp", sigma=-1.0), "method.sigma = -1.0: input should be greater than or equal to 0"),
        (method("heurfedamp", lam=1e6), "method.lam = 1e+06: lr × lam / α_k in the worst round = 5"),
        (method("fedprox-ft", mu=100.0), "method.mu = 100: lr × mu = 5, beyond 3.8 where SGD diverges"),
        (method("fedprox-ft", tuning_epochs=-1), "method.tuning_epochs = -1: input should be greater"),
        (method("fedfomo", budget=4), "method.budget = 4: at most clients − 1 = 3 others to download"),
        (method("fedavgg"), "method.name = 'fedavgg': unknown method; did you mean 'fedavg'?"),
        (method("separate", mu=1.0), "method.mu: unknown key; known: name"),
    ],
)
def test_bad_parameters_are_refused_in_one_line(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(orchard.Refusal) as refusal:
        small_experiment(method=parameters)
    assert str(refusal.value).startswith(message)
    assert "\n" not in str(refusal.value)


def test_an_averaging_client_uploads_its_copy() -> None:
    federation = SmallFederation(method="fedavg").run(1)
    client = federation.clients[0]
    assert isinstance(client, FedAvgClient)
    assert torch.equal(client.upload(), client.personalised())
