"""A step under privacy against the same step without, and against a plain PyTorch step; and what its memory grows by.

CPU time on one thread, on batches of about 256 images of MNIST's shape. Every batch of a private step is a Poisson
sample, so that no two are of the same size.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from measuring import Figure, interleaved, ratios
from networks import PlainCNN
from orchard.core.federation import Federation
from orchard.core.training import ClientContext
from orchard.data.clients import ClientData
from orchard.data.samples import Samples
from orchard.experiment import Experiment
from orchard.tasks.classification import Classification
from steps import BATCH, Steps, plain, random_batches


class WithNorm(nn.Module):
    """The paper's CNN with a LayerNorm at its end, so that it is differentiated sample by sample."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.norm = PlainCNN(), nn.LayerNorm(10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.norm(self.network(x))
        return scores


def steps(data: Samples, model: str | Callable[[], nn.Module] = "cnn", *, private: bool) -> Steps:
    """Return an epoch of FedAvg's training."""
    experiment = Experiment(
        clients=2,
        epochs=1,
        batch_size=BATCH,
        method={"name": "fedavg"},  # type: ignore[arg-type]
        model=model,
        privacy={"noise_multiplier": 1.0} if private else None,  # type: ignore[arg-type]
    )
    federation = Federation(experiment, (len(data.y),) * 2, (1, 28, 28), Classification(tuple(map(str, range(10)))))
    client = experiment.method.client(0, federation)
    context = ClientContext(0, experiment, ClientData("client 0", data, data, data), federation.network())

    def epoch() -> None:
        seen = context.guarded(0)
        context.network.private = seen.private
        client.train(seen, 0)

    return epoch


def measure() -> list[Figure]:
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as worker:
        return worker.submit(_measured).result()


def _measured() -> list[Figure]:
    data = random_batches(5)
    contenders = {
        "plain": plain(PlainCNN(), data),
        "without": steps(data, private=False),
        "private": steps(data, private=True),
        "other": steps(data, WithNorm, private=True),
    }
    times = interleaved(contenders, 7, time.thread_time)
    milliseconds = {name: 1000 * sorted(values)[len(values) // 2] / 5 for name, values in times.items()}
    about = f"{milliseconds['private']:.0f} ms against {milliseconds['without']:.0f} ms"
    return [
        Figure("private step / the same without privacy", ratios(times, "private", "without"), at_most=3, about=about),
        Figure("private step / plain step", ratios(times, "private", "plain"), at_most=3),
        Figure("the same, sample by sample", ratios(times, "other", "plain")),
    ]
