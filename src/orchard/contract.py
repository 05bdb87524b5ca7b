"""The contract between clients, server and whatever carries their messages.

            client i                                   server
   wants(r)  ───────── indices of models ───────────▶
             ◀──────── the models it may see ────────  reply(i, wants)
   train(r)   private state, one local training
             ───────── upload: one vector ───────────▶  collect(uploads)

A method is a client half and a server half that share no object. What a server half learns of a client is an
`Upload` and the indices it wants; what travels beside them, in an `Answer`, are figures for people. A client's
private state (its directed relationships) has no field here, so it cannot leak.
"""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from orchard.experiment import Experiment, Moment
from orchard.models import build
from orchard.randomness import derived_seed
from orchard.shelf import tensors_in
from orchard.training import Scores, Site
from orchard.vector import Network, empty_matrix

Notes = Mapping[str, float | list[float]]


@dataclass(frozen=True)
class Reply:
    """Server to client: the models it may see this round, by client index."""

    round: int
    models: Mapping[int, Tensor]


@dataclass(frozen=True)
class Upload:
    """Client to server: one model, and nothing else."""

    round: int
    vector: Tensor


@dataclass(frozen=True)
class Answer:
    """What one client's turn sends back: its upload, what it wants next, and figures for people."""

    upload: Upload | None
    wants: tuple[int, ...]
    loss: float | None
    trained: Scores | None
    """After this round's training."""
    exchanged: Scores | None
    """What the last round's exchange gave, before this round's training."""
    tuned: Scores | None = None
    """The same after fine-tuning, where the method does that."""


@dataclass(frozen=True)
class Failure:
    """A client's turn that ended in an error; the error itself only where it was in this process."""

    reason: str
    error: Exception | None = None


@dataclass(frozen=True)
class Enrolment:
    """What a client says of itself before the first round."""

    samples: int
    shape: tuple[int, ...]
    classes: int


@dataclass(frozen=True)
class Federation:
    """What every party knows before the first round."""

    experiment: Experiment
    samples: tuple[int, ...]
    """n_j, the training samples of each client."""
    shape: tuple[int, ...]
    classes: int
    # Shared by all who hold one, and gone when nobody does.
    _initial_models: weakref.WeakValueDictionary[tuple[str, *tuple[int, ...]], Tensor] = field(
        default_factory=weakref.WeakValueDictionary, init=False, repr=False, compare=False
    )

    @property
    def clients(self) -> int:
        """N."""
        return len(self.samples)

    @property
    def shares(self) -> list[float]:
        """n_j / n: each client's share of all training samples."""
        return [n / sum(self.samples) for n in self.samples]

    def network(self) -> Network:
        """Build a network to run models through; whatever is not in the vector is equal at all clients."""
        experiment = self.experiment
        seed = derived_seed(experiment.seed, "network")
        return Network(build(experiment.model, self.shape, self.classes, seed), experiment.device)

    def initial_core(self, client: int) -> Tensor:
        """Return the first core model of a client, a function of (seed, client): anyone can rebuild it."""
        return self._initial("core", client)

    def initial_cores(self) -> list[Tensor]:
        """Return the first core models of all as the rows of one matrix, which clients in this process share."""
        rows = list(empty_matrix(self.clients, like=self.initial_core(0)))
        for j, row in enumerate(rows):
            self._initial_models["core", j] = row.copy_(self.initial_core(j))
        return rows

    def initial_model(self) -> Tensor:
        """Return the first model of methods in which all clients start from the same one."""
        return self._initial("model")

    def _initial(self, purpose: str, *numbers: int) -> Tensor:
        vector = self._initial_models.get((purpose, *numbers))
        if vector is None:
            experiment = self.experiment
            seed = derived_seed(experiment.seed, purpose, *numbers)
            module = build(experiment.model, self.shape, self.classes, seed)
            vector = self._initial_models[purpose, *numbers] = Network(module, experiment.device).vector
        return vector


class Half:
    """What both halves of a method have: a memory that a checkpoint holds and brings back.

    A half is made anew from its settings and the federation; `keeps` names the attributes that change from round to
    round. They hold tensors, NumPy arrays, plain values, and lists, tuples, sets and dictionaries of these, and are
    replaced, never changed in place: whoever holds the old value keeps it.
    """

    keeps: ClassVar[tuple[str, ...]] = ()

    def state(self) -> dict[str, Any]:
        """Return all that this half remembers."""
        return {name: getattr(self, name) for name in self.keeps}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what a half of the same kind remembered."""
        if set(state) != set(self.keeps):
            raise ValueError(f"{type(self).__name__} keeps {sorted(self.keeps)}, not {sorted(state)}")
        for name, value in state.items():
            mine, theirs = _shape(getattr(self, name)), _shape(value)
            if mine and theirs and mine != theirs:
                raise ValueError(f"{type(self).__name__}: {name} has shape {mine}, not {theirs}")
        vars(self).update(state)

    def check_kept(self, before: Mapping[str, Any]) -> None:
        """Refuse a change since `before` that a checkpoint would miss."""
        forgotten = [name for name, value in vars(self).items() if value is not before.get(name, self)]
        forgotten = sorted(set(forgotten) - set(self.keeps))
        if forgotten:
            kind = type(self).__name__
            raise TypeError(f"{kind} changes {', '.join(forgotten)}: name it in {kind}.keeps, so that a run can resume")


def kept_by(half: Half) -> dict[str, Any]:
    """Return the attributes of a half that change from round to round, as they are, if they are there yet."""
    return {name: getattr(half, name) for name in half.keeps if hasattr(half, name)}


Versions = list[tuple[str, "weakref.ref[Tensor]", int]]
"""Tensors with the attribute that holds them, and how often each has been changed in place, as PyTorch counts it."""


def versions_kept_by(half: Half) -> Versions:
    """Return the tensors that a half keeps, without keeping them alive, to see later whether they were changed."""
    tensors = [(name, tensor) for name, value in kept_by(half).items() for tensor in tensors_in(value)]
    return [(name, weakref.ref(tensor), tensor._version) for name, tensor in tensors if not tensor.is_inference()]


def refuse_changes_in_place(half: Half, before: Versions) -> None:
    """Refuse what could not be taken back, and what others who hold the same tensor would see."""
    for name, reference, version in before:
        tensor = reference()
        if tensor is not None and tensor._version != version:
            what = f"{type(half).__name__} changes {name} in place"
            raise TypeError(f"{what}: replace it, e.g. self.x = self.x + y instead of self.x += y")


def _shape(value: object) -> tuple[int, ...] | None:
    """Return the shape of a tensor, or of the first of several."""
    values = value if isinstance(value, list | tuple) else [value]
    return next((tuple(item.shape) for item in values if isinstance(item, Tensor)), None)


class Client(Half, ABC):
    """The half of a method that lives with the data. `site` is what it has at hand there."""

    def wants(self, round: int) -> tuple[int, ...]:
        """Choose whose models to download at the start of a round."""
        return ()

    def receive(self, site: Site, reply: Reply) -> None:
        """Take in the models of a round."""

    def fine_tuned(self, site: Site, round: int) -> Tensor | None:
        """Return a copy of what was received, tuned to the local data, where the method does such a thing."""
        return None

    def measured(self, moment: Moment, scores: Scores) -> None:
        """Learn how well the model did that it has just exchanged, tuned or trained."""

    @abstractmethod
    def train(self, site: Site, round: int) -> float:
        """Train locally; return the mean training loss. On an error the state must be as before."""

    @abstractmethod
    def personalised(self) -> Tensor:
        """Return the model that this client would use now."""

    def upload(self) -> Tensor | None:
        """Return what leaves the client, if anything does."""
        return None

    def notes(self) -> Notes:
        """Return private figures that only a simulation may look at, e.g. the directed relationships."""
        return {}


class Server(Half):
    """The half of a method that lives at the server. As it stands it has nothing to give and keeps nothing."""

    def reply(self, client: int, wants: tuple[int, ...]) -> Mapping[int, Tensor]:
        """Return the models a client asked for."""
        return {}

    def collect(self, uploads: Mapping[int, Upload]) -> None:
        """Take in the uploads of a round, all of them together."""
