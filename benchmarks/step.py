"""The APPLE step against a plain PyTorch SGD step, as a ratio of CPU times in one process.

Both train the paper's CNN on batches of 256 images of MNIST's shape, on one thread, interleaved. The plain step
is written the ordinary way: contiguous tensors, ReLU before pooling, `torch.optim.SGD`. The APPLE step is the
one that `orchard run` takes, with N = 12 clients.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from orchard.contract import Federation, Reply
from orchard.data import ClientData, Samples
from orchard.experiment import Experiment
from orchard.methods.apple import Apple, AppleClient, AppleServer
from orchard.training import Site

CLIENTS, BATCH, STEPS, REPEATS = 12, 256, 5, 15


class PlainCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 20, 5), nn.Conv2d(20, 50, 5)
        self.hidden, self.output = nn.Linear(800, 500), nn.Linear(500, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        scores: Tensor = self.output(functional.relu(self.hidden(x.flatten(1))))
        return scores


def plain(x: Tensor, y: Tensor) -> Callable[[], None]:
    model = PlainCNN()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def steps() -> None:
        for batch_x, batch_y in zip(torch.split(x, BATCH), torch.split(y, BATCH), strict=True):
            optimiser.zero_grad()
            torch.autograd.backward(functional.cross_entropy(model(batch_x), batch_y))
            optimiser.step()

    return steps


def apple(x: Tensor, y: Tensor) -> Callable[[], None]:
    settings = Apple()
    experiment = Experiment(dataset="mnist", clients=CLIENTS, epochs=1, batch_size=BATCH, method=settings)
    federation = Federation(experiment, (len(y),) * CLIENTS, (1, 28, 28), 10)
    client, server = AppleClient(settings, 0, federation), AppleServer(settings, federation)
    samples = Samples(x, y)
    site = Site(0, experiment, ClientData("client 0", samples, samples, samples), federation.network())
    client.receive(site, Reply(0, server.reply(0, client.wants(0))))

    def steps() -> None:
        client.train(site, 0)

    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    as_json = parser.parse_args().json
    torch.set_num_threads(1)
    x, y = torch.randn(STEPS * BATCH, 1, 28, 28), torch.randint(10, (STEPS * BATCH,))
    contenders = {"plain": plain(x, y), "apple": apple(x, y)}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(REPEATS + 1):
        for name, steps in contenders.items():
            began = time.process_time()
            steps()
            if repeat:  # the first is for warming up
                times[name].append((time.process_time() - began) / STEPS)
    ratios = [a / p for a, p in zip(times["apple"], times["plain"], strict=True)]
    low, median, high = min(ratios), statistics.median(ratios), max(ratios)
    milliseconds = {name: 1000 * statistics.median(values) for name, values in times.items()}
    if as_json:
        print(json.dumps({"apple_over_plain": {"median": median, "min": low, "max": high}, "ms": milliseconds}))
    else:
        print(f"plain SGD step  {milliseconds['plain']:7.1f} ms of CPU time")
        print(f"APPLE step      {milliseconds['apple']:7.1f} ms, N = {CLIENTS}")
        print(f"ratio           {median:7.2f}    ({low:.2f} to {high:.2f} over {REPEATS} repeats of {STEPS} steps)")


if __name__ == "__main__":
    main()
