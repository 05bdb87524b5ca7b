"""What a run gave: figures by round and client, and the personalised models."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from torch import nn

from orchard.contract import Answer, Failure, Federation, Notes
from orchard.data import FederatedData
from orchard.engines.local import Model
from orchard.experiment import Experiment, Moment
from orchard.rounds import Exchange
from orchard.training import Scores

Array = NDArray[np.float64]


@dataclass
class Round:
    """One round's figures, client by client; None where a client failed or has not come to it yet."""

    round: int
    seconds: float
    loss: list[float | None]
    trained: list[Scores | None]
    exchanged: list[Scores | None]
    tuned: list[Scores | None]
    bytes_up: list[int]
    bytes_down: list[int]
    notes: dict[str, list[Any]]
    failures: dict[int, str]

    def as_json(self) -> dict[str, Any]:
        """Return the line for `metrics.jsonl`: lists by client."""
        return {
            "round": self.round,
            "seconds": round(self.seconds, 3),
            "loss": self.loss,
            "trained": _columns(self.trained),
            "exchanged": _columns(self.exchanged),
            **({"tuned": _columns(self.tuned)} if any(self.tuned) else {}),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            **self.notes,
            "failures": {str(client): reason for client, reason in self.failures.items()},
        }


@dataclass(frozen=True)
class Selected:
    """Mean client test accuracy at a round chosen by some rule."""

    round: int
    accuracy: float


@dataclass(frozen=True)
class Figures:
    """A run in a few figures: mean client test accuracy at three rounds, and each client's at the best one."""

    best: Selected
    last: Selected
    validation_selected: Selected
    clients: list[float]


@dataclass(frozen=True)
class ClientResult:
    """One client: its data, its test accuracy at the round of the BMCTA, its relationships after the last."""

    name: str
    samples: int
    classes: dict[str, int]
    accuracy: float
    self_relationship: float | None
    strongest_helper: str | None


@dataclass
class Result:
    """A run's figures, filled in as it goes on."""

    experiment: Experiment
    data: FederatedData
    federation: Federation
    initial_notes: Sequence[Notes]
    rounds: list[Round] = field(default_factory=list)
    models: Sequence[Model] = ()

    def add(self, exchange: Exchange) -> Round | None:
        """Take in an exchange; return the round that it completes.

        What a round's exchange of models gave is measured when the next exchange begins.
        """
        answers = [exchange.answers.get(i, Failure("absent")) for i in range(self.federation.clients)]
        good = [answer if isinstance(answer, Answer) else None for answer in answers]
        finished = self.rounds[-1] if self.rounds else None
        if finished:
            finished.exchanged = [a.exchanged if a else None for a in good]
            finished.tuned = [a.tuned if a else None for a in good]
        failures = {i: a.reason for i, a in enumerate(answers) if isinstance(a, Failure)}
        if finished and exchange.round == self.experiment.rounds:
            finished.failures |= failures
            finished.seconds += exchange.seconds
        if exchange.round < self.experiment.rounds:
            self.rounds.append(
                Round(
                    round=exchange.round,
                    seconds=exchange.seconds,
                    loss=[a.loss if a else None for a in good],
                    trained=[a.trained if a else None for a in good],
                    exchanged=[None for _ in good],
                    tuned=[None for _ in good],
                    bytes_up=[exchange.bytes_up.get(i, 0) for i in range(len(good))],
                    bytes_down=[exchange.bytes_down.get(i, 0) for i in range(len(good))],
                    notes=_by_name(exchange.notes),
                    failures=failures,
                )
            )
        return finished

    def moments(self) -> list[Moment]:
        """Return the moments at which clients were measured in this run."""
        return [moment for moment in get_args(Moment) if any(getattr(self.rounds[-1], moment))]

    def accuracy(
        self,
        part: Literal["validation", "test"] = "test",
        moment: Moment | None = None,
    ) -> Array:
        """Return accuracies, rounds × clients; at the method's own moment unless another is named."""
        moment = moment or self.experiment.method.moment
        return np.array(
            [
                [np.nan if scores is None else getattr(scores, part) for scores in getattr(entry, moment)]
                for entry in self.rounds
            ],
            dtype=np.float64,
        ).reshape(len(self.rounds), self.federation.clients)

    def figures(self, moment: Moment | None = None) -> Figures:
        """Return the figures at a moment; at the method's own unless another is named."""
        test, validation = self.accuracy("test", moment), self.accuracy("validation", moment)
        means = test.mean(axis=1)
        best, chosen = _best_round(test), _best_round(validation)
        return Figures(
            best=Selected(best, float(means[best])),
            last=Selected(len(means) - 1, float(means[-1])),
            validation_selected=Selected(chosen, float(means[chosen])),
            clients=test[best].tolist(),
        )

    @property
    def bmcta(self) -> float:
        """Best mean client test accuracy. It selects on test data: see `last` and `validation_selected` beside it."""
        return self.figures().best.accuracy

    @property
    def last(self) -> Selected:
        """The last round."""
        return self.figures().last

    @property
    def validation_selected(self) -> Selected:
        """The round with the best mean client validation accuracy."""
        return self.figures().validation_selected

    @property
    def relationships(self) -> Array | None:
        """Return the directed relationships before the first and after each round, (R+1) × N × N."""
        matrices = [_by_name(self.initial_notes), *(entry.notes for entry in self.rounds)]
        if not all("relationships" in notes for notes in matrices):
            return None
        return np.array([notes["relationships"] for notes in matrices], dtype=np.float64)

    @property
    def clients(self) -> list[ClientResult]:
        """Return what became of each client."""
        relationships = self.relationships
        accuracy = self.figures().clients
        counts = np.sum(list(self.data.class_counts().values()), axis=0)
        names = [client.name for client in self.data.clients]
        clients = []
        for i, name in enumerate(names):
            own = helper = None
            if relationships is not None:
                others = np.delete(relationships[-1, i], i)
                own = float(relationships[-1, i, i])
                helper = np.delete(names, i)[others.argmax()].item() if others.max(initial=0) > 0 else None
            held = {c: int(n) for c, n in zip(self.data.classes, counts[i], strict=True) if n}
            clients.append(ClientResult(name, int(counts[i].sum()), held, accuracy[i], own, helper))
        return clients

    def personalised(self, client: int) -> nn.Module:
        """Return a client's model as an ordinary module, ready to use."""
        vector, buffers = self.models[client]
        network = self.federation.network()
        network.vector.copy_(vector)
        network.load_buffers(buffers)
        return network.release()

    def who_holds_what(self) -> dict[str, Any]:
        """Return names, classes, the partition's matrix and the resulting counts."""
        matrix = self.data.matrix
        return {
            "clients": [client.name for client in self.data.clients],
            "classes": list(self.data.classes),
            "partition_matrix": None if matrix is None else matrix.tolist(),
            "counts": self.data.class_counts(),
        }

    def description(self) -> dict[str, Any]:
        """Return in a few words what was run."""
        experiment = self.experiment
        return {
            "method": experiment.method.name,
            "dataset": experiment.dataset,
            "partition": experiment.partition.name,
            "seed": experiment.seed,
        }

    def summary(self) -> dict[str, Any]:
        """Return the run in a few figures."""
        experiment, rounds = self.experiment, self.rounds
        return {
            **self.description(),
            "rounds": len(rounds),
            "seconds": round(sum(entry.seconds for entry in rounds), 3),
            "parameters": int(self.federation.initial_core(0).numel()),
            "bmcta": self.bmcta,
            "moment": experiment.method.moment,
            "figures": {moment: asdict(self.figures(moment)) for moment in self.moments()},
            "bytes_up": sum(sum(entry.bytes_up) for entry in rounds),
            "bytes_down": sum(sum(entry.bytes_down) for entry in rounds),
            "clients": [asdict(client) for client in self.clients],
        }


def _best_round(accuracy: Array) -> int:
    """Return the first round with the best mean over clients; one that lacks a client's figure is no candidate."""
    means = accuracy.mean(axis=1)
    return int(np.nanargmax(means)) if not np.isnan(means).all() else len(means) - 1


def _columns(scores: Sequence[Scores | None]) -> dict[str, list[float | None]]:
    return {part: [getattr(s, part) if s else None for s in scores] for part in ("validation", "test")}


def _by_name(notes: Sequence[Notes]) -> dict[str, list[Any]]:
    """Turn each client's notes into lists by client."""
    names: Mapping[str, None] = dict.fromkeys(name for note in notes for name in note)
    return {name: [note.get(name) for note in notes] for name in names}
