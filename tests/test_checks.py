"""Checks fire where something is likely to go wrong, and are silent elsewhere."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import orchard
from helpers import SMALL, small_arrays, small_experiment, small_run
from orchard.cli.progress import say_if_loss_stays
from orchard.data.client_arrays import ClientArrays, from_arrays
from orchard.data.clients import FederatedData
from orchard.runs.checks import (
    OF_A_CLIENT,
    classes_without_samples,
    few_tests,
    findings,
    large_batches,
    nothing_normalised,
    probabilities_as_outputs,
    unmoved_loss,
    unscaled_features,
)
from orchard.runs.result import Result
from processes import orchard_command


def clients_of(*sizes: int) -> FederatedData:
    """Clients with so many training samples each."""
    arrays = [
        ClientArrays(
            np.zeros((n, 2)), np.zeros(n, int), np.zeros((1, 2)), np.ones(1, int), np.zeros((1, 2)), np.ones(1, int)
        )
        for n in sizes
    ]
    return from_arrays(arrays, small_experiment(clients=len(sizes)))


@pytest.mark.parametrize(
    ("sizes", "batch", "says"),
    [
        (
            (10, 20, 100),
            32,
            "2 of 3 clients (median: 20 samples), so that an epoch is a single step; try batch_size = 4",
        ),
        ((100,), 256, "the client (median: 100 samples), so that an epoch is a single step; try batch_size = 16"),
        ((3, 3), 8, "2 of 2 clients (median: 3 samples), so that an epoch is a single step; try batch_size = 1"),
        ((10, 32, 100), 32, ""),
        ((10, 100), 32, ""),
    ],
)
def test_batches_larger_than_most_clients_data(sizes: Sequence[int], batch: int, says: str) -> None:
    said = large_batches(small_experiment(batch_size=batch, clients=len(sizes)), clients_of(*sizes))
    assert said == (f"batch_size = {batch}: is more than the training data of {says}" if says else "")


def with_features(*columns: NDArray[Any], layout: str | None = None) -> str:
    x = np.stack(columns, axis=1)
    half = len(x) // 2
    y = np.arange(len(x)) % 2
    arrays = [ClientArrays(x[:half], y[:half]), ClientArrays(x[half:], y[half:])]
    experiment = small_experiment(clients=2, layout=layout)
    return unscaled_features(experiment, from_arrays(arrays, experiment))


EVEN = np.linspace(-1, 1, 100)


@pytest.mark.parametrize(
    "column",
    [1000 * EVEN, 50 + EVEN, EVEN / 1000, np.full(100, 2024.0), 37 + EVEN],
    ids=["large", "off centre", "small", "constant", "temperature"],
)
def test_features_far_from_standardised(column: NDArray[Any]) -> None:
    said = with_features(EVEN, column, EVEN)
    assert said.startswith("1 of 3 features are far from mean 0 and deviation 1 (number 1: mean ")
    assert said.endswith("; standardise them")


@pytest.mark.parametrize(
    "column",
    [EVEN, 0 * EVEN, 0 * EVEN + 1, np.eye(100)[3], 1 - np.eye(100)[3], 30 * EVEN + 5, EVEN / 20],
    ids=["even", "zeros", "ones", "rarely one", "rarely zero", "tens", "twentieths"],
)
def test_features_that_are_near_enough(column: NDArray[Any]) -> None:
    assert with_features(EVEN, column) == ""


def test_channels_of_signals_are_looked_at_and_images_are_not() -> None:
    signals = np.repeat(EVEN[:, None], 30, axis=1)
    assert with_features(signals, signals + 40, layout="signal").startswith("1 of 2 channels are far from mean 0")
    assert with_features(signals, signals, layout="signal") == ""
    experiment = small_experiment(clients=1)
    images = ClientArrays(np.full((40, 9, 9), 255.0), np.arange(40) % 2)
    assert unscaled_features(experiment, from_arrays([images], experiment)) == ""


class Scores(nn.Module):
    def __init__(self, end: nn.Module | None, classes: int, *, lift: float = 0.0) -> None:
        super().__init__()
        self.first, self.output, self.end, self.lift = (
            nn.Linear(6, 8),
            nn.Linear(8, classes),
            end or nn.Identity(),
            lift,
        )
        nn.init.constant_(self.output.bias, lift)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.end(self.output(torch.tanh(self.first(x)) / 100))
        return outputs


def with_end(end: nn.Module | None, lift: float = 0.0, task: str = "classification") -> str:
    def make_net(classes: int) -> nn.Module:
        return Scores(end, classes, lift=lift)

    y = np.eye(3, dtype=int)[np.arange(40) % 3] if task == "multilabel" else np.arange(40) % 3
    target: NDArray[Any] = (np.arange(40) / 40) if task == "regression" else y
    x = np.random.default_rng(0).normal(size=(40, 6))
    experiment = small_experiment(clients=1, model=make_net, task=task)
    return probabilities_as_outputs(experiment, from_arrays([ClientArrays(x, target)], experiment))


def test_a_network_that_ends_in_probabilities() -> None:
    assert with_end(nn.Softmax(dim=1)).endswith(
        "make_net': gives probabilities, but the loss expects scores; remove the softmax at its end"
    )
    assert with_end(nn.Sigmoid()).endswith("remove the sigmoid at its end")
    assert with_end(nn.Sigmoid(), task="multilabel").endswith("remove the sigmoid at its end")


def test_scores_are_not_taken_for_probabilities() -> None:
    for task in ("classification", "multilabel"):
        assert with_end(None, task=task) == ""
        assert with_end(None, lift=0.5, task=task) == ""  # all between 0 and 1, by chance
        assert with_end(None, lift=1 / 3, task=task) == ""  # and rows that nearly sum to 1
        assert with_end(nn.ReLU(), lift=0.5, task=task) == ""
    assert with_end(nn.LogSoftmax(dim=1)) == ""  # whose cross-entropy is that of the scores
    assert with_end(nn.Sigmoid(), task="regression") == ""


def test_fedbn_without_normalisation_layers_is_told_what_it_is() -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))

    def said(**settings: Any) -> str:
        experiment = small_experiment(**settings)
        return nothing_normalised(experiment, from_arrays(small_arrays(), experiment))

    assert said(method="fedbn", model="mlp") == (
        "method = 'fedbn': the model has no normalisation layers with parameters, so that this is fedavg-local; "
        "take a model that has some (BatchNorm, GroupNorm), or another method, e.g. fedper"
    )
    assert said(method="fedbn", model=normed) == ""
    assert said(method="fedavg-local", model="mlp") == ""


def test_small_test_parts_are_one_line() -> None:
    data = from_arrays(small_arrays(), small_experiment())
    assert few_tests(small_experiment(), data) == (
        "fewer than 20 test samples at 4 of 4 clients (client 0 has 12): their own figures are coarse; "
        "trust means over clients and seeds"
    )
    x, y = np.zeros((60, 2)), np.arange(60) % 2
    enough = from_arrays([ClientArrays(x, y, x[:20], y[:20])], small_experiment(clients=1))
    assert few_tests(small_experiment(), enough) == ""


def test_a_class_without_training_samples() -> None:
    experiment = small_experiment(clients=2)

    def said(first: int, second: int) -> str:
        parts = [np.full(30, k) for k in (first, second)]
        arrays = [ClientArrays(np.zeros((30, 2)), y, np.zeros((3, 2)), np.full(3, 4)) for y in parts]
        return classes_without_samples(experiment, from_arrays(arrays, experiment))

    assert said(1, 2).startswith("no training sample is of 3 of 5 classes (0, 3, 4), so that they are not learned; ")
    numbers = [ClientArrays(np.zeros((30, 2)), np.arange(30) % 3) for _ in range(2)]
    assert classes_without_samples(experiment, from_arrays(numbers, experiment)) == ""


def test_a_loss_that_does_not_move_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    result = small_run(lr=1e-9, rounds=5, method="fedavg", progress=say_if_loss_stays())
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"orchard: {unmoved_loss(result)}"
    assert "has not moved by 1 % in the first 5 rounds" in line
    assert "if it stays there, try a larger learning rate (lr = 1e-09)" in line


def test_apple_which_starts_slowly_gets_other_advice() -> None:
    said = unmoved_loss(small_run(lr=1e-9, rounds=5, method="apple"))
    assert said.endswith("APPLE starts slowly; if it stays there, try --set method.initial=shared, or graft")


def test_a_loss_that_moves_and_a_short_run_are_not_mentioned() -> None:
    assert unmoved_loss(small_run(rounds=5, method="fedavg")) == ""
    assert unmoved_loss(small_run(rounds=4, lr=1e-9, method="fedavg")) == ""


def test_python_asks_for_the_findings() -> None:
    found = orchard.check(data=small_arrays(), **{**SMALL, "batch_size": 256})
    assert [text.split(":")[0] for text in found] == ["batch_size = 256", found[1].split(":")[0]]
    assert found[1].startswith("fewer than 20 test samples at 4 of 4 clients")
    assert orchard.check(small_experiment(), small_arrays()) == found[1:]
    quiet = [ClientArrays(np.zeros((200, 2)), np.arange(200) % 2) for _ in range(2)]
    assert orchard.check(data=quiet, batch_size=16) == []


def test_a_site_lacks_classes_and_says_nothing_of_it() -> None:
    arrays = [ClientArrays(np.zeros((200, 2)), np.full(200, 3))]
    experiment = small_experiment(clients=1)
    data = from_arrays(arrays, experiment)
    assert len(findings(experiment, data)) == 1
    assert findings(experiment, data, OF_A_CLIENT) == []


def test_checks_draw_nothing_and_change_nothing() -> None:
    def dropping() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 3), nn.Softmax(dim=1))

    def trained(*, checked: bool) -> Result:
        torch.manual_seed(5)
        experiment = small_experiment(model=dropping, method="fedavg")
        before, legacy = torch.get_rng_state(), repr(np.random.get_state())
        if checked:
            assert len(orchard.check(experiment, small_arrays())) == 2
        assert torch.equal(torch.get_rng_state(), before)
        assert repr(np.random.get_state()) == legacy
        return orchard.run(experiment, small_arrays())

    with_checks, without = trained(checked=True), trained(checked=False)
    assert [r.loss for r in with_checks.rounds] == [r.loss for r in without.rounds]


def test_the_command_says_it_on_standard_error(tmp_path: Path) -> None:
    settings = ["--rounds", "1", "--set", "epochs=1", "--set", "model=logistic", "--set", "batch_size=1000"]
    run = orchard_command("run", *settings, "--json", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stderr.startswith("orchard: batch_size = 1000: is more than the training data of 8 of 8 clients ")
    assert run.stdout.startswith("{")
    assert orchard_command("run", *settings, "--quiet", cwd=tmp_path).stderr == ""
