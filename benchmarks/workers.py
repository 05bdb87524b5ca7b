"""Two workers against one, on the 12 clients of a practical split, a round of one epoch.

The wall-clock figure says something only where two cores are free. The figure beside it is nearly independent of the
load: the CPU time of the one worker against that of the busier of the two.
"""

import os
import time
from collections.abc import Callable
from threading import Barrier, get_ident

from federations import CLIENTS, practical_images
from measuring import Figure, ratios
from orchard.core.contract import Download
from orchard.data.client_arrays import from_arrays
from orchard.engines.local import LocalEngine
from orchard.experiment import Experiment, RunOptions
from orchard.methods.apple import Apple
from orchard.runs.loop import new_run

SAMPLES, REPEATS = 12_000, 5


def rounds(engine: LocalEngine) -> Callable[[], None]:
    run = new_run(engine.experiment, engine, RunOptions())
    engine.prepare(run.server, run.selected)

    def one_round() -> None:
        engine.exchange({i: Download(0, run.server.send(i, names)) for i, names in run.selected.items()})

    return one_round


def best_possible(sizes: list[int], workers: int) -> float:
    """Return how many times faster the workers could be at best, each client being one piece of work."""
    loads = [0] * workers
    for size in sorted(sizes, reverse=True):
        loads[loads.index(min(loads))] += size
    return sum(sizes) / max(loads)


def cpu_times(engine: LocalEngine, workers: int) -> dict[int, float]:
    """Return the CPU time that each worker has spent so far."""
    together = Barrier(workers)  # so that each of them is asked once

    def read(_: int) -> tuple[int, float]:
        together.wait()
        return get_ident(), time.thread_time()

    return dict(engine._pool.map(read, range(workers)))


def measure() -> list[Figure]:
    arrays = practical_images(SAMPLES)
    sizes = [len(client.y_train) for client in arrays]
    wall: dict[str, list[float]] = {"one": [], "two": []}
    cpu: dict[str, list[float]] = {"one": [], "two": []}
    experiment = Experiment(dataset="arrays", clients=CLIENTS, epochs=1, method=Apple())
    data, load = from_arrays(arrays, experiment), os.getloadavg()[0]
    one, two = (LocalEngine(experiment, data, RunOptions(workers=workers)) for workers in (1, 2))
    with one as alone, two as together:
        contenders = {"one": (alone, rounds(alone), 1), "two": (together, rounds(together), 2)}
        for repeat in range(REPEATS + 1):
            for name, (engine, one_round, workers) in contenders.items():
                before, began = cpu_times(engine, workers), time.perf_counter()
                one_round()
                if repeat:  # the first is for warming up
                    wall[name].append(time.perf_counter() - began)
                    after = cpu_times(engine, workers)
                    cpu[name].append(max(after[worker] - before[worker] for worker in after))
    name = "one worker / two workers, 12 unequal clients"
    about = f"at best {best_possible(sizes, 2):.2f}; load before {load:.1f}, of {os.cpu_count()} cores"
    return [
        Figure(f"{name}, wall clock", ratios(wall, "one", "two"), at_least=1.8, about=about),
        Figure("the same, CPU time of the busier worker", ratios(cpu, "one", "two"), at_least=1.8),
    ]
