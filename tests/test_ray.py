"""Clients on the nodes of a Ray cluster: real clusters, whose nodes and processes are killed."""

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import orchard
import orchard.engines.ray.cluster as cluster_module
from crashing import VARIANTS, same, small_run_in, whole
from helpers import SMALL, small_arrays, small_experiment, small_run
from orchard.core.federation import Federation
from orchard.core.training import ClientContext, NotFinite
from orchard.errors import ClusterWarning, RunFailed, Stopped, UserError
from orchard.experiment import RunOptions
from orchard.methods.apple import Apple, AppleClient
from orchard.runs.folder import RunFolder
from orchard.runs.grid import Grid, parse_contender, run_grid
from orchard.sites.plan import make_plan
from processes import started
from ray_cluster import HELD, HERE, Accident, Broken, Cluster, Holding, Quiet, kill_one


def test_ray_that_is_not_installed_is_said_before_data_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"Ray is not installed; pip install 'orchard\[ray\]'"):
        orchard.run(dataset="mnist", data_dir=tmp_path, engine="ray")
    base = small_experiment()
    grid = Grid(base, RunOptions(engine="ray"), [0], tmp_path)
    with pytest.raises(UserError, match="Ray is not installed"):
        run_grid(grid, [parse_contender("fedavg", base)], Quiet())


def test_sites_cannot_be_asked_to_train_on_a_cluster(tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    file.write_text('engine = "ray"\n[deploy]\nclasses = ["a", "b"]\n', "utf-8")
    with pytest.raises(UserError, match="engine = 'ray': sites train on their own machines"):
        make_plan(file, "trial", ["one", "two"])


def test_a_cluster_of_this_machine_gives_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one test on Ray that always runs."""
    import ray

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(orchard.__file__).parents[1]), str(HERE)]))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    try:
        result = small_run(**HELD, method="apple", engine="ray", workers=2, out=tmp_path / "run")
    finally:
        ray.shutdown()
    assert same(result, small_run(**HELD, method="apple"))
    assert RunFolder(tmp_path / "run").definition()[1].engine == "ray"


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_every_method_gives_the_same_bits(name: str, nodes: Cluster) -> None:
    assert same(small_run(**VARIANTS[name], engine="ray", address=nodes.address), whole(name))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["node", "process"])
@pytest.mark.parametrize("name", ["ditto", "apple-budget"])
def test_a_round_in_which_a_node_or_a_process_dies_is_repeated_elsewhere(
    how: str, name: str, nodes: Cluster, tmp_path: Path
) -> None:
    what = (lambda pids: nodes.kill_second()) if how == "node" else kill_one
    changes = {**VARIANTS[name], **HELD, "rounds": 4}
    accident = Accident(what, after=2, processes=2)
    with pytest.warns(
        ClusterWarning, match=r"(?s)is lost with 2 clients: .*They go on elsewhere, from before the round"
    ):
        result = small_run(
            **changes, engine="ray", address=nodes.address, out=tmp_path / "run", progress=accident, checkpoint_every=1
        )
    assert same(result, small_run(**changes))


@pytest.mark.slow
def test_a_driver_that_is_killed_resumes_to_the_same_result(nodes: Cluster, tmp_path: Path) -> None:
    changes = {"method": "ditto", "engine": "ray", "address": nodes.address, "checkpoint_every": 1}
    process = started(small_run_in, folder=tmp_path, changes=changes, die_at=60)
    process.join()
    assert process.exitcode == 137
    assert RunFolder(tmp_path).state() == "interrupted"
    before = RunFolder(tmp_path).newest_checkpoint()[0]["rounds"]
    assert 0 < before < SMALL["rounds"]
    result = orchard.resume(tmp_path, small_arrays(), address=nodes.address)
    assert same(result, whole("ditto"))


@pytest.mark.slow
def test_a_run_goes_on_with_another_engine(nodes: Cluster, tmp_path: Path) -> None:
    asked = iter([False, False])
    with pytest.raises(Stopped):
        small_run(method="apfl", out=tmp_path, stop=lambda: next(asked, True))
    assert same(orchard.resume(tmp_path, small_arrays(), engine="ray", address=nodes.address), small_run(method="apfl"))


@pytest.mark.slow
def test_errors_of_clients_are_named_as_with_the_local_engine(nodes: Cluster) -> None:
    with pytest.raises(RunFailed) as local:
        small_run(**HELD | {"model": Broken})
    with pytest.raises(RunFailed) as remote:
        small_run(**HELD | {"model": Broken}, engine="ray", address=nodes.address)
    assert str(remote.value) == str(local.value)
    assert "in forward" in "".join(remote.value.__cause__.__notes__)  # type: ignore[union-attr]
    with pytest.raises(UserError, match="cannot train"):
        small_run(small_arrays(), model=Holding, engine="ray", address=nodes.address)


@pytest.mark.slow
def test_private_training_gives_the_same_bits(nodes: Cluster) -> None:
    settings: dict[str, Any] = {"method": "fedavg", "privacy": {"noise_multiplier": 1.0}}
    assert same(small_run(**settings, engine="ray", address=nodes.address), small_run(**settings))


class WildClient(AppleClient):
    def train(self, context: ClientContext, round: int) -> float:
        if round >= 1 and self.index == 2:
            raise NotFinite("the loss is not finite")
        return super().train(context, round)


class WildApple(Apple):
    def client(self, index: int, federation: Federation) -> AppleClient:
        return WildClient(self, index, federation)


@pytest.mark.slow
def test_a_client_that_diverges_keeps_its_last_good_state(nodes: Cluster) -> None:
    settings: dict[str, Any] = {"method": WildApple(mu=0.0), "rounds": 4}
    result = small_run(**settings, engine="ray", address=nodes.address)
    assert [list(entry.failures) for entry in result.rounds] == [[], [2], [2], [2]]
    assert same(result, small_run(**settings))


def created_bytes() -> dict[str, int]:
    """What the object store of each node has taken in so far, in Ray's own count."""
    import ray
    from ray._private.internal_api import node_stats

    return {
        node["NodeID"]: node_stats(
            node["NodeManagerAddress"], node["NodeManagerPort"]
        ).store_stats.cumulative_created_bytes
        for node in ray.nodes()
        if node["Alive"]
    }


@pytest.mark.slow
def test_cores_travel_once_per_node_and_not_once_per_client(nodes: Cluster) -> None:
    """Eight clients on two nodes: to each node 8 cores a round, not 4 × 7; from it those of its 4 clients."""
    import ray

    marks: list[dict[str, int]] = []
    arrays = small_arrays(clients=8, shape=(1, 28, 28))
    settings = {"clients": 8, "model": "cnn", "rounds": 4, "epochs": 1, "method": "apple"}
    result = small_run(
        arrays, **settings, engine="ray", address=nodes.address, progress=lambda _: marks.append(created_bytes())
    )
    core = 4 * result.federation.parameters
    (driver,) = (
        node["NodeID"] for node in ray.nodes() if node["Alive"] and "node:__internal_head__" in node["Resources"]
    )
    (other,) = marks[1].keys() - {driver}
    for before, after in pairwise(marks[:3]):
        to_and_from = (after[other] - before[other]) / core
        assert 12 <= to_and_from < 12.1
        assert 12 <= (after[driver] - before[driver]) / core < 16.1  # its own 8 and 4, and the other node's 4


@pytest.mark.slow
def test_without_room_for_a_client_it_says_so(nodes: Cluster) -> None:
    with pytest.raises(RunFailed, match="no node of the cluster has 64 CPUs for a client"):
        small_run(engine="ray", address=nodes.address, threads=64)
    with pytest.raises(RunFailed, match="no node of the cluster has GPU"):
        small_run(engine="ray", address=nodes.address, device="cuda")
