"""No path leads from a client's samples to what it gives away, but through noised gradients and losses.

Where the noise is a million times as long as all gradients together, whatever the samples are must show in the sixth
digit at most: of models, of relationships, and of whose models are asked for. What went another way would show whole.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import orchard
from helpers import small_arrays, small_experiment
from orchard.audit.capture import repeat
from orchard.core.vector import Model
from orchard.data.client_arrays import ClientArrays
from orchard.experiment import RunOptions
from orchard.methods.registry import BUILT_IN
from orchard.runs.run import load_data

DROWNED: dict[str, Any] = {"noise_multiplier": 1e6, "clip": 1e-6}
METHODS = [*({"name": name} for name in BUILT_IN), {"name": "apple", "budget": 2}, {"name": "fedfomo", "budget": 2}]


def both() -> tuple[list[ClientArrays], list[ClientArrays]]:
    """Return clients, and others with as many samples, each of which differs."""
    some = small_arrays()
    return some, [
        replace(
            one,
            x_train=5 - 3 * np.asarray(one.x_train)[::-1],
            y_train=(np.asarray(one.y_train)[::-1] + 1) % 3,
            x_test=5 - 3 * np.asarray(one.x_test),
        )
        for one in some
    ]


def given_away(method: dict[str, Any], arrays: list[ClientArrays]) -> tuple[list[torch.Tensor], list[Any]]:
    """Return all vectors that clients upload, with their last models, and what they ask for."""
    experiment = small_experiment(method=method, privacy=DROWNED, lr=0.01)
    vectors, asked = list[torch.Tensor](), list[Any]()

    def watch(federation: object, sent: Any, answers: Any) -> None:
        for i in sorted(answers):
            vectors.extend(vector for _, vector in sorted(answers[i].upload.items()))
            asked.append((sorted(answers[i].upload), answers[i].selected))

    models: list[Model]
    _, models = repeat(experiment, load_data(experiment, arrays), RunOptions(workers=1), watch)
    return [*vectors, *(vector for vector, _ in models)], asked


@pytest.mark.parametrize("method", METHODS, ids=lambda method: "-".join(map(str, method.values())))
def test_samples_show_through_noised_gradients_and_losses_only(method: dict[str, Any]) -> None:
    (one, asked), (other, also_asked) = (given_away(method, arrays) for arrays in both())
    assert asked == also_asked
    for mine, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
    assert not all(map(torch.equal, one, other))


def test_without_privacy_they_show_whole() -> None:
    first, second = (orchard.run(small_experiment(method="fedavg-local"), arrays) for arrays in both())
    apart = [(a[0] - b[0]).norm() / a[0].norm() for a, b in zip(first.models, second.models, strict=True)]
    assert min(map(float, apart)) > 0.1
