"""The local engine: results that do not depend on how the work is spread, and failures that are named."""

import dataclasses
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import orchard
from helpers import Dropping, SmallFederation, federation_of, small_arrays, small_data, small_experiment
from orchard.contract import Answer, Failure, Reply, Upload
from orchard.engines.local import LocalEngine
from orchard.engines.turn import take_turn
from orchard.errors import RunFailed
from orchard.experiment import Experiment
from orchard.folder import RunFolder
from orchard.methods.apple import Apple, AppleClient, AppleServer
from orchard.methods.fedfomo import FedFomoClient
from orchard.results import Result
from orchard.training import NotFinite, Site
from test_vector import Residual


def weights(result: Result) -> Tensor:
    return torch.cat([vector for vector, _ in result.models])


def figures(result: Result) -> list[object]:
    return [{**entry.as_json(), "seconds": None, "time": None} for entry in result.rounds]


@pytest.mark.parametrize(
    ("changes", "shape"),
    [
        ({}, (6,)),
        ({"method": {"name": "apple", "budget": 1}}, (6,)),
        ({"model": "cnn"}, (1, 16, 16)),
        ({"model": Residual}, (2, 6, 6)),
        ({"model": Dropping}, (6,)),
    ],
    ids=["mlp", "budget", "cnn", "batchnorm", "dropout"],
)
def test_the_number_of_workers_changes_nothing(changes: dict[str, object], shape: tuple[int, ...]) -> None:
    arrays = small_arrays(shape=shape)
    one, two, four = (orchard.run(small_experiment(workers=w, **changes), arrays) for w in (1, 2, 4))
    for other in (two, four):
        assert figures(one) == figures(other)
        assert torch.equal(weights(one), weights(other))


def test_the_order_of_clients_changes_nothing() -> None:
    experiment = small_experiment(workers=1)
    data = small_data(experiment)
    federation = federation_of(experiment, data)
    outcomes = []
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
        with LocalEngine(experiment, data) as engine:
            server = experiment.method.server(federation)
            wants = engine.start(federation)
            for r in range(2):
                replies = {i: Reply(r, server.reply(i, wants[i])) for i in range(4)}
                turns = {i: engine._pool.submit(engine._turn, i, replies[i]).result() for i in order}
                server.collect({i: a.upload for i, a in turns.items() if isinstance(a, Answer) and a.upload})
            outcomes.append(torch.cat([client.personalised() for client in engine.clients]))
    assert torch.equal(*outcomes)


def test_seeds_matter_and_repeat() -> None:
    arrays = small_arrays()
    first, again, other = (weights(orchard.run(small_experiment(seed=s), arrays)) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_client_that_fails_is_named_and_the_others_finish() -> None:
    arrays = small_arrays()
    arrays[2].x_train[:] = 1e30  # its activations overflow
    experiment = small_experiment()
    with LocalEngine(experiment, orchard.data.from_arrays(arrays, experiment)) as engine:
        federation = federation_of(experiment, small_data(experiment))
        server = experiment.method.server(federation)
        wants = engine.start(federation)
        answers = engine.exchange({i: Reply(0, server.reply(i, wants[i])) for i in range(4)})
    failure = answers[2]
    assert isinstance(failure, Failure)
    assert failure.reason.startswith("client 2, round 0: the loss or a gradient is")
    assert all(isinstance(answers[i], Answer) for i in (0, 1, 3))
    with pytest.raises(RunFailed, match="client 2, round 0: the loss or a gradient is not finite at step 1 of epoch 0"):
        orchard.run(experiment, arrays)


def test_a_bug_in_a_model_is_reported_with_its_cause() -> None:
    class Fragile(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if self.training and bool((x != 0).any()):
                raise KeyError("oops")
            return super().forward(x)

    with pytest.raises(RunFailed, match="client 0, round 0: KeyError: 'oops'") as failure:
        orchard.run(small_experiment(model=lambda: Fragile(6, 3)), small_arrays())
    assert isinstance(failure.value.__cause__, KeyError)


def test_workers_compute_with_one_thread_and_leave_the_process_as_it_was() -> None:
    seen: set[tuple[str, int]] = set()

    class Nosy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.add((threading.current_thread().name, torch.get_num_threads()))
            return super().forward(x)

    state = torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        orchard.run(small_experiment(model=lambda: Nosy(6, 3), workers=2), small_arrays())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert {threads for name, threads in seen if name.startswith("orchard")} == {1}
    assert torch.equal(torch.get_rng_state(), state)


def test_batchnorm_statistics_belong_to_the_client() -> None:
    arrays = small_arrays(shape=(2, 6, 6))
    for i, client in enumerate(arrays):
        client.x_train[:] += 10 * i
    result = orchard.run(small_experiment(model=Residual, workers=1), arrays)
    means = [buffers["norm.running_mean"] for _, buffers in result.models]
    assert all(not torch.equal(means[0], other) for other in means[1:])


def test_a_double_precision_model_runs() -> None:
    result = orchard.run(small_experiment(model=lambda: nn.Linear(6, 3).double()), small_arrays())
    assert result.models[0][0].dtype == torch.float64
    assert np.isfinite(result.bmcta)


def test_clients_never_see_cores_of_the_same_round() -> None:
    """All replies of a round are made before any client of it has trained."""
    experiment: Experiment = small_experiment(rounds=1, method=Apple(budget=3))  # all others', and copies are kept
    data = small_data(experiment)
    federation = federation_of(experiment, data)
    with LocalEngine(experiment, data) as engine:
        server = experiment.method.server(federation)
        wants = engine.start(federation)
        initial = [federation.initial_core(j).clone() for j in range(4)]
        engine.exchange({i: Reply(0, server.reply(i, wants[i])) for i in range(4)})
        for i, client in enumerate(engine.clients):
            for j, copied in enumerate(client.copies):  # type: ignore[attr-defined]
                assert (copied is None) if i == j else torch.equal(copied, initial[j])


def test_a_failed_turn_leaves_the_client_as_it_was() -> None:
    """Also where receiving has already changed it, as FedFomo's does."""
    federation = SmallFederation(method="fedfomo").run(1)
    client = federation.clients[0]
    assert isinstance(client, FedFomoClient)
    before = (client.model, client.base, client.affinity.copy())
    reply = Reply(1, federation.server.reply(0, client.wants(1)))
    broken = dataclasses.replace(federation.sites[0], experiment=federation.experiment.model_copy(update={"lr": 1e30}))
    with pytest.raises(NotFinite):
        take_turn(client, broken, reply)
    assert client.model is before[0]
    assert client.base is before[1]
    assert np.array_equal(client.affinity, before[2])
    take_turn(client, federation.sites[0], reply)
    assert client.model is not before[0]


def test_the_process_draws_as_if_no_layer_had() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    orchard.run(small_experiment(model=Dropping), small_arrays())
    assert torch.equal(torch.rand(3), expected)


class Hasty(AppleClient):
    def train(self, site: Site, round: int) -> float:
        self.relationships += 0.1
        return super().train(site, round)


def test_a_client_that_changes_what_it_keeps_in_place_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Apple, "client", lambda self, index, federation: Hasty(self, index, federation))
    with pytest.raises(RunFailed, match="Hasty changes relationships in place: replace it"):
        orchard.run(small_experiment(), small_arrays())


class HastyServer(AppleServer):
    def collect(self, uploads: Mapping[int, Upload]) -> None:
        for j, upload in uploads.items():
            self.cores[j].copy_(upload.vector)


def test_a_server_that_does_so_is_told_so_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Apple, "server", lambda self, federation: HastyServer(self, federation))
    message = "server, round 0: TypeError: HastyServer changes cores in place: replace it"
    with pytest.raises(RunFailed, match=message):
        orchard.run(small_experiment(out=tmp_path / "run"), small_arrays())
    assert RunFolder(tmp_path / "run").state() == "failed"
    assert RunFolder(tmp_path / "run").read("summary.json")["error"].startswith(message)


def test_a_server_that_replies_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AppleServer, "reply", lambda self, client, wants: None)
    with pytest.raises(RunFailed, match="server, round 0: AttributeError"):
        orchard.run(small_experiment(), small_arrays())


class Counting(AppleClient):
    def train(self, site: Site, round: int) -> float:
        self.turns = round + 1
        return super().train(site, round)


class CountingServer(AppleServer):
    def collect(self, uploads: Mapping[int, Upload]) -> None:
        super().collect(uploads)
        self.uploads = len(uploads)


def test_a_client_that_changes_what_it_does_not_keep_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Apple, "client", lambda self, index, federation: Counting(self, index, federation))
    with pytest.raises(RunFailed, match=r"changes turns: name it in Counting\.keeps"):
        orchard.run(small_experiment(), small_arrays())


def test_a_server_that_forgets_so_is_told_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Apple, "server", lambda self, federation: CountingServer(self, federation))
    with pytest.raises(RunFailed, match=r"changes uploads: name it in CountingServer\.keeps"):
        orchard.run(small_experiment(), small_arrays())


class Late(AppleClient):
    keeps = (*AppleClient.keeps, "momentum")  # type: ignore[assignment]

    def train(self, site: Site, round: int) -> float:
        loss = super().train(site, round)
        self.momentum = self.core - 1
        return loss


def test_what_a_client_keeps_may_come_with_its_first_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Apple, "client", lambda self, index, federation: Late(self, index, federation))
    orchard.run(small_experiment(out=tmp_path / "run"), small_arrays())


def test_the_last_evaluation_changes_no_client() -> None:
    federation = SmallFederation(method="fedfomo").run(3)
    before = [dict(vars(client)) for client in federation.clients]
    federation.round(3)
    for client, state in zip(federation.clients, before, strict=True):
        assert all(vars(client)[name] is value for name, value in state.items())


def test_a_batch_of_one_sample_is_refused_where_the_model_cannot_train_on_it() -> None:
    model = lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))  # noqa: E731
    with pytest.raises(orchard.Refusal, match="batch_size = 8: leaves a last batch of one sample for client 0"):
        orchard.run(small_experiment(model=model, batch_size=8), small_arrays())
    orchard.run(small_experiment(model=model, batch_size=10), small_arrays())
    orchard.run(small_experiment(batch_size=8), small_arrays())  # the others do not mind
