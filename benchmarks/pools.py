"""What graft costs with a large network: its rounds against FedAvg-local's, and its server's work.

ResNet-18, clients of 768 images with batches of 256, and of 128 images with batches of 32, 5 epochs, by CPU time on one
thread. The server's work is that of
one round: the products of all cores' moves, and the pools. It is compared with the clients' training, 20 plain steps
each.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import torch

from federations import random_images
from measuring import Figure, interleaved, ratios
from networks import ResNet18
from orchard.core.federation import Federation
from orchard.data.client_arrays import from_arrays
from orchard.engines.local import LocalEngine
from orchard.experiment import Experiment, RunOptions, load_experiment
from orchard.methods.graft import Graft
from orchard.runs.loop import _exchange, new_run
from orchard.tasks.classification import Classification
from steps import plain, random_batches

IMAGES, BATCH, EPOCHS, ROUNDS, MANY = 128, 32, 5, 4, (12, 96)


def rounds(clients: int, images: int, batch: int) -> Figure:
    """Let a run of graft and one of FedAvg-local take turns, round by round."""
    arrays = random_images([images] * clients)
    spent: dict[str, list[float]] = {"graft": [], "fedavg-local": []}
    engines = {}
    for method in spent:
        settings = {"dataset": "arrays", "clients": clients, "method": method, "batch_size": batch, "epochs": EPOCHS}
        experiment = load_experiment(overrides={**settings, "model": ResNet18})
        options = RunOptions(workers=1)
        engine = LocalEngine(experiment, from_arrays(arrays, experiment), options)
        engines[method] = engine, new_run(experiment, engine, options)
    for r in range(ROUNDS + 2):
        for method, (_, run) in engines.items():
            began = time.process_time()
            run.selected = _exchange(run, r).selected
            if r > 1:  # the first compares no losses, the second has no evidence yet
                spent[method].append(time.process_time() - began)
    for engine, _ in engines.values():
        engine.__exit__(None, None, None)
    name = f"a round of graft / of FedAvg-local, ResNet-18, {images} images"
    return Figure(name, ratios(spent, "graft", "fedavg-local"), at_most=1.15)


def server(clients: int, step: float) -> Figure:
    """Measure the server's work of a round as a share of the clients' training."""
    experiment = Experiment(clients=clients, method=Graft(), model=ResNet18)
    task = Classification(tuple(map(str, range(10))))
    federation = Federation(experiment, (IMAGES,) * clients, (1, 28, 28), task)
    uploads = {i: {"core": torch.randn(federation.parameters)} for i in range(clients)}
    graft = Graft().server(federation)
    graft.aggregate(uploads)
    seconds = interleaved({"server": lambda: graft.aggregate(uploads)}, 3, time.thread_time)["server"]
    training = clients * EPOCHS * IMAGES / BATCH * step
    return Figure(f"graft's server / training, ResNet-18, N = {clients}", tuple(s / training for s in seconds))


def measure() -> list[Figure]:
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as worker:
        return worker.submit(_measured).result()


def _measured() -> list[Figure]:
    figures = [rounds(2, 768, 256), rounds(4, IMAGES, BATCH)]
    steps = interleaved({"plain": plain(ResNet18(), random_batches(10, BATCH), BATCH)}, 5, time.thread_time)["plain"]
    return [*figures, *(server(clients, sorted(steps)[2] / 10) for clients in MANY)]
