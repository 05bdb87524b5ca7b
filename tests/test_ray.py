"""Clients on the nodes of a Ray cluster: real clusters, whose nodes and processes are killed."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor, nn

import orchard
import orchard.engines.ray.cluster as cluster_module
import orchard.runs.cluster as runs_cluster
from crashing import VARIANTS, same, small_run_in, what_it_gave, whole
from helpers import SMALL, small_arrays, small_experiment, small_run
from orchard.core.federation import Federation
from orchard.core.training import ClientContext, NotFinite
from orchard.core.vector import stack
from orchard.engines.memory import shared_matrix
from orchard.engines.ray.packing import pack, pack_state, place_vectors, unpack, unpack_state, vectors_at
from orchard.errors import ClusterWarning, RunFailed, Stopped, UserError
from orchard.experiment import RunOptions
from orchard.methods.apple import Apple, AppleClient
from orchard.runs.folder import RunFolder
from orchard.runs.grid import Grid, Measured, parse_contender, run_grid
from orchard.runs.loop import Progress
from orchard.runs.result import Result
from orchard.sites.plan import make_plan
from processes import orchard_command, started

HERE = Path(__file__).parent
STORE = 200 * 2**20


class Cluster:
    """Two nodes on this machine; nodes that were killed are replaced."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as RayCluster

        head = {"num_cpus": 2, "object_store_memory": STORE, "include_dashboard": False}
        self.ray = RayCluster(initialize_head=True, head_node_args=head)
        self.address = self.ray.address
        self.second = self.ray.add_node(num_cpus=2, object_store_memory=STORE)

    def kill_second(self) -> None:
        self.ray.remove_node(self.second, allow_graceful=False)

    def whole(self) -> "Cluster":
        if len(self.ray.list_all_nodes()) < 2:
            self.second = self.ray.add_node(num_cpus=2, object_store_memory=STORE)
        return self


@pytest.fixture(scope="module")
def _nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(orchard.__file__).parents[1]), str(HERE)]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("HOLD", str(tmp_path_factory.mktemp("hold")))
        nodes = Cluster()
        yield nodes
        ray.shutdown()
        nodes.ray.shutdown()


@pytest.fixture
def nodes(_nodes: Cluster) -> Cluster:
    return _nodes.whole()


# --- Without a cluster ---


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_a_tensor_survives_packing(dtype: torch.dtype) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    for shaped in (tensor, tensor.t(), tensor[0, 0], tensor[:0]):
        back = unpack(pack(shaped))
        assert back.dtype == dtype
        assert torch.equal(back, shaped)


def test_of_a_state_only_travels_what_the_other_side_lacks() -> None:
    old, new, sent = torch.zeros(3), torch.ones(3), torch.full((3,), 2.0)
    state = {"client": {"core": sent, "copies": [old, None, new, new], "round": 7}, "buffers": {}}
    packed = pack_state(state, {id(old): ("before", 4), id(sent): ("upload", "core")})
    assert packed.tensors[:2] == [("upload", "core"), ("before", 4)]
    back = unpack_state(packed, {("before", 4): old, ("upload", "core"): sent})
    assert back["client"]["core"] is sent
    assert back["client"]["copies"][0] is old
    assert back["client"]["copies"][2] is back["client"]["copies"][3]  # it travelled once
    assert torch.equal(back["client"]["copies"][2], new)
    assert back["client"]["round"] == 7


def test_all_models_travel_as_one_matrix_that_need_not_be_copied() -> None:
    rows = list(stack([torch.full((5,), float(j)) for j in range(4)], torch.zeros(5)))
    others = {i: {f"core {j}": rows[j] for j in range(4) if j != i} for i in range(4)}
    places, arrays = place_vectors(others)
    assert len(arrays) == 1
    there = vectors_at(places, arrays, "cpu")
    for i in range(4):
        assert all(torch.equal(there[i][name], vector) for name, vector in others[i].items())
        mine = [there[i].get(f"core {j}") for j in range(4)]
        assert shared_matrix(mine) is not None
    assert there[0]["core 3"] is there[1]["core 3"]


def test_a_row_of_its_own_for_each_client_travels_alone() -> None:
    rows = list(stack([torch.full((5,), float(j)) for j in range(4)], torch.zeros(5)))
    places, arrays = place_vectors({i: {"model": rows[i]} for i in range(4)})
    assert [packed.array.nbytes for packed in arrays.values()] == [20] * 4
    assert len(place_vectors({i: {"model": rows[0]} for i in range(4)})[1]) == 1
    assert torch.equal(vectors_at(places, arrays, "cpu")[2]["model"], rows[2])


# --- On a cluster ---


class Quiet:
    """Notes what a grid says."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def plan(self, runs: int, rounds: int, stage: str) -> None:
        self.lines.append(f"{runs} runs")

    def begin(self, label: str, seed: int) -> Progress:
        return lambda result: self.lines.append(f"{label} {seed}: {len(result.rounds)}")

    def end(self, label: str, seed: int, result: Result, reused: Path | None) -> None:
        self.lines.append(f"{label} {seed}: {'reused' if reused else 'done'}")

    def fail(self, label: str, seed: int, reason: str) -> None:
        self.lines.append(f"{label} {seed}: failed: {reason}")


class Holding(nn.Module):
    """A model whose training waits while a file `hold` is there, after it has left its process's number."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        folder = Path(os.environ.get("HOLD", "nowhere"))
        while self.training and (folder / "hold").exists():
            (folder / f"pid-{os.getpid()}").touch()
            time.sleep(0.02)
        scores: Tensor = self.layers(x)
        return scores


HELD: dict[str, Any] = {"model": Holding, "batch_size": 6}


class Accident:
    """Lets something happen in the middle of a round, when `processes` of them are in it."""

    def __init__(self, what: Callable[[list[int]], None], *, after: int, processes: int) -> None:
        self.what, self.after, self.processes = what, after, processes
        self.folder, self.happened = Path(os.environ["HOLD"]), False
        for file in self.folder.iterdir():
            file.unlink()

    def __call__(self, result: Result) -> None:
        if len(result.rounds) >= self.after and not self.happened and not list(self.folder.iterdir()):
            self.happened = True
            (self.folder / "hold").touch()
            threading.Thread(target=self._happen, daemon=True).start()

    def _happen(self) -> None:
        try:
            while len(pids := [int(file.name[4:]) for file in self.folder.glob("pid-*")]) < self.processes:
                time.sleep(0.05)
            self.what(pids)
            while all(map(runs, pids)):  # a process outlives its node for a moment
                time.sleep(0.05)
        finally:
            (self.folder / "hold").unlink()


def runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def kill_one(pids: list[int]) -> None:
    os.kill(pids[0], signal.SIGKILL)


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


class Broken(Holding):
    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled() and len(x) > 2:  # not in the test of the network
            raise ZeroDivisionError("a bug in somebody's model")
        return super().forward(x)


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


# --- Grids ---


def grid_of(root: Path, options: RunOptions, **changes: Any) -> tuple[Grid, list[Any]]:
    base = small_experiment(**{"dataset": "digits", "partition": "iid", "rounds": 3} | changes)
    return Grid(base, options, [0, 1], root), [parse_contender(name, base) for name in ("fedavg", "apple", "ditto")]


def figures(measured: dict[tuple[str, int], Measured]) -> dict[tuple[str, int], object]:
    return {key: what_it_gave(orchard.load(run.folder.path))[0] for key, run in measured.items()}


@pytest.mark.slow
@pytest.mark.parametrize("seen", [True, False], ids=["shared", "sent-home"])
def test_a_grid_on_a_cluster_is_the_grid(
    seen: bool, nodes: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not seen:
        monkeypatch.setattr(runs_cluster, "_sign", lambda root: nullcontext(Path("nowhere")))
    options = RunOptions(engine="ray", address=nodes.address, checkpoint_every=1)
    watcher, again = Quiet(), Quiet()
    measured = run_grid(*grid_of(tmp_path / "ray", options), watcher)
    assert figures(measured) == figures(run_grid(*grid_of(tmp_path / "local", RunOptions()), Quiet()))
    assert sorted(line for line in watcher.lines if "done" in line)[0] == "apple 0: done"
    names = [sorted(path.name for path in (tmp_path / which).iterdir()) for which in ("ray", "local")]
    assert names[0] == names[1]
    run_grid(*grid_of(tmp_path / "ray", options), again)
    assert sum("reused" in line for line in again.lines) == 6


@pytest.mark.slow
@pytest.mark.parametrize("seen", [True, False], ids=["shared", "sent-home"])
def test_a_run_of_a_grid_that_dies_goes_on_from_its_checkpoint(
    seen: bool, nodes: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not seen:
        monkeypatch.setattr(runs_cluster, "_sign", lambda root: nullcontext(Path("nowhere")))
    options = RunOptions(engine="ray", address=nodes.address, checkpoint_every=1)
    changes = {"model": "test_ray:digit_model", "clients": 3, "batch_size": 10, "rounds": 40}
    accident = Accident(kill_one, after=2, processes=1)
    watcher = Quiet()
    monkeypatch.setattr(watcher, "begin", lambda label, seed: accident)
    (grid, contenders), (local, _) = (grid_of(tmp_path / str(o.engine), o, **changes) for o in (options, RunOptions()))
    with pytest.warns(ClusterWarning, match="lost: .*; it goes on elsewhere, from its last checkpoint"):
        measured = run_grid(replace(grid, seeds=[0]), contenders[:1], watcher)
    (run,) = measured.values()
    assert run.folder.read("environment.json")["resumed"]
    assert figures(measured) == figures(run_grid(replace(local, seeds=[0]), contenders[:1], Quiet()))


def digit_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 6), Holding(), nn.Linear(3, 10))


def broken_digit_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 6), Broken(), nn.Linear(3, 10))


@pytest.mark.slow
def test_a_grid_that_is_stopped_goes_on_later(nodes: Cluster, tmp_path: Path) -> None:
    options = RunOptions(engine="ray", address=nodes.address)
    with pytest.raises(Stopped, match="what was saved is safe; the same command goes on"):
        run_grid(*grid_of(tmp_path, options), Quiet(), lambda: True)
    measured = run_grid(*grid_of(tmp_path, options), Quiet())
    assert len(measured) == 6


@pytest.mark.slow
def test_failures_in_a_grid_are_named(nodes: Cluster, tmp_path: Path) -> None:
    grid, _ = grid_of(tmp_path, RunOptions(engine="ray", address=nodes.address), model="test_ray:broken_digit_model")
    watcher = Quiet()
    with pytest.raises(RunFailed, match=r"fedavg, seed 0: .*a bug in somebody's model") as failed:
        run_grid(grid, [parse_contender("fedavg", grid.base)], watcher)
    assert "in forward" in str(failed.value.__cause__)
    assert sum("failed" in line for line in watcher.lines) == 2


@pytest.mark.slow
def test_the_commands(nodes: Cluster, tmp_path: Path) -> None:
    where = ("--engine", "ray", "--address", nodes.address)
    small = ("--dataset", "digits", "--partition", "iid", "--clients", "2", "--rounds", "2", "--set", "epochs=1")
    compared = orchard_command("compare", "--methods", "fedavg,separate", *small, *where, cwd=tmp_path)
    assert compared.returncode == 0, compared.stderr
    assert "separate" in compared.stdout
    ran = orchard_command("run", "--method", "fedavg", *small, *where, "--json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    nowhere = orchard_command("run", *small, "--engine", "ray", "--address", "127.0.0.1:1", cwd=tmp_path)
    assert nowhere.returncode == 2
    assert nowhere.stderr.startswith("orchard: address = '127.0.0.1:1': no Ray cluster can be joined there")
