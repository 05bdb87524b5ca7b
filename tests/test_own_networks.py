"""A network of the user's own cannot harm data or results unnoticed: it is tried before the first round."""

import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from helpers import small_data, small_experiment, small_run
from orchard.core.federation import Federation
from orchard.core.models import MLP
from orchard.core.selftest import check_network
from orchard.core.vector import Network
from orchard.engines.local import LocalEngine
from orchard.errors import ModelWarning, RunFailed, UserError
from orchard.experiment import RunOptions


class Own(nn.Module):
    """A sound network, of which the others are spoilt copies."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(int(np.prod(shape)), 8)
        self.output = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.output(torch.relu(self.hidden(x.flatten(1))))
        return scores


class InPlace(Own):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.sub_(x.mean()))


class PastAutograd(Own):
    def forward(self, x: Tensor) -> Tensor:
        x.data.numpy()[:] *= 0.5  # which no version counter sees
        return super().forward(x)


class DropsGradients(Own):
    def forward(self, x: Tensor) -> Tensor:
        self.zero_grad(set_to_none=True)
        return super().forward(x)


class ReplacesParameters(Own):
    def forward(self, x: Tensor) -> Tensor:
        self.output.weight = nn.Parameter(self.output.weight.detach().clone())
        return super().forward(x)


class Detached(Own):
    def forward(self, x: Tensor) -> Tensor:
        return 0 * super().forward(x)


class Remembers(Own):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) / self.calls


class DrawsWithNumPy(Own):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + float(np.random.normal()))


class DrawsWithPython(Own):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + random.random())  # noqa: S311


class DrawsInEvaluation(Own):
    def forward(self, x: Tensor) -> Tensor:
        scores = super().forward(x)
        return scores if self.training else scores + 5 * torch.randn_like(scores)


class StartsAnyhow(Own):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(shape, classes)
        nn.init.constant_(self.output.bias, float(np.random.normal()))


class Complex(Own):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(shape, classes)
        with warnings.catch_warnings(action="ignore"):  # PyTorch's own, that these are new
            self.to(torch.complex64)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.output(self.hidden(x.flatten(1).to(torch.complex64))).abs()
        return scores


class Counting(Own):
    """Has a frozen parameter of whole numbers before all others."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(shape, classes)
        first = nn.Parameter(torch.zeros(1, dtype=torch.long), requires_grad=False)
        self._parameters = {"seen": first, **self._parameters}


class WholeNumbers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, dtype=torch.long))


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (InPlace, "changes its input in place, which is a client's data; write x = x - m"),
        (PastAutograd, "changes its input in place"),
        (DropsGradients, r"hidden.weight is not what is trained any more: .* drops their gradients"),
        (ReplacesParameters, "output.weight is not what is trained any more: the network replaces"),
        (Detached, "no parameter has a gradient, so that nothing would be trained"),
        (Complex, "its parameters are torch.complex64; only real floating-point numbers can be trained"),
        (WholeNumbers, "[Oo]nly Tensors of floating point"),
    ],
)
def test_what_would_harm_is_refused_before_anything_is_trained(network: type[nn.Module], words: str) -> None:
    with pytest.raises(UserError, match=rf"model = '{network.__name__}': .*{words}"):
        small_run(model=network)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (Remembers, r"remembers something outside of them .*; results depend on the number of workers"),
        (DrawsWithNumPy, "draws random numbers elsewhere than from PyTorch's generator"),
        (DrawsWithPython, "draws random numbers elsewhere"),
        (StartsAnyhow, "its first values differ from build to build"),
    ],
)
def test_what_does_not_repeat_itself_is_said(network: type[nn.Module], words: str) -> None:
    with pytest.warns(ModelWarning, match=words):
        small_run(model=network, rounds=1)


def generators() -> tuple[object, ...]:
    """The states of all generators that a network may draw from without asking."""
    numpys = np.random.get_state(legacy=False)["state"]
    return random.getstate(), numpys["key"].tolist(), numpys["pos"], torch.get_rng_state().tolist()


def test_what_is_sound_runs_as_it_did() -> None:
    """Dropout, BatchNorm, frozen whole numbers: and the test leaves no trace on any generator, nor on the result."""
    networks: list[Callable[..., nn.Module]] = [Own, Counting, dropout, normalised]
    states = generators()
    for network in networks:
        small_run(model=network, rounds=1, batch_size=10)
    assert generators() == states
    own, built_in = small_run(model=as_built_in, rounds=2), small_run(model="mlp", rounds=2)  # the latter is not tried
    assert np.array_equal(own.scores(), built_in.scores())
    assert all(torch.equal(a[0], b[0]) for a, b in zip(own.models, built_in.models, strict=True))


def test_what_draws_only_when_it_is_evaluated_repeats_itself_too() -> None:
    """The generator is seeded for such a network as for one with dropout."""
    one, other = (small_run(model=DrawsInEvaluation, rounds=2, workers=workers) for workers in (1, 4))
    assert np.array_equal(one.scores(), other.scores())


def dropout(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 8), nn.Dropout(0.5), nn.Linear(8, classes))


def normalised(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 8), nn.BatchNorm1d(8), nn.Linear(8, classes))


def as_built_in(shape: tuple[int, ...], classes: int) -> nn.Module:
    return MLP(shape, classes)


def test_it_is_tried_once_and_not_by_client() -> None:
    built: list[int] = []

    def factory(shape: tuple[int, ...], classes: int) -> nn.Module:
        built.append(1)
        return Own(shape, classes)

    for clients in (2, 4):
        built.clear()
        experiment = small_experiment(model=factory, clients=clients)
        data = small_data(experiment)
        federation = Federation(experiment, tuple(data.sizes()["train"]), data.shape, data.task)
        check_network(federation, data.clients)
        assert len(built) == 2  # the second one shows whether the first values repeat themselves
        with LocalEngine(experiment, data, RunOptions(workers=1)):
            pass


# --- What begins later is noticed when it happens ---


class Later(Own):
    """Behaves at first, and spoils things in the real rounds."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        type(self).calls += 1
        if type(self).calls > 60:  # all that is tried before the first round takes fewer
            self.spoil(x)
        return super().forward(x)

    def spoil(self, x: Tensor) -> None:
        raise NotImplementedError


class LaterInPlace(Later):
    def spoil(self, x: Tensor) -> None:
        x.mul_(0.5)


class LaterDropsGradients(Later):
    def spoil(self, x: Tensor) -> None:
        self.zero_grad(set_to_none=True)


@pytest.mark.parametrize(
    ("network", "words"),
    [(LaterInPlace, "the network changes its input in place"), (LaterDropsGradients, "hidden.weight is not what is")],
)
def test_what_begins_later_fails_the_run(network: type[Later], words: str) -> None:
    network.calls = 0
    with pytest.raises(RunFailed, match=words):
        small_run(model=network, rounds=5)


def test_the_two_tensors_are_the_networks_own() -> None:
    network = Network(Own((6,), 3))
    network.check_whole()
    network.module.register_parameter("late", nn.Parameter(torch.zeros(1)))
    with pytest.raises(ValueError, match="late was added or unfrozen later"):
        network.check_whole()
    conv = Network(nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last))  # type: ignore[call-overload]
    conv.check_whole()


def test_the_command_line_refuses_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "class Bad(nn.Module):\n"
        "    def __init__(self, shape, classes):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(784, classes)\n"
        "    def forward(self, x):\n"
        "        return self.layer(x.sub_(x.mean()).flatten(1))\n"
    )
    command = [sys.executable, "-c", "from orchard.cli import main; main()", "run", "--quiet"]
    command += ["--set", "model=mine:Bad", "--rounds", "1"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "model = 'mine:Bad': the network changes its input in place" in ended.stderr
    assert not list(tmp_path.glob("runs/*"))
