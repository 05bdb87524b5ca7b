"""Separate, FedAvg and its relatives, against exact degenerate cases. "is" in a name means bit for bit."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import orchard
from helpers import SmallFederation, method, small_arrays, small_experiment
from orchard.core.training import gradient, local_sgd
from orchard.method import Moment
from orchard.methods import FedAvgClient
from orchard.methods.registry import BUILT_IN
from test_vector import Residual


def accuracies(name: str, moment: Moment, **parameters: object) -> NDArray[np.float64]:
    run = orchard.run(small_experiment(rounds=4, method=method(name, **parameters)), small_arrays())
    return run.scores(moment=moment)


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
    for name in BUILT_IN.keys() - {"apple"}:
        models = [client.personalised() for client in SmallFederation(method=name).clients]
        assert all(torch.equal(model, models[0]) for model in models)


def test_fedavg_averages_by_samples() -> None:
    federation = SmallFederation(method="fedavg")
    updates = federation.round(0)
    shares = np.array(federation.federation.shares)
    uploads = np.stack([update.upload["model"].numpy() for update in updates]).astype(np.float64)
    np.testing.assert_array_equal(federation.global_model().numpy(), (shares @ uploads).astype(np.float32))


def test_an_absent_client_is_left_out_of_the_average() -> None:
    federation = SmallFederation(method="fedavg")
    updates = federation.round(0)
    uploads = {i: update.upload for i, update in enumerate(updates) if i != 2}
    federation.server.aggregate(uploads)
    samples = federation.federation.samples
    total = samples[0] + samples[1] + samples[3]
    expected = sum(samples[i] / total * upload["model"].double() for i, upload in uploads.items())
    torch.testing.assert_close(federation.global_model().double(), expected, rtol=1e-6, atol=1e-8)


def test_fedavg_of_one_client_is_separate() -> None:
    together = SmallFederation(method="fedavg", clients=1).run(3)
    apart = SmallFederation(method="separate", clients=1).run(3)
    assert torch.equal(together.models(), apart.models())
    assert torch.equal(together.global_model(), apart.models()[0])


def test_the_first_round_of_fedavg_local_is_separate() -> None:
    assert torch.equal(
        SmallFederation(method="fedavg-local").run(1).models(), SmallFederation(method="separate").run(1).models()
    )


@pytest.mark.parametrize("name", ["fedprox", "fedprox-ft"])
def test_fedprox_without_mu_is_fedavg(name: str) -> None:
    prox = SmallFederation(method=method(name, mu=0.0)).run(3)
    assert torch.equal(prox.global_model(), SmallFederation(method="fedavg").run(3).global_model())


def test_a_run_of_fedprox_with_tuning_has_the_figures_of_fedprox() -> None:
    tuned, plain = (accuracies(name, "after_aggregation", mu=0.5) for name in ("fedprox-ft", "fedprox"))
    assert np.array_equal(tuned, plain)


def test_one_step_of_fedprox_is_fedavg_for_any_mu() -> None:
    prox, plain = (
        SmallFederation(method=name, epochs=1, batch_size=1000).run(3)
        for name in (method("fedprox-ft", mu=50.0), "fedavg")
    )
    assert torch.equal(prox.global_model(), plain.global_model())


def test_a_larger_mu_drifts_less() -> None:
    def drift(mu: float) -> float:
        federation = SmallFederation(method=method("fedprox-ft", mu=mu), epochs=10)
        start = federation.global_model()
        federation.round(0)
        return float((federation.models() - start).norm(dim=1).sum())

    drifts = [drift(mu) for mu in (0.0, 1.0, 10.0)]
    assert drifts[0] > drifts[1] > drifts[2]


def test_the_proximal_gradient_is_inside_the_momentum() -> None:
    """Two steps by hand on client 0: v1 = g1, w1 = w0 − ηv1; v2 = 0.9·v1 + g2 + μ(w1 − w0), w2 = w1 − ηv2."""
    federation = SmallFederation(method=method("fedprox-ft", mu=3.0), epochs=2, batch_size=1000)
    context, client = federation.contexts[0], federation.clients[0]
    x, y = context.data.train
    w0, lr, network = federation.global_model().clone(), federation.experiment.lr, context.network

    def slope(w: Tensor) -> Tensor:
        network.vector.copy_(w)
        gradient(network, x, y)
        return network.gradient.clone()

    v = slope(w0)
    w1 = w0 - lr * v
    v = 0.9 * v + slope(w1) + 3.0 * (w1 - w0)
    client.train(context, 0)
    torch.testing.assert_close(client.personalised(), w1 - lr * v, rtol=1e-5, atol=1e-7)


def tuned_after_two_rounds(**parameters: object) -> Tensor:
    federation = SmallFederation(method=method("fedavg-ft", **parameters), lr_decay=0.5).run(2)
    models = []
    for i, client in enumerate(federation.clients):
        client.receive(federation.contexts[i], federation.download(i, 2))
        models.append(client.finetune(federation.contexts[i], 2))
    return torch.stack([model for model in models if model is not None])


def test_no_tuning_at_all_is_fedavg() -> None:
    fedavg = SmallFederation(method="fedavg", lr_decay=0.5).run(2).global_model()
    assert all(torch.equal(model, fedavg) for model in tuned_after_two_rounds(tuning_epochs=0))
    assert np.array_equal(
        accuracies("fedavg-ft", "after_finetuning", tuning_epochs=0), accuracies("fedavg", "after_aggregation")
    )


def test_tuning_after_a_round_is_local_training_of_the_next() -> None:
    local_models = SmallFederation(method="fedavg-local", lr_decay=0.5).run(3).models()
    assert torch.equal(tuned_after_two_rounds(), local_models)
    tuned, local = accuracies("fedavg-ft", "after_finetuning"), accuracies("fedavg-local", "after_training")
    assert np.array_equal(tuned[:-1], local[1:])
    assert not np.isnan(tuned[-1]).any()


@pytest.mark.parametrize("epochs", [None, 1])
def test_one_tuning_run_gives_the_three_rows(epochs: int | None) -> None:
    run = orchard.run(small_experiment(rounds=4, method=method("fedavg-ft", tuning_epochs=epochs)), small_arrays())
    assert np.array_equal(run.scores(moment="after_aggregation"), accuracies("fedavg", "after_aggregation"))
    assert np.array_equal(run.scores(moment="after_training"), accuracies("fedavg-local", "after_training"))


def test_tuning_like_training_costs_no_second_training(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*arguments: Any, **options: Any) -> tuple[Tensor, float]:
        calls.append(arguments)
        return local_sgd(*arguments, **options)

    monkeypatch.setattr("orchard.methods.fedavg.local_sgd", counted)
    federation = SmallFederation(method="fedavg-ft")
    for r in range(4):  # three rounds, and the exchange that ends the run
        federation.round(r)
    assert len(calls) == 4 * (3 + 1)


@pytest.mark.parametrize("tuning", [method("fedavg-ft"), method("fedavg-ft", tuning_epochs=7)])
def test_tuned_models_are_discarded_with_their_statistics(tuning: dict[str, object]) -> None:
    plain, tuned = (
        orchard.run(small_experiment(method=name, model=Residual, rounds=4), small_arrays(shape=(2, 6, 6)))
        for name in ("fedavg", tuning)
    )
    for moment in ("after_training", "after_aggregation"):
        assert np.array_equal(plain.scores(moment=moment), tuned.scores(moment=moment))
    with_tuning = SmallFederation(method=method("fedavg-ft", tuning_epochs=7)).run(3)
    assert torch.equal(with_tuning.global_model(), SmallFederation(method="fedavg").run(3).global_model())


def test_an_averaging_client_uploads_its_copy() -> None:
    federation = SmallFederation(method="fedavg").run(1)
    client = federation.clients[0]
    assert isinstance(client, FedAvgClient)
    assert torch.equal(client.upload()["model"], client.personalised())


def test_tuning_knows_no_proximal_term() -> None:
    federation = SmallFederation(method=method("fedprox-ft", mu=5.0)).run(1)
    client, context = federation.clients[1], federation.contexts[1]
    client.receive(context, federation.download(1, 1))
    tuned = client.finetune(context, 1)
    assert tuned is not None
    assert torch.equal(tuned, local_sgd(context, 1, federation.global_model())[0])


def test_the_learning_rate_decays_round_by_round() -> None:
    steady, fading = (
        SmallFederation(method="fedavg", lr_decay=decay, epochs=1, batch_size=1000) for decay in (1.0, 0.5)
    )
    start = steady.global_model()
    moves = [local_sgd(federation.contexts[0], 2, start)[0] - start for federation in (steady, fading)]
    torch.testing.assert_close(moves[1], moves[0] / 4, rtol=1e-3, atol=1e-7)
