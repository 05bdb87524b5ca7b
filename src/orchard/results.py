"""What a run gave: figures by round and client, and the personalised models."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from orchard.contract import Answer, Failure, Federation
from orchard.data import Holdings
from orchard.engines.local import Model
from orchard.experiment import Experiment, Moment
from orchard.measures import Measures
from orchard.record import MOMENTS, Round, by_name
from orchard.rounds import Exchange
from orchard.training import Scores

Array = NDArray[np.float64]
Measure = Literal["accuracy", "balanced_accuracy", "auroc"]


@dataclass(frozen=True)
class Selected:
    """Mean client test figures at a round chosen by some rule; None where no client's is defined."""

    round: int
    accuracy: float
    balanced_accuracy: float | None
    auroc: float | None


@dataclass(frozen=True)
class Figures:
    """A run in a few figures: mean client test accuracy at three rounds, and each client's at the best one."""

    best: Selected
    last: Selected
    validation_selected: Selected
    clients: list[float]
    validation: float
    """The best mean client validation accuracy, by which parameters may be chosen."""


@dataclass(frozen=True)
class ClientResult:
    """One client: its data, its test figures at the round of the BMCTA, its relationships after the last."""

    name: str
    samples: int
    classes: dict[str, int]
    accuracy: float
    balanced_accuracy: float | None
    auroc: float | None
    self_relationship: float | None
    strongest_helper: str | None


@dataclass
class Result:
    """A run's figures, filled in as it goes on."""

    experiment: Experiment
    holdings: Holdings
    federation: Federation
    initial_notes: dict[str, list[Any]]
    """The clients' private figures before the first round."""
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
            finished.seconds = round(finished.seconds + exchange.seconds, 3)
        if exchange.round < self.experiment.rounds:
            self.rounds.append(
                Round(
                    round=exchange.round,
                    time=datetime.now(UTC).isoformat(timespec="milliseconds"),
                    seconds=round(exchange.seconds, 3),
                    loss=[a.loss if a else None for a in good],
                    trained=[a.trained if a else None for a in good],
                    exchanged=[None for _ in good],
                    tuned=[None for _ in good],
                    bytes_up=[exchange.bytes_up.get(i, 0) for i in range(len(good))],
                    bytes_down=[exchange.bytes_down.get(i, 0) for i in range(len(good))],
                    notes=by_name(exchange.notes),
                    failures=failures,
                )
            )
        return finished

    def measured_rounds(self) -> int:
        """Return how many rounds have been measured at the method's own moment."""
        return sum(any(self._at_own_moment(r)) for r in range(len(self.rounds)))

    def rounds_worth_keeping(self) -> set[int]:
        """Return the best round so far and the one that validation chooses."""
        parts = (self.accuracy(part)[: self.measured_rounds()] for part in ("test", "validation"))
        return {_best_round(accuracy) for accuracy in parts if len(accuracy)}

    def moments(self) -> list[Moment]:
        """Return the moments at which clients were measured in this run."""
        return [moment for moment in MOMENTS if any(getattr(self.rounds[-1], moment))]

    def accuracy(
        self,
        part: Literal["validation", "test"] = "test",
        moment: Moment | None = None,
        measure: Measure = "accuracy",
    ) -> Array:
        """Return accuracies or another measure, rounds × clients, NaN where there is none.

        At the method's own moment unless another is named.
        """
        moment = moment or self.experiment.method.moment
        rows = [
            [None if scores is None else getattr(getattr(scores, part), measure) for scores in getattr(entry, moment)]
            for entry in self.rounds
        ]
        return np.array(rows, dtype=np.float64).reshape(len(rows), self.federation.clients)  # None becomes NaN

    def figures(self, moment: Moment | None = None) -> Figures:
        """Return the figures at a moment; at the method's own unless another is named."""
        test, validation = self.accuracy("test", moment), self.accuracy("validation", moment)
        balanced, auroc = (self.accuracy("test", moment, measure) for measure in ("balanced_accuracy", "auroc"))

        def at(r: int) -> Selected:
            return Selected(r, float(test[r].mean()), _mean_of_defined(balanced[r]), _mean_of_defined(auroc[r]))

        best = _best_round(test)
        chosen = _best_round(validation)
        return Figures(at(best), at(len(test) - 1), at(chosen), test[best].tolist(), float(validation[chosen].mean()))

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
    def seconds(self) -> float:
        """How long the rounds took."""
        return sum(entry.seconds for entry in self.rounds)

    @property
    def bytes_up(self) -> int:
        """What all clients sent."""
        return sum(sum(entry.bytes_up) for entry in self.rounds)

    @property
    def bytes_down(self) -> int:
        """What all clients were sent."""
        return sum(sum(entry.bytes_down) for entry in self.rounds)

    @property
    def relationships(self) -> Array | None:
        """Return the directed relationships before the first and after each round, (R+1) × N × N."""
        matrices = [self.initial_notes, *(entry.notes for entry in self.rounds)]
        if not all("relationships" in notes for notes in matrices):
            return None
        return np.array([notes["relationships"] for notes in matrices], dtype=np.float64)

    @property
    def clients(self) -> list[ClientResult]:
        """Return what became of each client."""
        relationships, best = self.relationships, self.figures().best.round
        measured = [scores.test if scores else Measures(np.nan) for scores in self._at_own_moment(best)]
        counts, names = self.holdings.totals(), self.holdings.clients
        clients = []
        for i, name in enumerate(names):
            own = helper = None
            if relationships is not None:
                others = np.delete(relationships[-1, i], i)
                own = float(relationships[-1, i, i])
                helper = np.delete(names, i)[others.argmax()].item() if others.max(initial=0) > 0 else None
            held = {c: int(n) for c, n in zip(self.holdings.classes, counts[i], strict=True) if n}
            clients.append(ClientResult(name, int(counts[i].sum()), held, *measured[i], own, helper))
        return clients

    def _at_own_moment(self, round: int) -> list[Scores | None]:
        scores: list[Scores | None] = getattr(self.rounds[round], self.experiment.method.moment)
        return scores

    def single_class_clients(self) -> list[str]:
        """Return the clients whose test data are of one class: their balanced accuracy and AUROC are not defined."""
        counts = zip(self.holdings.clients, self.holdings.counts["test"], strict=True)
        return [name for name, row in counts if np.count_nonzero(row) < 2]

    def personalised(self, client: int) -> nn.Module:
        """Return a client's model as an ordinary module, ready to use."""
        return self.module(*self.models[client])

    def module(self, vector: Tensor, buffers: dict[str, Tensor]) -> nn.Module:
        """Make an ordinary module of a model."""
        network = self.federation.network()
        network.vector.copy_(vector)
        network.load_buffers(buffers)
        return network.release()

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
        return {
            **self.description(),
            "rounds": len(self.rounds),
            "seconds": round(self.seconds, 3),
            "parameters": int(self.federation.initial_core(0).numel()),
            "bmcta": self.bmcta,
            "moment": self.experiment.method.moment,
            "figures": {moment: asdict(self.figures(moment)) for moment in self.moments()},
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "clients": [asdict(client) for client in self.clients],
            "single_class_clients": self.single_class_clients(),
        }


def _best_round(accuracy: Array) -> int:
    """Return the first round with the best mean over clients; one that lacks a client's figure is no candidate."""
    means = accuracy.mean(axis=1)
    return int(np.nanargmax(means)) if not np.isnan(means).all() else len(means) - 1


def _mean_of_defined(values: Array) -> float | None:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else None
