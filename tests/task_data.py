"""Small federations of four clients for every task, made of real data."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_diabetes
from torch.nn import functional

from orchard.data.client_arrays import ClientArrays
from orchard.data.datasets import DIGITS
from orchard.data.readers import read_npz

FINDINGS = {"even": (0, 2, 4, 6, 8), "above 4": (5, 6, 7, 8, 9), "has a hole": (0, 6, 8, 9)}
SETTINGS: dict[str, dict[str, Any]] = {
    "classification": {"task": "classification", "model": "mlp", "lr": 0.1, "rounds": 3},
    "multilabel": {"task": "multilabel", "model": "mlp", "lr": 0.1, "rounds": 3},
    "regression": {"task": "regression", "model": "mlp", "lr": 0.003, "rounds": 3},
    "segmentation": {"task": "segmentation", "model": "unet", "lr": 0.1, "rounds": 2, "epochs": 1},
}
NAMES = {
    "classification": [str(digit) for digit in range(10)],
    "multilabel": list(FINDINGS),
    "regression": ["progression"],
    "segmentation": ["background", "stroke"],
}
"""What the outputs are called where sites agree on them."""


def task_arrays(task: str, samples: int = 80, tests: int = 30) -> list[ClientArrays]:
    """Return four clients' data for a task."""
    x, y = {
        "classification": _digits,
        "multilabel": _findings,
        "regression": _diabetes,
        "segmentation": _strokes,
    }[task]()
    each = samples + tests
    parts = [slice(each * i, each * (i + 1)) for i in range(4)]
    return [ClientArrays(x[part][:samples], y[part][:samples], x[part][samples:], y[part][samples:]) for part in parts]


def _digits() -> tuple[NDArray[Any], NDArray[Any]]:
    arrays = read_npz(DIGITS)
    return (arrays["images"] / 8 - 1).astype(np.float32), arrays["labels"].astype(np.int64)


def _findings() -> tuple[NDArray[Any], NDArray[Any]]:
    x, labels = _digits()
    return x, np.stack([np.isin(labels, having) for having in FINDINGS.values()], axis=1)


def _diabetes() -> tuple[NDArray[Any], NDArray[Any]]:
    """How far the diabetes of 442 people has progressed after a year, from ten figures of each."""
    x, y = load_diabetes(return_X_y=True)
    return (x / x.std(axis=0)).astype(np.float32), y


def _strokes() -> tuple[NDArray[Any], NDArray[Any]]:
    """Digits of 16×16 pixels on noise, and where their strokes are."""
    x, _ = _digits()
    large = functional.interpolate(torch.from_numpy(x[:, None]), scale_factor=2, mode="bilinear").numpy()[:, 0]
    noise = np.random.default_rng(0).normal(0, 0.4, size=large.shape)
    return (large + noise).astype(np.float32), (large > 0).astype(np.uint8)


def held_out(task: str, client: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return a client's test data."""
    given = task_arrays(task)[client]
    return np.asarray(given.x_test), np.asarray(given.y_test)
