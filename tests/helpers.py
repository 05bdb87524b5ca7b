"""Small federations that train in milliseconds."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from orchard.contract import Answer, Client, Federation, Reply, Server
from orchard.data import ClientArrays, FederatedData, from_arrays
from orchard.engines.turn import take_turn
from orchard.experiment import Experiment, load_experiment
from orchard.methods.fedavg import AveragingServer
from orchard.training import Site

ROOT = Path(__file__).parent.parent
REAL_DATA = Path(os.environ.get("ORCHARD_DATA", ROOT.parent / "shared" / "data"))
DRAW = np.random.default_rng(0)

needs_mnist = pytest.mark.skipif(
    not (REAL_DATA / "mnist").is_dir(), reason="MNIST's files are not there; set ORCHARD_DATA"
)


def small_experiment(**changes: object) -> Experiment:
    """Four clients with a few small samples each: a run takes milliseconds."""
    values: dict[str, object] = {
        "dataset": "arrays",
        "clients": 4,
        "model": "mlp",
        "rounds": 3,
        "epochs": 2,
        "batch_size": 8,
        "lr": 0.05,
    }
    return load_experiment(overrides=values | changes)


def some_images(n: int, *shape: int) -> NDArray[np.uint8]:
    """Return images of random bytes, other ones with every call."""
    return DRAW.integers(256, size=(n, *shape)).astype(np.uint8)


def small_arrays(clients: int = 4, shape: tuple[int, ...] = (6,), classes: int = 3) -> list[ClientArrays]:
    """Unequal clients, each with noisy samples around class means of its own."""
    draw = np.random.default_rng(0)
    arrays = []
    for i in range(clients):
        means = draw.normal(size=(classes, *shape))
        n = 20 + 7 * i
        y = draw.integers(classes, size=n + 12)
        x = (means[y] + 0.5 * draw.normal(size=(n + 12, *shape))).astype(np.float32)
        arrays.append(ClientArrays(x[:n], y[:n], x[n:], np.append(y[n:-1], classes - 1)))
    return arrays


def small_data(experiment: Experiment, **sizes: object) -> FederatedData:
    return from_arrays(small_arrays(experiment.clients, **sizes), experiment)  # type: ignore[arg-type]


def federation_of(experiment: Experiment, data: FederatedData) -> Federation:
    samples = tuple(len(client.train.y) for client in data.clients)
    return Federation(experiment, samples, data.shape, len(data.classes))


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layers(x)
        return scores


class SmallFederation:
    """The halves of a method and the sites of its clients, stepped by hand."""

    def __init__(self, *, shape: tuple[int, ...] = (6,), **changes: object) -> None:
        self.experiment = small_experiment(**changes)
        data = small_data(self.experiment, shape=shape)
        self.federation = federation_of(self.experiment, data)
        method, n = self.experiment.method, self.federation.clients
        like = self.federation.network().vector
        held = [client.beside(like) for client in data.clients]
        self.sites = [Site(i, self.experiment, held[i], self.federation.network()) for i in range(n)]
        self.clients: list[Client] = [method.client(i, self.federation) for i in range(n)]
        self.server: Server = method.server(self.federation)

    def round(self, r: int) -> list[Answer]:
        """Let every client take its turn, then collect; round `rounds` is for evaluation only."""
        replies = [Reply(r, self.server.reply(i, client.wants(r))) for i, client in enumerate(self.clients)]
        answers = [take_turn(c, self.sites[i], replies[i]) for i, c in enumerate(self.clients)]
        uploads = {i: answer.upload for i, answer in enumerate(answers) if answer.upload is not None}
        if uploads:
            self.server.collect(uploads)
        return answers

    def run(self, rounds: int) -> "SmallFederation":
        for r in range(rounds):
            self.round(r)
        return self

    def models(self) -> Tensor:
        return torch.stack([client.personalised() for client in self.clients])

    def global_model(self) -> Tensor:
        assert isinstance(self.server, AveragingServer)
        return self.server.model


def method(name: str, **parameters: object) -> dict[str, object]:
    return {"name": name, **parameters}
