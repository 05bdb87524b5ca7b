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
from helpers import Dropping, SmallFederation, federation_of, small_arrays, small_data, small_experiment, small_run
from orchard.core.contract import ClientUpdate, Download, Failure, Vectors
from orchard.core.training import ClientContext, NotFinite
from orchard.data.client_arrays import from_arrays
from orchard.engines.client_round import run_client_round
from orchard.engines.local import LocalEngine
from orchard.engines.memory import share
from orchard.errors import RunFailed
from orchard.experiment import Experiment, RunOptions
from orchard.methods.apple import Apple, AppleClient, AppleServer
from orchard.methods.fedfomo import FedFomoClient
from orchard.runs.folder import RunFolder
from orchard.runs.result import Result
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
    one, two, four = (small_run(arrays, workers=w, **changes) for w in (1, 2, 4))
    for other in (two, four):
        assert figures(one) == figures(other)
        assert torch.equal(weights(one), weights(other))


def test_the_order_of_clients_changes_nothing() -> None:
    experiment, options = small_experiment(), RunOptions(workers=1)
    data = small_data(experiment)
    federation = federation_of(experiment, data)
    outcomes = []
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
        with LocalEngine(experiment, data, options) as engine:
            server = experiment.method.server(federation)
            selected = engine.start(federation)
            for r in range(2):
                downloads = {i: Download(r, server.send(i, selected[i])) for i in range(4)}
                updates = {i: engine._pool.submit(engine._round, i, downloads[i]).result() for i in order}
                server.aggregate({i: u.upload for i, u in updates.items() if isinstance(u, ClientUpdate)})
            outcomes.append(torch.cat([model for model, _ in engine.models()]))
    assert torch.equal(*outcomes)


def test_seeds_matter_and_repeat() -> None:
    arrays = small_arrays()
    first, again, other = (weights(small_run(arrays, seed=s)) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_client_that_fails_is_named_and_the_others_finish() -> None:
    arrays = small_arrays()
    arrays[2].x_train[:] = 1e30  # its activations overflow
    experiment = small_experiment()
    with LocalEngine(experiment, from_arrays(arrays, experiment), RunOptions()) as engine:
        federation = federation_of(experiment, small_data(experiment))
        server = experiment.method.server(federation)
        selected = engine.start(federation)
        updates = engine.exchange({i: Download(0, server.send(i, selected[i])) for i in range(4)})
    failure = updates[2]
    assert isinstance(failure, Failure)
    assert str(failure).startswith("client 2, round 1: the loss or a gradient is")
    assert all(isinstance(updates[i], ClientUpdate) for i in (0, 1, 3))
    with pytest.raises(RunFailed, match="client 2, round 1: the loss or a gradient is not finite at step 2 of epoch 1"):
        orchard.run(experiment, arrays)


def test_a_bug_in_a_model_is_reported_with_its_cause() -> None:
    class Fragile(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) > 2:  # not when it is tried before the first round
                raise KeyError("oops")
            return super().forward(x)

    with pytest.raises(RunFailed, match=r"client 0, round 1 \(and 3 more\): KeyError: 'oops'") as failure:
        small_run(model=lambda: Fragile(6, 3))
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
        small_run(model=lambda: Nosy(6, 3), workers=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert {threads for name, threads in seen if name.startswith("orchard")} == {1}
    assert torch.equal(torch.get_rng_state(), state)


def test_batchnorm_statistics_belong_to_the_client() -> None:
    arrays = small_arrays(shape=(2, 6, 6))
    for i, client in enumerate(arrays):
        client.x_train[:] += 10 * i
    result = small_run(arrays, model=Residual, workers=1)
    means = [buffers["norm.running_mean"] for _, buffers in result.models]
    assert all(not torch.equal(means[0], other) for other in means[1:])


def test_a_double_precision_model_runs() -> None:
    result = small_run(model=lambda: nn.Linear(6, 3).double())
    assert result.models[0][0].dtype == torch.float64
    assert np.isfinite(result.bmcta)


def test_clients_never_see_cores_of_the_same_round() -> None:
    """All downloads of a round are made before any client of it has trained."""
    experiment: Experiment = small_experiment(rounds=1, method=Apple(budget=3))  # all others', and copies are kept
    data = small_data(experiment)
    federation = federation_of(experiment, data)
    with LocalEngine(experiment, data, RunOptions()) as engine:
        server = experiment.method.server(federation)
        selected = engine.start(federation)
        initial = [federation.initial_core(j).clone() for j in range(4)]
        engine.exchange({i: Download(0, server.send(i, selected[i])) for i in range(4)})
        for i, client in engine.clients.items():
            for j, copied in enumerate(client.copies):  # type: ignore[attr-defined]
                assert (copied is None) if i == j else torch.equal(copied, initial[j])


def test_a_failed_round_leaves_the_client_as_it_was() -> None:
    """Also where receiving has already changed it, as FedFomo's does."""
    federation = SmallFederation(method="fedfomo").run(1)
    client = federation.clients[0]
    assert isinstance(client, FedFomoClient)
    before = (client.model, client.base, client.affinity.copy())
    download, traffic = federation.download(0, 1), federation.federation.traffic
    context = federation.contexts[0]
    broken = dataclasses.replace(context, experiment=federation.experiment.model_copy(update={"lr": 1e30}))
    with pytest.raises(NotFinite):
        run_client_round(client, broken, download, traffic)
    assert client.model is before[0]
    assert client.base is before[1]
    assert np.array_equal(client.affinity, before[2])
    run_client_round(client, context, download, traffic)
    assert client.model is not before[0]


def test_the_process_draws_as_if_no_layer_had() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    small_run(model=Dropping)
    assert torch.equal(torch.rand(3), expected)


class Hasty(AppleClient):
    def train(self, context: ClientContext, round: int) -> float:
        self.relationships += 0.1
        return super().train(context, round)


def test_a_client_that_modifies_its_state_in_place_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Apple, "client", lambda self, index, federation: Hasty(self, index, federation))
    with pytest.raises(RunFailed, match="Hasty modifies relationships in place: replace it"):
        small_run()


class HastyServer(AppleServer):
    def aggregate(self, uploads: Mapping[int, Vectors]) -> None:
        for j, upload in uploads.items():
            self.cores[j].copy_(upload["core"])


def test_a_server_that_does_so_is_told_so_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Apple, "server", lambda self, federation: HastyServer(self, federation))
    message = "server, round 1: TypeError: HastyServer modifies cores in place: replace it"
    with pytest.raises(RunFailed, match=message):
        small_run(out=tmp_path / "run")
    assert RunFolder(tmp_path / "run").state() == "failed"
    assert RunFolder(tmp_path / "run").read("summary.json")["error"].startswith(message)


def test_a_server_that_sends_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AppleServer, "send", lambda self, client, selected: None)
    with pytest.raises(RunFailed, match=r"server, round 1: TypeError: AppleServer\.send\(\) must return vectors"):
        small_run()


class Counting(AppleClient):
    def train(self, context: ClientContext, round: int) -> float:
        self.rounds = round + 1
        return super().train(context, round)


class CountingServer(AppleServer):
    def aggregate(self, uploads: Mapping[int, Vectors]) -> None:
        super().aggregate(uploads)
        self.uploads = len(uploads)


def test_a_client_that_changes_what_is_not_declared_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Apple, "client", lambda self, index, federation: Counting(self, index, federation))
    with pytest.raises(RunFailed, match=r"changes rounds: name it in Counting\.state_keys"):
        small_run()


def test_a_server_that_changes_what_is_not_declared_is_told_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Apple, "server", lambda self, federation: CountingServer(self, federation))
    with pytest.raises(RunFailed, match=r"changes uploads: name it in CountingServer\.state_keys"):
        small_run()


class Late(AppleClient):
    state_keys = (*AppleClient.state_keys, "momentum")

    def train(self, context: ClientContext, round: int) -> float:
        loss = super().train(context, round)
        self.momentum = self.core - 1
        return loss


def test_a_clients_state_is_there_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a new client, made to resume a run, could not take it over."""
    monkeypatch.setattr(Apple, "client", lambda self, index, federation: Late(self, index, federation))
    with pytest.raises(RunFailed, match=r"TypeError: Late\.state_keys names 'momentum', which __init__ does not set"):
        small_run()


def test_the_last_evaluation_changes_no_client() -> None:
    federation = SmallFederation(method="fedfomo").run(3)
    share(federation.server, federation.clients, {i: tuple(c.select(3)) for i, c in enumerate(federation.clients)})
    before = [dict(vars(client)) for client in federation.clients]
    federation.round(3)
    for client, state in zip(federation.clients, before, strict=True):
        assert all(vars(client)[name] is value for name, value in state.items())


def test_a_batch_of_one_sample_is_refused_where_the_model_cannot_train_on_it() -> None:
    model = lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))  # noqa: E731
    with pytest.raises(orchard.UserError, match="batch_size = 8: leaves a last batch of one sample for client 0"):
        small_run(model=model, batch_size=8)
    small_run(model=model, batch_size=10)
    small_run(batch_size=8)  # the others do not mind
