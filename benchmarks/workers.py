"""Two workers against one, on 12 clients of the practical split's sizes: wall-clock time of a round of one epoch.

Says something only where two cores are free; the load of the machine stands beside the figure.
"""

import os
import time
from collections.abc import Callable

from federations import CLIENTS, practical_sizes, random_images
from measuring import Figure, interleaved, ratios
from orchard.contract import Reply
from orchard.data import from_arrays
from orchard.engines.local import LocalEngine
from orchard.experiment import Experiment
from orchard.rounds import form_federation

SAMPLES, REPEATS = 12_000, 5


def rounds(engine: LocalEngine) -> Callable[[], None]:
    federation = form_federation(engine.experiment, engine)
    server = engine.experiment.method.server(federation)
    wants = engine.start(federation)

    def one_round() -> None:
        engine.exchange({i: Reply(0, server.reply(i, wanted)) for i, wanted in wants.items()})

    return one_round


def best_possible(sizes: list[int], workers: int) -> float:
    """Return how many times faster the workers could be at best, each client being one piece of work."""
    loads = [0] * workers
    for size in sorted(sizes, reverse=True):
        loads[loads.index(min(loads))] += size
    return sum(sizes) / max(loads)


def measure() -> list[Figure]:
    sizes = practical_sizes(SAMPLES)
    arrays = random_images(sizes)
    one, two = (Experiment(dataset="arrays", clients=CLIENTS, epochs=1, workers=workers) for workers in (1, 2))
    with LocalEngine(one, from_arrays(arrays, one)) as alone, LocalEngine(two, from_arrays(arrays, two)) as together:
        before = os.getloadavg()[0]
        contenders = {"one": rounds(alone), "two": rounds(together)}
        times = interleaved(contenders, REPEATS, time.perf_counter)
    about = f"at best {best_possible(sizes, 2):.2f}; load before {before:.1f}, of {os.cpu_count()} cores"
    return [
        Figure("one worker / two workers, 12 unequal clients", ratios(times, "one", "two"), at_least=1.8, about=about)
    ]
