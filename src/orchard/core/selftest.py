"""A short test of a user's own network before the first round: what it may not do, and what makes results unstable.

Engines restore a model's vector and buffers, and PyTorch's generator, before every client's turn. A network that
remembers anything else, or draws elsewhere, gives results that depend on who trained before, and so on `workers`.
"""

import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from orchard.core.evaluation import outputs_of
from orchard.core.federation import Federation
from orchard.core.models import MODELS, named, seeded_layers
from orchard.core.training import gradient
from orchard.core.vector import Network
from orchard.data.clients import ClientData
from orchard.errors import ModelWarning, UserError

SAMPLES = 2
STEPS = 2
RATE = 1e-3
SAME_ELSEWHERE = 1e-3
"""What a second pass on a graphics card may differ by: some of its sums have no fixed order."""


def check_network(federation: Federation, clients: Sequence[ClientData]) -> None:
    """Raise if a user's own network changes its data or cannot be trained; warn if it does not repeat itself.

    The network is one of the test's own, so that nothing remains of it.
    """
    model = federation.experiment.model
    if model in MODELS.values() or model in MODELS:
        return
    x, y = (part[:SAMPLES] for part in max(clients, key=lambda client: len(client.train.y)).train)
    where = f"model = {named(model)!r}: "
    with _global_generators_kept():
        network = federation.network()
        start, same = network.vector.clone(), torch.equal(network.vector, federation.network().vector)
        buffers = network.buffers()
        try:
            first = _pass(network, x, y)
            network.vector.copy_(start)
            network.load_buffers(buffers)
            again = _pass(network, x, y)
        except ValueError as refusal:
            raise UserError(f"{where}{refusal}") from refusal
    if not same:
        said = "its first values differ from build to build; draw them with PyTorch alone, without a seed of your own"
        warnings.warn(f"{where}{said}; a run cannot be repeated otherwise", ModelWarning, stacklevel=2)
    elif not all(map(_equal, first, again)):
        said = (
            "does not give the same again from the same parameters and buffers: it remembers something outside of them "
            "(use register_buffer), or draws random numbers elsewhere than from PyTorch's generator"
        )
        warnings.warn(f"{where}{said}; results depend on the number of workers", ModelWarning, stacklevel=2)


def _pass(network: Network, x: Tensor, y: Tensor) -> list[Tensor]:
    """Take some steps and evaluate; return all that this gave."""
    with seeded_layers(0):
        for step in range(STEPS):
            gradient(network, x.clone(), y)
            network.check_whole()
            if step == 0 and not bool(network.gradient.any()):
                raise ValueError("no parameter has a gradient, so that nothing would be trained")
            network.vector.add_(network.gradient, alpha=-RATE)
        given = x.clone()
        outputs = outputs_of(network, network.vector, given)
        if not _equal(given, x):
            raise ValueError(Network.SPOILS)
    return [network.vector.clone(), network.gradient.clone(), outputs, *network.buffers().values()]


def _equal(a: Tensor, b: Tensor) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    margin = 0.0 if a.device.type == "cpu" else SAME_ELSEWHERE
    return a.shape == b.shape and torch.allclose(a, b, rtol=margin, atol=margin, equal_nan=True)


@contextmanager
def _global_generators_kept() -> Iterator[None]:
    """Restore Python's and NumPy's own generators, which a user's network may draw from."""
    before = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
