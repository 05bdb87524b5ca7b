"""What a Ray cluster costs: rounds on two nodes of one core each against rounds in one process with two workers.

Both are nodes of this machine. CPU time is that of every process of the cluster, its object stores among them, and of
the driver; it hardly depends on what else the machine does. Bytes are Ray's own count of what each object store took
in. Needs the extra [ray].
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from federations import CLIENTS, practical_images, random_images
from measuring import Figure
from orchard.data.client_arrays import ClientArrays, from_arrays
from orchard.engines.local import LocalEngine
from orchard.experiment import Experiment, RunOptions
from orchard.methods.apple import Apple
from orchard.runs.loop import Run, _exchange, new_run

SAMPLES, REPEATS, MANY = 12_000, 4, (12, 24, 48, 96)
PER_CLIENT = 256
"""Training images of each of many clients: one step a round."""


@contextmanager
def nodes() -> Iterator[str]:
    """Start a cluster of two nodes with a core each; yield its address."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 2**30}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    cluster.add_node(**node)
    try:
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()


def cpu_seconds() -> float:
    """Return the CPU time so far of this process and of all that it has started."""
    total = time.process_time()
    for process in psutil.Process().children(recursive=True):
        try:
            spent = process.cpu_times()
        except psutil.Error:
            continue
        total += spent.user + spent.system
    return total


def stored() -> list[int]:
    """Return the bytes that each node's object store has taken in so far, this machine's driver first."""
    import ray
    from ray._private.internal_api import node_stats

    first = ray.get_runtime_context().get_node_id()
    alive = sorted((n for n in ray.nodes() if n["Alive"]), key=lambda n: n["NodeID"] != first)
    return [
        node_stats(n["NodeManagerAddress"], n["NodeManagerPort"]).store_stats.cumulative_created_bytes for n in alive
    ]


def turns(runs: dict[str, Run], repeats: int = REPEATS) -> dict[str, list[tuple[float, float]]]:
    """Let runs take turns, round by round; return the CPU time and the time that each round took, but for the first."""
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for r in range(repeats + 1):
        for name, run in runs.items():
            cpu, began = cpu_seconds(), time.perf_counter()
            run.selected = _exchange(run, r).selected
            if r:
                spent[name].append((cpu_seconds() - cpu, time.perf_counter() - began))
    return spent


def overhead(address: str) -> list[Figure]:
    from orchard.engines.ray.engine import RayEngine

    experiment = Experiment(dataset="arrays", clients=CLIENTS, method=Apple())
    data, load = from_arrays(practical_images(SAMPLES), experiment), os.getloadavg()[0]
    options = RunOptions(engine="ray", address=address)
    with LocalEngine(experiment, data, RunOptions(workers=2)) as here, RayEngine(experiment, data, options) as there:
        runs = {"local": new_run(experiment, here, options), "ray": new_run(experiment, there, options)}
        spent = turns(runs)
    pairs = list(zip(spent["ray"], spent["local"], strict=True))
    cpu, wall = (tuple(mine[k] / theirs[k] for mine, theirs in pairs) for k in (0, 1))
    name = f"a round on two nodes / in one process, N = {CLIENTS}"
    return [
        Figure(f"{name}, CPU time", cpu, at_most=1.15),
        Figure("the same, wall clock", wall, about=f"load before {load:.1f}, of {os.cpu_count()} cores"),
    ]


def growth(address: str, clients: int) -> list[Figure]:
    """Measure a round of many clients with a step each: bytes in models, CPU time against the steps' own."""
    from orchard.engines.ray.engine import RayEngine

    arrays: list[ClientArrays] = random_images([PER_CLIENT] * clients, tests=0.1)
    experiment = Experiment(dataset="arrays", clients=clients, epochs=1, method=Apple())
    data = from_arrays(arrays, experiment)
    options = RunOptions(engine="ray", address=address)
    with LocalEngine(experiment, data, RunOptions(workers=2)) as here, RayEngine(experiment, data, options) as there:
        runs = {"local": new_run(experiment, here, options), "ray": new_run(experiment, there, options)}
        model = 4 * runs["ray"].result.federation.parameters
        _exchange(runs["ray"], 0)
        before = stored()
        _exchange(runs["ray"], 1)
        bytes_taken = [(b - a) / model for a, b in zip(before, stored(), strict=True)]
        memory = max(psutil.Process(pid).memory_full_info().uss for pid in host_pids()) / 1e6
        spent = turns(runs, 2)
    cpu = tuple(mine[0] / theirs[0] for mine, theirs in zip(spent["ray"], spent["local"], strict=True))
    extra = tuple(mine[0] - theirs[0] for mine, theirs in zip(spent["ray"], spent["local"], strict=True))
    first, second = bytes_taken
    held = f"MB of a node's process: {memory:.0f}"
    return [
        Figure(f"N = {clients}: models into a node's store, a round", (second,), about=f"the driver's: {first:.1f}"),
        Figure(f"N = {clients}: a round of one step, CPU time / local", cpu, about=held),
        Figure(f"N = {clients}: CPU seconds a round beyond that", extra),
    ]


def host_pids() -> list[int]:
    """Return the processes that train."""
    return [p.pid for p in psutil.Process().children(recursive=True) if "ray::Host" in " ".join(p.cmdline())]


def measure() -> list[Figure]:
    with nodes() as address:
        return [*overhead(address), *(figure for clients in MANY for figure in growth(address, clients))]
