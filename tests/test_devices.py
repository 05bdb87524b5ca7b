"""Training on another device: everything is placed there, and a step never waits for it."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import classes, small_data, small_experiment
from orchard.core.contract import Client, Download
from orchard.core.federation import Federation
from orchard.core.training import ClientContext
from orchard.data.clients import ClientData
from orchard.data.samples import Samples
from orchard.experiment import Experiment
from orchard.methods.registry import BUILT_IN

SYNCHRONISING = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default}


class Looks(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that bring a value from the device to Python, which waits for the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counted: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function in SYNCHRONISING:
            self.counted[str(function)] += 1
        return function(*args, **(kwargs or {}))


def prepared(experiment: Experiment, batches: int, device: str = "cpu") -> tuple[Client, ClientContext]:
    """Client 1 of four, with so many batches, having received what it asked for."""
    data = small_data(small_experiment(), shape=(1, 16, 16)).clients[1].train
    samples = Samples(*(torch.cat([part[:8]] * batches).to(device) for part in data))
    federation = Federation(experiment, (8 * batches,) * 4, (1, 16, 16), classes(3), device)
    client = experiment.method.client(1, federation)
    context = ClientContext(1, experiment, ClientData("", samples, samples, samples), federation.network())
    lengths = federation.traffic.down
    vectors = {name: federation.initial_model()[: lengths[name]] for name in client.select(0)}
    client.receive(context, Download(0, vectors))
    return client, context


@pytest.mark.parametrize("method", list(BUILT_IN))
def test_a_step_never_waits_for_the_device(method: str) -> None:
    """However many steps there are, the figures of an epoch are looked at once."""
    counts = []
    for batches in (1, 4):
        client, context = prepared(small_experiment(method=method, model="cnn", epochs=1), batches)
        with Looks() as looks:
            client.train(context, 0)
        counts.append(looks.counted)
    assert counts[0] == counts[1]
    assert counts[0]  # the count does see the looks there are


@pytest.mark.parametrize("method", [method for method in BUILT_IN if method != "ifca"])  # it looks when it chooses
def test_all_of_a_step_is_on_the_device(method: str) -> None:
    """The meta device has shapes and no values, and refuses tensors of another; only the look at the losses fails."""
    client, context = prepared(small_experiment(method=method, model="cnn", epochs=1), 3, "meta")
    with pytest.raises(NotImplementedError, match="copy out of meta tensor") as raised:
        client.train(context, 0)
    last = [entry for entry in raised.traceback if "orchard" in str(entry.path)][-1]
    assert str(last.statement).strip() == "values = torch.stack(losses).cpu().double()"
