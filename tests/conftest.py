import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import orchard
from orchard.contract import Federation
from orchard.data import ClientArrays, FederatedData, from_arrays
from orchard.experiment import Experiment

ROOT = Path(__file__).parent.parent
REAL_DATA = Path(os.environ.get("ORCHARD_DATA", ROOT.parent / "shared" / "data"))

needs_mnist = pytest.mark.skipif(
    not (REAL_DATA / "mnist").is_dir(), reason="MNIST's files are not there; set ORCHARD_DATA"
)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Tests compare bit for bit, so what they compute themselves runs on one thread as workers do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
    return orchard.load_experiment(overrides=values | changes)


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
