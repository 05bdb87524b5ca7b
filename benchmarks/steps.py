"""A step of APPLE against a plain PyTorch step, against N branches, and as the federation and the network grow.

CPU time on one thread, on batches of 256 images of MNIST's shape, and with ResNet-18 on batches of 32 too. The plain
step is written the ordinary way: contiguous tensors, ReLU before pooling, `torch.optim.SGD`. The APPLE step is the one
that `orchard run` takes, on a thread as there.
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn
from torch.nn import functional

from measuring import Figure, interleaved, ratios
from networks import OrdinaryResNet18, PlainCNN, ResNet18, branched_cnn
from orchard.core.contract import Download
from orchard.core.federation import Federation
from orchard.core.training import ClientContext
from orchard.data.clients import ClientData
from orchard.data.samples import Samples
from orchard.engines.memory import Stacker, share
from orchard.experiment import Experiment
from orchard.methods.apple import Apple
from orchard.tasks.classification import Classification

BATCH, SMALL, MANY = 256, 32, 96
EVERY = 10
"""Batches a step of the relationships, with small batches where it is not each."""

Steps = Callable[[], None]


def random_batches(number: int, size: int = BATCH) -> Samples:
    return Samples(torch.randn(number * size, 1, 28, 28), torch.randint(10, (number * size,)))


def plain(model: nn.Module, data: Samples, size: int = BATCH, trained: Iterable[Tensor] | None = None) -> Steps:
    optimiser = torch.optim.SGD(model.parameters() if trained is None else trained, lr=0.01, momentum=0.9)

    def steps() -> None:
        for x, y in zip(torch.split(data.x, size), torch.split(data.y, size), strict=True):
            optimiser.zero_grad()
            torch.autograd.backward(functional.cross_entropy(model(x), y))
            optimiser.step()

    return steps


def branches(clients: int, data: Samples) -> Steps:
    p = torch.full((clients,), 1 / clients, requires_grad=True)
    model, own = branched_cnn(p)
    return plain(model, data, trained=[*own, p])


def apple(
    clients: int, data: Samples, model: str | Callable[[], nn.Module] = "cnn", size: int = BATCH, every: int = 1
) -> Steps:
    settings = Apple(relationships_every=every)
    experiment = Experiment(clients=clients, epochs=1, batch_size=size, method=settings, model=model)
    federation = Federation(
        experiment, (len(data.y),) * clients, (1, 28, 28), Classification(tuple(map(str, range(10))))
    )
    client, server = settings.client(0, federation), settings.server(federation)
    held = ClientData("client 0", data, data, data)
    context = ClientContext(0, experiment, held, federation.network(), stacker=Stacker())
    selected = tuple(client.select(0))
    share(server, [client], {0: selected})
    client.receive(context, Download(0, server.send(0, selected)))

    def steps() -> None:
        client.train(context, 0)

    return steps


def measure() -> list[Figure]:
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as worker:
        return worker.submit(_measured).result()


def _measured() -> list[Figure]:
    # What a round adds to its steps, e.g. stacking the cores, counts once in a few steps here: as in a run, or more.
    data, few, one = random_batches(5), random_batches(3), random_batches(1)
    times = interleaved(
        {"plain": plain(PlainCNN(), data), "apple": apple(12, data), "many": apple(MANY, data)}, 11, time.thread_time
    )
    against = interleaved({"branches": branches(12, one), "apple": apple(12, one)}, 7, time.thread_time)
    large = interleaved(
        {
            "plain": plain(ResNet18(), few),
            "apple": apple(12, few, ResNet18),
            "seldom": apple(12, few, ResNet18, every=3),
        },
        9,
        time.thread_time,
        settle=True,
    )
    hospital = random_batches(2 * EVERY, SMALL)
    small = interleaved(
        {
            "plain": plain(ResNet18(), hospital, SMALL),
            "apple": apple(12, hospital, OrdinaryResNet18, SMALL),
            "seldom": apple(12, hospital, OrdinaryResNet18, SMALL, EVERY),
        },
        5,
        time.thread_time,
        settle=True,
    )
    milliseconds = {name: 1000 * sorted(values)[len(values) // 2] / 5 for name, values in times.items()}
    both = f"{milliseconds['apple']:.0f} ms against {milliseconds['plain']:.0f} ms"
    return [
        Figure("APPLE step / plain step, N = 12", ratios(times, "apple", "plain"), at_most=0.75, about=both),
        Figure("N branches / APPLE step, N = 12", ratios(against, "branches", "apple"), at_least=9),
        Figure(f"APPLE step, N = {MANY} / N = 12", ratios(times, "many", "apple"), at_most=1.5),
        Figure("APPLE step / plain step, ResNet-18, N = 12", ratios(large, "apple", "plain"), at_most=1.15),
        Figure("the same, relationships_every = 3", ratios(large, "seldom", "plain"), at_most=1.15),
        Figure(f"the same, batches of {SMALL}", ratios(small, "apple", "plain")),
        Figure(f"the same, relationships_every = {EVERY}", ratios(small, "seldom", "plain")),
    ]
