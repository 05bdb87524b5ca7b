"""The contract between a method's clients, its server, and the engine that carries their messages.

            client i                                   server
   select(r) ───────── names of vectors ────────────▶
             ◀──────── the vectors it may see ───────  send(i, selected)
   train(r)   private state, local training
             ───────── upload: named vectors ────────▶  aggregate(uploads)

A method is a client and a server that share no object: only messages pass, and a message maps names to flat
vectors. A method declares the names and lengths that travel; every engine checks messages against that. What is
not in a message cannot leak: a client's private state (its directed relationships) has no field here.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from orchard.core.evaluation import Scores
from orchard.core.training import ClientContext
from orchard.method import Moment

Vectors = Mapping[str, Tensor]
"""The content of a message: flat vectors by name."""
Diagnostics = Mapping[str, float | list[float]]
"""A client's private figures by name."""


@dataclass(frozen=True)
class Download:
    """Server to client: the vectors it selected for this round."""

    round: int
    vectors: Vectors


@dataclass(frozen=True)
class ClientUpdate:
    """Client to server: its upload, what it selects for the next round, and figures for people."""

    upload: Vectors
    selected: tuple[str, ...]
    loss: float | None
    after_training: Scores | None
    after_aggregation: Scores | None
    """Of what the last round's aggregation gave, before this round's training."""
    after_finetuning: Scores | None = None


@dataclass(frozen=True)
class Failure:
    """A client's round that ended in an error; the error itself only if it was raised in this process."""

    client: str
    round: int
    reason: str
    error: Exception | None = None

    def __str__(self) -> str:
        """Name the client and the round, which people count from 1."""
        return f"{self.client}, round {self.round + 1}: {self.reason}"


def check_vectors(vectors: Vectors, declared: Mapping[str, int], sender: str) -> None:
    """Raise if a message holds anything that the method did not declare."""
    if not isinstance(vectors, Mapping):
        raise TypeError(f"{sender} must return vectors by name, e.g. {{'model': w}}, not {type(vectors).__name__}")
    for name, vector in vectors.items():
        if name not in declared:
            names = ", ".join(map(repr, declared)) or "nothing"
            raise TypeError(f"{sender} sends {name!r}, but the method's traffic() declares {names}")
        if not isinstance(vector, Tensor) or vector.shape != (declared[name],):
            got = f"shape {tuple(vector.shape)}" if isinstance(vector, Tensor) else type(vector).__name__
            raise TypeError(f"{sender} sends {name!r} with {got}; traffic() declares length {declared[name]}")


def check_selected(names: Sequence[str], declared: Mapping[str, int], sender: str) -> tuple[str, ...]:
    """Return the names that a client selects; raise if the method did not declare one."""
    if unknown := [name for name in names if name not in declared]:
        raise TypeError(f"{sender} asks for {unknown[0]!r}, which traffic() does not declare")
    return tuple(names)


class Party:
    """A client or a server: an object with a state that checkpoints save and restore.

    A party is made anew from its settings and the federation. `state_keys` names the attributes that change from
    round to round. They hold tensors, NumPy arrays, plain values, and lists, tuples, sets and dictionaries of these.
    Replace them, never modify them in place: others may hold the old value.
    """

    state_keys: tuple[str, ...] = ()

    def state(self) -> dict[str, Any]:
        """Return all that this party remembers."""
        return {name: getattr(self, name) for name in self.state_keys}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        if set(state) != set(self.state_keys):
            raise ValueError(f"{type(self).__name__} has the state {sorted(self.state_keys)}, not {sorted(state)}")
        for name, value in state.items():
            mine, theirs = _shape(getattr(self, name)), _shape(value)
            if mine and theirs and mine != theirs:
                raise ValueError(f"{type(self).__name__}: {name} has shape {mine}, not {theirs}")
        vars(self).update(state)


def _shape(value: object) -> tuple[int, ...] | None:
    """Return the shape of a tensor, or of the first of several."""
    values = value if isinstance(value, list | tuple) else [value]
    return next((tuple(item.shape) for item in values if isinstance(item, Tensor)), None)


class Client(Party, ABC):
    """The part of a method that lives with the data. `context` is what it has at hand there."""

    round_keys: tuple[str, ...] = ()
    """Attributes that every download brings anew; they are dropped at the end of the round."""

    def select(self, round: int) -> Sequence[str]:
        """Choose the vectors to download at the start of a round, by name."""
        return ()

    def receive(self, context: ClientContext, download: Download) -> None:
        """Take in the vectors of a round."""

    def finetune(self, context: ClientContext, round: int) -> Tensor | None:
        """Return a copy of what was received, tuned to the local data, if the method does that."""
        return None

    def on_evaluated(self, moment: Moment, scores: Scores) -> None:
        """Learn how well the model did that was just evaluated."""

    @abstractmethod
    def train(self, context: ClientContext, round: int) -> float:
        """Train locally; return the mean training loss."""

    @abstractmethod
    def personalised(self) -> Tensor:
        """Return the model that this client would use now; asked for after `receive` and after `train`."""

    def upload(self) -> Vectors:
        """Return what leaves the client."""
        return {}

    def diagnostics(self) -> Diagnostics:
        """Return private figures that only a simulation may look at, e.g. the directed relationships."""
        return {}


class Server(Party):
    """The part of a method that lives at the server. This one has nothing to send and keeps nothing."""

    def send(self, client: int, selected: Sequence[str]) -> Vectors:
        """Return the vectors that a client selected."""
        return {}

    def aggregate(self, uploads: Mapping[int, Vectors]) -> None:
        """Take in the uploads of a round, by client."""

    def welcome(self, newcomer: int, selected: Sequence[str], upload: Vectors | None) -> Vectors:
        """Return the vectors that a newcomer selected, after the last round of a federation that it was not in.

        `upload` is what it would upload now, None before it has trained; nothing of it is kept. A server that makes
        something of its own for every client says here what it makes for one more, and numbers it after the others.
        """
        return self.send(newcomer, selected)
