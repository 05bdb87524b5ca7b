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

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakValueDictionary

from torch import Tensor

from orchard.experiment import Experiment
from orchard.models import build
from orchard.randomness import derived_seed
from orchard.training import Scores, Site
from orchard.vector import Network

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
    exchanged: Scores | None


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
    _initial_cores: WeakValueDictionary[int, Tensor] = field(
        default_factory=WeakValueDictionary, init=False, repr=False, compare=False
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
        core = self._initial_cores.get(client)
        if core is None:
            experiment = self.experiment
            seed = derived_seed(experiment.seed, "core", client)
            module = build(experiment.model, self.shape, self.classes, seed)
            core = self._initial_cores[client] = Network(module, experiment.device).vector
        return core


class Client(Protocol):
    """The half of a method that lives with the data. `site` is what it has at hand there."""

    def wants(self, round: int) -> tuple[int, ...]:
        """Choose whose models to download at the start of a round."""

    def receive(self, site: Site, reply: Reply) -> None:
        """Take in the models of a round."""

    def train(self, site: Site, round: int) -> float:
        """Train locally; return the mean training loss. On an error the state must be as before."""

    def personalised(self) -> Tensor:
        """Return the model that this client would use now."""

    def upload(self) -> Tensor | None:
        """Return what leaves the client, if anything does."""

    def notes(self) -> Notes:
        """Return private figures that only a simulation may look at, e.g. the directed relationships."""


class Server(Protocol):
    """The half of a method that lives at the server."""

    def reply(self, client: int, wants: tuple[int, ...]) -> Mapping[int, Tensor]:
        """Return the models a client asked for."""

    def collect(self, uploads: Mapping[int, Upload]) -> None:
        """Take in the uploads of a round, all of them together."""
