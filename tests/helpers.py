"""Small federations that train in milliseconds."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import orchard
from orchard.core.contract import Client, ClientUpdate, Download, Server
from orchard.core.federation import Federation
from orchard.core.training import ClientContext
from orchard.data.client_arrays import ClientArrays, from_arrays
from orchard.data.clients import FederatedData
from orchard.engines.client_round import run_client_round
from orchard.engines.memory import share
from orchard.experiment import Experiment, load_experiment
from orchard.methods import AveragingServer
from orchard.runs.result import Result
from orchard.tasks.classification import Classification
from orchard.tasks.task import Measures

ROOT = Path(__file__).parent.parent
REAL_DATA = Path(os.environ.get("ORCHARD_DATA", ROOT.parent / "shared" / "data"))
DRAW = np.random.default_rng(0)

needs_mnist = pytest.mark.skipif(
    not (REAL_DATA / "mnist").is_dir(), reason="MNIST's files are not there; set ORCHARD_DATA"
)


SMALL: dict[str, Any] = {
    "dataset": "arrays",
    "clients": 4,
    "model": "mlp",
    "method": "apple",
    "rounds": 3,
    "epochs": 2,
    "batch_size": 8,
    "lr": 0.05,
}
"""Four clients with a few small samples each: a run takes milliseconds."""


def small_experiment(**changes: object) -> Experiment:
    return load_experiment(overrides=SMALL | changes)


def small_run(arrays: Sequence[ClientArrays] | None = None, **changes: Any) -> Result:
    """Run the small experiment with other settings or options."""
    return orchard.run(data=arrays or small_arrays(), **{**SMALL, **changes})


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
    return Federation(experiment, samples, data.shape, data.task)


def classes(count: int) -> Classification:
    """The task of telling classes 0, 1, … apart."""
    return Classification(tuple(map(str, range(count))))


def measures(accuracy: float, balanced_accuracy: float | None = None, auroc: float | None = None) -> Measures:
    """What a classification measures."""
    return {"accuracy": accuracy, "balanced_accuracy": balanced_accuracy, "auroc": auroc}


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layers(x)
        return scores


class SmallFederation:
    """The clients and the server of a method, stepped by hand."""

    def __init__(self, *, shape: tuple[int, ...] = (6,), **changes: object) -> None:
        self.experiment = small_experiment(**changes)
        data = small_data(self.experiment, shape=shape)
        self.federation = federation_of(self.experiment, data)
        method, n = self.experiment.method, self.federation.clients
        like = self.federation.network().vector
        held = [client.to(like) for client in data.clients]
        self.contexts = [ClientContext(i, self.experiment, held[i], self.federation.network()) for i in range(n)]
        self.clients: list[Client] = [method.client(i, self.federation) for i in range(n)]
        self.server: Server = method.server(self.federation)
        self.trained: dict[int, Tensor] = {}

    def download(self, i: int, r: int) -> Download:
        """What the server sends to a client in a round."""
        return Download(r, self.server.send(i, self.clients[i].select(r)))

    def round(self, r: int) -> list[ClientUpdate]:
        """Run every client's round, then aggregate; round `rounds` is for evaluation only."""
        share(self.server, self.clients, {i: tuple(c.select(r)) for i, c in enumerate(self.clients)})
        downloads = [self.download(i, r) for i in range(len(self.clients))]
        updates = [self._client_round(i, download) for i, download in enumerate(downloads)]
        uploads = {i: update.upload for i, update in enumerate(updates) if update.upload}
        if uploads:
            self.server.aggregate(uploads)
        return updates

    def _client_round(self, i: int, download: Download) -> ClientUpdate:
        def keep(moment: str, model: Tensor) -> None:
            if moment == "after_training":
                self.trained[i] = model

        return run_client_round(self.clients[i], self.contexts[i], download, self.federation.traffic, keep)

    def run(self, rounds: int) -> "SmallFederation":
        for r in range(rounds):
            self.round(r)
        return self

    def models(self) -> Tensor:
        """The clients' models as trained in the last round."""
        return torch.stack([self.trained[i] for i in range(len(self.clients))])

    def global_model(self) -> Tensor:
        assert isinstance(self.server, AveragingServer)
        return self.server.model


def method(name: str, **parameters: object) -> dict[str, object]:
    return {"name": name, **parameters}
