"""A real Ray cluster of two nodes on this machine, models that wait in the middle of a round, and accidents."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor, nn

import orchard
from orchard.runs.loop import Progress
from orchard.runs.result import Result

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


class Broken(Holding):
    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled() and len(x) > 2:  # not in the test of the network
            raise ZeroDivisionError("a bug in somebody's model")
        return super().forward(x)
