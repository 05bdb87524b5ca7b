"""An audit repeats a run and sees what server and peers see: records, labels, samples and lists."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import orchard
from helpers import SMALL, federation_of, small_data, small_experiment
from orchard.audit.canaries import canaries_of
from orchard.audit.capture import Recorder, losses_of, repeat, trained_on
from orchard.audit.inversion import likeness, matched, sample_of
from orchard.audit.membership import asked_of, shadow_parts
from orchard.audit.pictures import picture_of
from orchard.audit.rehearsal import (
    FirstUploads,
    Recovered,
    class_frequencies,
    first_steps,
    labels_of_single_samples,
    recovered,
)
from orchard.audit.statistics import guess
from orchard.audit.wanted import asked_for, rank_correlation, wanted
from orchard.core.contract import ClientUpdate, Download
from orchard.core.federation import Federation
from orchard.core.vector import Network
from orchard.data.samples import Samples
from orchard.errors import UserError
from orchard.experiment import RunOptions, load_experiment
from orchard.runs.result import Result
from orchard.runs.run import load_data
from task_data import SETTINGS, task_arrays

ONE = RunOptions(workers=1)


class Keeper:
    """Keeps all that is sent and answered."""

    def __init__(self) -> None:
        self.rounds: list[tuple[Mapping[int, Download], Mapping[int, ClientUpdate]]] = []

    def __call__(
        self, federation: Federation, sent: Mapping[int, Download], answers: Mapping[int, ClientUpdate]
    ) -> None:
        self.federation = federation
        self.rounds.append((dict(sent), dict(answers)))


def captured(method: object, **changes: object) -> tuple[Keeper, Recorder, dict[str, Tensor], Result]:
    experiment = small_experiment(method=method, **changes)
    data = small_data(experiment)
    keeper, recorder = Keeper(), Recorder([client.train for client in data.clients])

    def watch(*seen: object) -> None:
        keeper(*seen)  # type: ignore[arg-type]
        recorder(*seen)  # type: ignore[arg-type]

    result, models = repeat(experiment, data, ONE, watch)
    return keeper, recorder, recorder.losses(models), result


def test_a_repeated_run_is_the_run() -> None:
    experiment = small_experiment(method="apple")
    data = small_data(experiment)
    result, models = repeat(experiment, data, ONE, Keeper())
    plain = orchard.run(experiment, data)
    assert np.array_equal(result.scores(), plain.scores())
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(models, plain.models, strict=True))


def test_losses_are_those_of_the_uploads_the_server_sees() -> None:
    keeper, recorder, losses, _ = captured("fedavg")
    network = keeper.federation.network()
    uploads = [[answers[i].upload["model"] for i in range(4)] for _, answers in keeper.rounds[:-1]]
    by_round = [
        torch.cat([losses_of(network, model, records) for model, records in zip(row, recorder.records, strict=True)])
        for row in uploads
    ]
    assert torch.equal(losses["last"], by_round[-1])
    assert torch.allclose(losses["uploads"], torch.stack(by_round).mean(0))
    assert len(keeper.rounds) == SMALL["rounds"] + 1
    models = [sent[1].vectors["model"] for sent, _ in keeper.rounds[1:]]
    peer = torch.stack([losses_of(network, model, recorder.records[0]) for model in models])
    assert torch.allclose(losses["peers"][: len(recorder.records[0].y)], peer.mean(0))


def test_peers_of_apple_are_sent_the_uploads_themselves() -> None:
    _, _, losses, _ = captured("apple")
    assert torch.allclose(losses["peers"], losses["uploads"])


def test_under_a_budget_only_rounds_in_which_the_core_is_passed_on_count() -> None:
    keeper, recorder, losses, _ = captured({"name": "apple", "budget": 1}, rounds=6)
    network, found = keeper.federation.network(), []
    for (_, answers), (sent, _) in zip(keeper.rounds, keeper.rounds[1:], strict=False):
        if "core 0" in sent[1].vectors:
            found.append(losses_of(network, answers[0].upload["core"], recorder.records[0]))
    assert 0 < len(found) < 6
    assert torch.allclose(losses["peers"][: len(recorder.records[0].y)], torch.stack(found).mean(0))


@pytest.mark.parametrize("method", ["separate", "fedper"])
def test_where_no_whole_model_travels_the_personalised_one_alone_is_asked(method: str) -> None:
    assert set(captured(method)[2]) == {"personalised"}


def test_records_can_be_told_from_those_of_other_models() -> None:
    experiment = small_experiment(method="separate")
    data = small_data(experiment)
    recorder = Recorder([client.test for client in data.clients], compared=True)
    _, models = repeat(experiment, data, ONE, recorder)
    network, test = federation_of(experiment, data).network(), data.clients[2].test
    mine, *others = (losses_of(network, models[j][0], test) for j in (2, 0, 1, 3))
    start = sum(len(client.test.y) for client in data.clients[:2])
    expected = mine - sum(others) / 3
    assert torch.allclose(recorder.losses(models)["personalised"][start : start + len(test.y)], expected)


def test_a_model_that_all_clients_share_is_compared_with_nothing() -> None:
    experiment = small_experiment(method="fedavg")
    data = small_data(experiment)
    recorder = Recorder([client.test for client in data.clients], compared=True)
    _, models = repeat(experiment, data, ONE, recorder)
    network = federation_of(experiment, data).network()
    expected = torch.cat([losses_of(network, models[0][0], client.test) for client in data.clients])
    assert torch.equal(recorder.losses(models)["personalised"], expected)


# --- Members ---


def test_as_many_members_as_others_are_asked_for_and_every_shadow_trains_on_half() -> None:
    experiment = small_experiment()
    data = small_data(experiment)
    asked = asked_of(data, 0)
    members = asked.members()
    assert int(members.sum()) * 2 == len(members)
    for client, records, rest in zip(data.clients, asked.records, asked.rest, strict=True):
        half = len(records.y) // 2
        assert len(rest.y) + half == len(client.train.y)
        together = {tuple(row) for row in torch.cat([rest.x, records.x[:half]]).tolist()}
        assert together == {tuple(row) for row in client.train.x.tolist()}
    parts = shadow_parts(asked, members)  # who trains on the members alone has the run's own data
    assert [len(part.y) for part in parts] == data.sizes()["train"]
    none = shadow_parts(asked, torch.zeros_like(members))
    assert all(len(part.y) > 0 for part in none)


def test_canaries_are_put_aside_samples_with_a_wrong_target() -> None:
    experiment = small_experiment()
    data = small_data(experiment)
    canaries = canaries_of(data, 40, seed=1)
    assert sum(len(some.y) for some in canaries.samples) == pytest.approx(40, abs=2)
    for client, some in zip(data.clients, canaries.samples, strict=True):
        aside = torch.cat([client.validation.x, client.test.x]).tolist()
        targets = torch.cat([client.validation.y, client.test.y])
        where = [aside.index(row) for row in some.x.tolist()]
        assert bool((targets[where] != some.y).all())
    sizes = [len(part.y) for part in canaries.training_parts(data)]
    assert sum(sizes) == sum(data.sizes()["train"]) + int(canaries.coins().sum())
    assert 0.2 < canaries.coins().double().mean() < 0.8


def test_canaries_are_guessed_if_models_know_by_heart_and_not_if_they_learn_nothing() -> None:
    bounds = {}
    for lr in (0.0, 0.1):
        experiment = small_experiment(method="separate", lr=lr, rounds=12, epochs=5)
        data = small_data(experiment)
        canaries = canaries_of(data, 40, seed=0)
        recorder = Recorder(canaries.samples, compared=True)
        _, models = repeat(experiment, trained_on(data, canaries.training_parts(data)), ONE, recorder)
        bounds[lr] = guess(-recorder.losses(models)["personalised"], canaries.coins()).epsilon
    assert bounds[0.0] == 0.0
    assert bounds[0.1] > 1.0


# --- First steps ---


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "ditto", "apple", "graft"])
def test_labels_of_single_samples_are_told_twenty_times_of_twenty(method: str) -> None:
    experiment = small_experiment(method=method)
    found = labels_of_single_samples(experiment, small_data(experiment), ONE, seed=0)
    assert (found.right, found.of) == (20, 20)


@pytest.mark.parametrize("method", ["fedavg", "apple", "graft"])
def test_a_single_sample_is_computed_where_the_first_layer_is_linear(method: str) -> None:
    experiment = small_experiment(method=method, model="mlp")
    data = small_data(experiment, shape=(1, 6, 6))
    batches = [Samples(client.train.x[:1], client.train.y[:1]) for client in data.clients]
    network, steps = first_steps(experiment, data, batches, ONE)
    for batch, step in zip(batches, steps, strict=True):
        found = sample_of(network, step, data.shape)
        assert found is not None
        assert torch.allclose(found, batch.x[0], atol=2e-3)


def test_samples_of_a_small_batch_are_found() -> None:
    experiment = small_experiment(method="fedavg")
    found = recovered(experiment, small_data(experiment), ONE, seed=0)
    assert {size: one.exactly for size, one in found.items()} == {1: True, 2: False, 4: False}
    assert found[1].likeness > 60
    assert min(found[2].likeness, found[4].likeness) > 25


def test_classes_show_in_the_first_upload() -> None:
    experiment = small_experiment(method="fedavg", epochs=1)
    data = small_data(experiment)
    first = FirstUploads()
    repeat(experiment, data, ONE, first, exchanges=1)
    assert class_frequencies(experiment, data, ONE, first) > 0.7


def test_what_does_not_travel_is_said_to_be_out_of_reach() -> None:
    experiment = small_experiment(method="fedper")
    with pytest.raises(UserError, match="only a part of the model travels"):
        labels_of_single_samples(experiment, small_data(experiment), ONE, seed=0)


def test_likeness_in_decibels() -> None:
    true = torch.tensor([0.0, 1.0, 0.0, 1.0])
    assert likeness(true, true) == 100.0
    assert likeness(true + 0.1, true) == pytest.approx(20.0, abs=1e-4)


def test_what_was_found_is_laid_beside_what_it_resembles() -> None:
    true = Samples(torch.tensor([[0.0], [1.0], [2.0]]), torch.zeros(3))
    assert matched(torch.tensor([[2.1], [0.1], [0.9]]), true).flatten().tolist() == pytest.approx([0.1, 0.9, 2.1])


def test_a_picture_has_true_samples_above_and_recovered_ones_below() -> None:
    white, black = torch.ones(1, 1, 28, 28), torch.zeros(1, 1, 28, 28)
    both = torch.cat([white, black])
    picture = picture_of([Recovered(both, both.flip(0), exactly=True)])
    assert picture is not None
    times = picture.width // (2 * 32)
    values = [picture.getpixel((x * times, y * times)) for y in (16, 48) for x in (16, 48)]
    assert values == [255, 0, 0, 255]
    assert picture_of([Recovered(torch.ones(2, 6), torch.ones(2, 6), exactly=True)]) is None
    assert picture_of([]) is None


# --- Lists ---


def test_lists_of_wanted_cores_by_hand() -> None:
    assert asked_for({"core 3": torch.ones(1), "core 0": torch.ones(1), "pool": torch.ones(1)}) == [3, 0]
    assert rank_correlation(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0, 90.0])) == pytest.approx(1.0)
    assert rank_correlation(torch.tensor([1.0, 1.0, 2.0]), torch.tensor([3.0, 2.0, 1.0])) == pytest.approx(-0.8660254)
    assert rank_correlation(torch.ones(3), torch.tensor([3.0, 2.0, 1.0])) is None


def test_the_most_wanted_is_compared_with_the_strongest_relationship() -> None:
    result = captured("apple")[3]
    last = result.rounds[-1]
    strengths = [[0.5, 0.1, -0.4, 0.2], [0.3, 0.5, 0.1, 0.2], [0.1, 0.2, 0.5, 0.3], [0.3, 0.2, 0.1, 0.5]]
    result.rounds[-1] = replace(last, diagnostics={"relationships": strengths})
    lists = [[[2], [0], [3], [1]], [[2], [0], [3], [1]], [[3], [2], [1], [0]]]
    found = wanted(lists, result)
    assert found is not None
    assert (found.clients, found.most_wanted_is_strongest) == (4, 3)
    everybody = [[[j for j in range(4) if j != i] for i in range(4)]] * 3
    assert wanted(everybody, result) is None  # who asks for all tells nothing


# --- Tasks ---


@pytest.mark.parametrize("task", SETTINGS)
def test_losses_of_single_samples_add_up(task: str) -> None:
    experiment = load_experiment(overrides={"dataset": "arrays", "clients": 4, **SETTINGS[task]})
    data = load_data(experiment, task_arrays(task, 9, 3))
    network: Network = federation_of(experiment, data).network()
    samples = data.clients[0].train
    each = losses_of(network, network.vector.clone(), samples)
    assert each.shape == (len(samples.y),)
    with torch.no_grad():
        together = network.task.loss(network.module.eval()(samples.x), samples.y, "sum")
    assert float(each.sum()) == pytest.approx(float(together), rel=1e-4)


# --- Differential privacy ---


def canary_bound(**changes: object) -> float:
    """The bound on ε by 200 canaries in digits that are learned by heart, from all that the server sees."""
    values = {"dataset": "digits", "clients": 4, "partition": "iid", "fraction": 0.4, "model": "mlp", "rounds": 4}
    values |= {"method": "fedavg-local", "epochs": 20, "batch_size": 16, "lr": 0.02}
    experiment = load_experiment(overrides={**values, **changes})
    data = load_data(experiment)
    canaries = canaries_of(data, 200, seed=0)
    recorder = Recorder(canaries.samples, compared=True)
    _, models = repeat(experiment, trained_on(data, canaries.training_parts(data)), RunOptions(), recorder)
    losses, private = recorder.losses(models), experiment.identity().get("privacy") or {}
    found = [guess(-losses[sees], canaries.coins(), private.get("delta", 0.0)) for sees in ("last", "uploads")]
    return max(one.epsilon for one in found)


@pytest.mark.slow
def test_without_privacy_canaries_show_far_more_than_chance() -> None:
    assert canary_bound() > 1.5


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1, 3, 8])
def test_with_privacy_the_bound_stays_below_what_is_promised(epsilon: float) -> None:
    assert canary_bound(privacy={"epsilon": epsilon}) < epsilon
