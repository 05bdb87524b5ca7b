"""A run's result: figures by round and client, and the personalised models."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from torch import nn

from orchard.core.contract import ClientUpdate, Failure
from orchard.core.evaluation import Scores
from orchard.core.federation import Federation
from orchard.core.models import named
from orchard.core.vector import Model
from orchard.data.clients import DataDistribution
from orchard.data.tables.scaling import Moments
from orchard.errors import UserError
from orchard.experiment import Experiment
from orchard.method import Moment
from orchard.privacy.accounting import account_of
from orchard.runs.figures import Array, ClientResult, Figures, RoundFigures, best_round, clients_of, figures_of
from orchard.runs.metrics import MOMENTS, PARTS, Exchange, Round, by_name
from orchard.runs.showing import as_html, plot, to_pandas, write_page
from orchard.settings import validated
from orchard.tasks.task import Task
from orchard.text import nearest

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclass(repr=False)
class Result:
    """A run's figures, filled in round by round."""

    experiment: Experiment
    distribution: DataDistribution
    federation: Federation
    initial_diagnostics: dict[str, list[Any]]
    """The clients' private figures before the first round."""
    rounds: list[Round] = field(default_factory=list)
    models: Sequence[Model] = ()
    """Each client's model of the last round."""
    folder: Path | None = field(default=None, compare=False)
    """Where the run is kept, if it is."""

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        distribution: DataDistribution,
        initial_diagnostics: dict[str, list[Any]],
        device: str = "cpu",
    ) -> Self:
        """Return a result without rounds, for a federation with this data distribution."""
        samples, shape = tuple(distribution.samples["train"]), tuple(distribution.shape)
        moments = None if distribution.moments is None else validated(Moments, distribution.moments)
        federation = Federation(experiment, samples, shape, distribution.predicted(), device, moments)
        return cls(experiment, distribution, federation, initial_diagnostics)

    def __repr__(self) -> str:
        """Return the run in a line."""
        what = ", ".join(f"{name} {value}" for name, value in self.description().items())
        done = f"{len(self.rounds)} of {self.experiment.rounds} rounds"
        score = self.task.measures[self.task.score]
        measured = f", best {score.title} {score.text(self.bmcta, 2)}" if self.evaluated_rounds() else ""
        return f"<Result: {what}, {self.federation.clients} clients, {done}{measured}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the clients with their scores by round, and who learns from whom."""
        return as_html(self)

    def to_pandas(self) -> "pd.DataFrame":
        """Return a data frame with a row for every round, client and moment of evaluation."""
        return to_pandas(self)

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """Draw each client's test score by round, and their mean; return matplotlib's axes."""
        return plot(self, axes)

    def report(self, path: Path | str = "report.html") -> Path:
        """Write the page that `orchard report` writes; return its path."""
        return write_page([self], path)

    @property
    def task(self) -> Task:
        """What was predicted."""
        return self.federation.task

    def add(self, exchange: Exchange) -> Round | None:
        """Add an exchange; return the round that it completes, if any.

        A round's aggregation is evaluated when the next exchange begins.
        """
        absent = [Failure(name, exchange.round, "absent") for name in self.distribution.clients]
        updates = [exchange.updates.get(i, failure) for i, failure in enumerate(absent)]
        good = [update if isinstance(update, ClientUpdate) else None for update in updates]
        finished = self.rounds[-1] if self.rounds else None
        if finished:
            finished.after_aggregation = [a.after_aggregation if a else None for a in good]
            finished.after_finetuning = [a.after_finetuning if a else None for a in good]
        failures = {i: str(a) for i, a in enumerate(updates) if isinstance(a, Failure)}
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
                    after_training=[a.after_training if a else None for a in good],
                    after_aggregation=[None for _ in good],
                    after_finetuning=[None for _ in good],
                    bytes_up=[exchange.bytes_up.get(i, 0) for i in range(len(good))],
                    bytes_down=[exchange.bytes_down.get(i, 0) for i in range(len(good))],
                    diagnostics=by_name(exchange.diagnostics),
                    failures=failures,
                )
            )
        return finished

    def complete_rounds(self) -> int:
        """Return how many rounds are complete, i.e. their aggregation has been evaluated too."""
        return sum(any(entry.after_aggregation) for entry in self.rounds)

    def evaluated_rounds(self) -> int:
        """Return how many rounds have been evaluated at the method's own moment."""
        return sum(any(self.at_own_moment(r)) for r in range(len(self.rounds)))

    @property
    def figures_stay(self) -> bool:
        """Whether clients keep their figures to themselves, as sites do under privacy."""
        told = any(loss is not None for entry in self.rounds for loss in entry.loss)
        return self.experiment.privacy is not None and bool(self.rounds) and not told

    def rounds_shown(self) -> int:
        """Return how many rounds people are told are done: those that have been evaluated, if any can be."""
        return len(self.rounds) if self.figures_stay else self.evaluated_rounds()

    def rounds_to_keep(self) -> set[int]:
        """Return the rounds with the best mean test and validation score so far."""
        parts = (self.scores(part)[: self.evaluated_rounds()] for part in ("test", "validation"))
        return {best_round(scores) for scores in parts if len(scores)}

    def moments(self) -> list[Moment]:
        """Return the moments at which clients were evaluated in this run."""
        return [moment for moment in MOMENTS if any(getattr(self.rounds[-1], moment))]

    def scores(
        self,
        part: Literal["validation", "test"] = "test",
        moment: Moment | None = None,
        measure: str | None = None,
    ) -> Array:
        """Return a measure, rounds × clients, NaN if undefined.

        The default is the task's score (accuracy, AUROC, R² or Dice) at the method's own moment. Clients that never
        trained have none, even if what others made was evaluated there in the end.
        """
        moment, measure = moment or self.experiment.method.moment, measure or self.task.score
        for name, value, known in (
            ("part", part, PARTS),
            ("moment", moment, MOMENTS),
            ("measure", measure, self.task.measures),
        ):
            if value not in known:
                raise UserError(f"{name} = {value!r}: is none; {nearest(str(value), list(known))}")
        left_out = set(self.never_trained())
        rows = [
            [None if scores is None or name in left_out else getattr(scores, part)[measure] for name, scores in pairs]
            for pairs in (zip(self.distribution.clients, getattr(e, moment), strict=True) for e in self.rounds)
        ]
        return np.array(rows, dtype=np.float64).reshape(len(rows), self.federation.clients)  # None becomes NaN

    def never_trained(self) -> list[str]:
        """Return the clients that were absent, or failed, in every round; means are over the others."""
        trained = zip(self.distribution.clients, zip(*(entry.loss for entry in self.rounds), strict=True), strict=False)
        return [name for name, losses in trained if all(loss is None for loss in losses)]

    def figures(self, moment: Moment | None = None) -> Figures:
        """Return the figures at a moment, by default the method's own."""
        return figures_of(self, moment)

    @property
    def bmcta(self) -> float:
        """Best mean client test accuracy, or another task's score.

        It selects on test data: see `last` and `validation_selected` beside it.
        """
        return self.figures().best.score

    @property
    def last(self) -> RoundFigures:
        """The last round."""
        return self.figures().last

    @property
    def validation_selected(self) -> RoundFigures:
        """The round with the best mean client validation score."""
        return self.figures().validation_selected

    @property
    def seconds(self) -> float:
        """Duration of all rounds."""
        return sum(entry.seconds for entry in self.rounds)

    @property
    def bytes_up(self) -> int:
        """Bytes that all clients sent."""
        return sum(sum(entry.bytes_up) for entry in self.rounds)

    @property
    def bytes_down(self) -> int:
        """Bytes that all clients received."""
        return sum(sum(entry.bytes_down) for entry in self.rounds)

    @property
    def relationships(self) -> Array | None:
        """Directed relationships before the first and after each round, (R+1) × N × N; None if the method has none."""
        matrices = [self.initial_diagnostics, *(entry.diagnostics for entry in self.rounds)]
        if not all("relationships" in diagnostics for diagnostics in matrices):
            return None
        return np.array([diagnostics["relationships"] for diagnostics in matrices], dtype=np.float64)

    @property
    def training_loss(self) -> Array:
        """The training loss by round as in the paper: the mean over samples, each with its own client's model."""
        losses = np.array([entry.loss for entry in self.rounds], dtype=np.float64).reshape(-1, self.federation.clients)
        mean: Array = losses @ np.array(self.federation.samples) / sum(self.federation.samples)
        return mean

    @property
    def clients(self) -> list[ClientResult]:
        """Each client's data, test figures and relationships."""
        return clients_of(self)

    def at_own_moment(self, round: int) -> list[Scores | None]:
        """Return the clients' scores of a round, at the method's own moment."""
        scores: list[Scores | None] = getattr(self.rounds[round], self.experiment.method.moment)
        return scores

    def undefined_measures(self) -> dict[str, list[str]]:
        """Return the measures that are defined for some clients only, and for which not, at the best round."""
        absent = self.never_trained()
        clients = [client for client in self.clients if client.name not in absent]
        missing = {name: [c.name for c in clients if c.measures[name] is None] for name in self.task.measures}
        return {name: clients for name, clients in missing.items() if clients}

    def personalised(self, client: int | str) -> nn.Module:
        """Return the model of a client, named or numbered from 0, as an ordinary module, ready to use."""
        names = self.distribution.clients
        if client not in names and client not in range(len(names)):
            raise UserError(f"client = {client!r}: no such client; there are 0 to {len(names) - 1}: {', '.join(names)}")
        if not self.models:
            raise UserError(
                "there are no models at hand: they are when a run has finished; orchard.load(folder) reads them"
            )
        return module_of(self.federation, self.models[names.index(client) if isinstance(client, str) else client])

    def description(self) -> dict[str, Any]:
        """Return what was run: method, dataset, partition and seed."""
        experiment = self.experiment
        return {
            "method": experiment.method.name,
            "dataset": experiment.dataset,
            "partition": experiment.partition.name,
            "seed": experiment.seed,
        }

    def summary(self) -> dict[str, Any]:
        """Return the run's summary, as in `summary.json`."""
        return {
            **self.description(),
            "task": self.task.name,
            "rounds": len(self.rounds),
            "seconds": round(self.seconds, 3),
            "parameters": self.federation.parameters,
            "bmcta": self.bmcta,
            "moment": self.experiment.method.moment,
            "figures": {moment: asdict(self.figures(moment)) for moment in self.moments()},
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "clients": [asdict(client) for client in self.clients],
            "undefined_measures": self.undefined_measures(),
            "never_trained": self.never_trained(),
            **self._privacy(),
        }

    def _privacy(self) -> dict[str, Any]:
        """Return what each client has spent, if there was an account."""
        if self.experiment.privacy is None:
            return {}
        accounts = [account_of(self.experiment, n) for n in self.federation.samples]
        spent = {"epsilon": [a.epsilon for a in accounts], "noise_multiplier": [a.multiplier for a in accounts]}
        return {"privacy": {"delta": self.experiment.privacy.delta, **spent}}


def module_of(federation: Federation, model: Model) -> nn.Module:
    """Return a model as an ordinary module."""
    network, (vector, buffers) = federation.network(), model
    theirs = {name: buffer.shape for name, buffer in buffers.items()}
    if vector.shape != network.vector.shape or theirs != {name: b.shape for name, b in network.buffers().items()}:
        name = named(federation.experiment.model)
        raise UserError(f"model = {name!r}: is not the network that was trained; bring its code back as it was")
    network.vector.copy_(vector)
    network.load_buffers(buffers)
    return network.release()
