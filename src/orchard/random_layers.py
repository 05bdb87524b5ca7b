"""Random numbers that layers draw: initial values, dropout.

PyTorch's layers know only the generators of the whole process, which all clients share. So that a client's draws depend
on nothing but its seed, the generators are lent: to whoever builds a model, and while clients train to one forward pass
at a time. The backward pass, two thirds of a step, draws nothing, so clients with dropout train side by side. Where it
does run layers once more, as with `torch.utils.checkpoint`, the generators are lent for a whole training.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from orchard.vector import Network

_generators = threading.RLock()


@contextmanager
def seeded_layers(seed: int) -> Iterator[None]:
    """Let layers draw from a seed, leaving the generators as they were; no two threads are in here at once."""
    with _generators, torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def generator_states(device: torch.device) -> list[Tensor]:
    """Return where the generators stand that layers on a device draw from."""
    states = [torch.default_generator.get_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    elif device.type == "mps":
        states.append(torch.mps.get_rng_state())
    return states


def _set_generators(device: torch.device, states: list[Tensor]) -> None:
    torch.default_generator.set_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
    elif device.type == "mps":
        torch.mps.set_rng_state(states[1])


class RandomLayers:
    """The draws of a network's layers while it trains, whichever of its modules is called."""

    def __init__(self, network: Network, draws_in_backward: bool) -> None:
        self._device = network.vector.device
        self._draws_in_backward = draws_in_backward
        self._states: list[Tensor] | None = None
        self._lent = False
        for module in network.module.modules():
            module.forward = self._lending(module.forward)

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Let the layers draw from a seed inside."""
        with seeded_layers(seed):
            self._states = generator_states(self._device)
        try:
            with self._borrowed(self._states) if self._draws_in_backward else nullcontext():
                yield
        finally:
            self._states = None

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Let the layers draw inside, and then draw the same again."""
        before = generator_states(self._device) if self._lent else self._states
        yield
        if self._lent and before:
            _set_generators(self._device, before)
        self._states = before

    @contextmanager
    def _borrowed(self, states: list[Tensor]) -> Iterator[None]:
        with _generators:
            before = generator_states(self._device)
            _set_generators(self._device, states)
            self._lent = True
            try:
                yield
            finally:
                self._lent = False
                self._states = generator_states(self._device)
                _set_generators(self._device, before)

    def _lending(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def lent(*args: Any, **kwargs: Any) -> Any:
            if self._states is None or self._lent:  # in no training; or in one of the modules around this one
                return forward(*args, **kwargs)
            with self._borrowed(self._states):
                return forward(*args, **kwargs)

        return lent
