"""What a report shows, as plain values; a method's runs with several seeds as one view, their mean."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import mean
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from orchard.data.clients import DataDistribution
from orchard.runs.by_class import Rows
from orchard.runs.comparison import Spread
from orchard.runs.figures import mean_over_clients, strongest_helpers
from orchard.runs.folder import State
from orchard.tasks.task import Measure

Values = list[float | None]
"""None where there is no figure (yet)."""
SELECTED = ("best", "last", "validation", "worst", "balanced")
"""A view's figures over clients."""


@dataclass(frozen=True)
class Relationships:
    """The directed relationships after some of the rounds; round 0 is before the first."""

    rounds: list[int]
    matrices: list[list[list[float]]]
    """Rounds × clients that are helped × clients that help."""

    @classmethod
    def thinned(cls, matrices: NDArray[np.float64] | None, cells: int) -> Self | None:
        """Return the matrices of as many rounds as fit into so many cells, with the first and the last."""
        if matrices is None or np.isnan(matrices).any():
            return None
        fitting = max(2, cells // matrices[0].size)
        rounds = np.unique(np.linspace(0, len(matrices) - 1, min(len(matrices), fitting)).round().astype(int))
        return cls(rounds.tolist(), np.round(matrices[rounds], 4).tolist())


@dataclass(frozen=True)
class MethodView:
    """What is shown of one method: of one run, or the mean over runs that differ in the seed alone."""

    label: str
    method: str
    seeds: list[int]
    folders: list[str]
    state: State
    planned: int
    loss: Values
    """By round, the mean over all training samples of all clients."""
    scores: list[Values]
    """On the test parts: rounds × clients."""
    best: Spread | None
    """The mean over clients at the round where it is highest; deviations are over seeds."""
    last: Spread | None
    validation: Spread | None
    worst: Spread | None
    """The lowest client's score at the best round."""
    balanced: Spread | None
    """Balanced accuracy at the best round; None in other tasks."""
    clients: Values
    """Each client's score in the round with the best mean."""
    balanced_clients: Values | None
    by_class: list[Rows | None] | None
    """What each client's model does by class at the best round, as in `by_class.json`; None if it was not kept."""
    relationships: Relationships | None
    helpers: list[list[str]]
    """Who helps each client most after the last round."""
    traffic: list[float]
    """Bytes that a client has sent and received by the end of each round, on average."""
    bytes_up: float
    """Bytes that a client sends in one round, on average."""
    bytes_down: float
    seconds: float
    """Of one run."""
    commands: list[str]
    """What repeats the runs; empty if nothing on the command line does."""
    settings: str
    deployed: bool
    """Whether the clients were on separate machines."""
    privacy: str = ""
    """What was promised for each record; empty without differential privacy."""
    gains: Values | None = None
    """Each client's gain over training alone; None if no run trained alone."""
    alone: float | None = None
    """The best mean score of training alone."""
    loss_deviations: Values | None = None
    """By round, over seeds; None for one run."""
    score_deviations: Values | None = None
    """By round, over seeds, of the mean over clients; None for one run."""
    runs: "list[MethodView]" = field(default_factory=list)
    """The runs whose mean this is; empty for one run."""


@dataclass(frozen=True)
class Leaks:
    """What audits found: a table with a column for each run, and what was recovered of samples, as pictures."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    pictures: Sequence[tuple[str, str]]
    """Each with the label of its run; the picture as a `data:` address."""


@dataclass(frozen=True)
class Content:
    """Some methods on the same data."""

    title: str
    distribution: DataDistribution
    methods: list[MethodView]
    left_out: list[str]
    """Which runs are not shown, and why."""
    leaks: "Leaks | None" = None
    """What audits of these runs found; None if there was none."""

    @property
    def score(self) -> Measure:
        """Return the task's score."""
        task = self.distribution.predicted()
        return task.measures[task.score]


def mean_view(label: str, runs: Sequence[MethodView], clients: Sequence[str], *, summed: bool) -> MethodView:
    """Return the mean over seeds; a single run stays as it is. Counts by class are summed, other figures are not."""
    first = runs[0]
    if len(runs) == 1:
        return replace(first, label=label)
    related = [run.relationships for run in runs if run.relationships]
    matrices = None
    if len(related) == len(runs):
        matrices = np.mean(np.array([one.matrices for one in related]), axis=0)
    over_clients = [plain(mean_over_clients(np.array(run.scores, dtype=np.float64)), 5) for run in runs]
    selected: dict[str, Any] = {name: _spread([getattr(run, name) for run in runs]) for name in SELECTED}
    return replace(
        first,
        label=label,
        seeds=[seed for run in runs for seed in run.seeds],
        folders=[folder for run in runs for folder in run.folders],
        commands=[command for run in runs for command in run.commands],
        loss=_means([run.loss for run in runs], 6),
        scores=_means([run.scores for run in runs], 5),
        **selected,
        clients=_means([run.clients for run in runs], 5),
        balanced_clients=_means([run.balanced_clients for run in runs], 5) if first.balanced_clients else None,
        gains=_means([run.gains for run in runs], 5) if first.gains else None,
        alone=mean(run.alone for run in runs if run.alone is not None) if first.gains else None,
        by_class=together([run.by_class for run in runs], summed=summed),
        relationships=None if matrices is None else Relationships(related[0].rounds, plain(matrices, 4)),
        helpers=first.helpers if matrices is None else strongest_helpers(matrices[-1], clients),
        traffic=_means([run.traffic for run in runs], 0),
        bytes_up=mean(run.bytes_up for run in runs),
        bytes_down=mean(run.bytes_down for run in runs),
        seconds=mean(run.seconds for run in runs),
        loss_deviations=_deviations([run.loss for run in runs], 6),
        score_deviations=_deviations(over_clients, 5),
        runs=[replace(run, label=label) for run in runs],
    )


def together(runs: Sequence[list[Rows | None] | None], *, summed: bool) -> list[Rows | None] | None:
    """Return the figures by class of several seeds: counts (true, predicted, samples) summed, others as their mean."""
    known = [run for run in runs if run is not None]
    if len(known) < len(runs):
        return None
    clients: list[Rows | None] = []
    for rows in zip(*known, strict=True):
        whole = [one for one in rows if one is not None]
        if len(whole) < len(rows):
            clients.append(None)
        elif summed:
            counts = Counter[tuple[float | None, float | None]]()
            for true, given, samples in chain(*whole):
                counts[true, given] += int(samples or 0)
            clients.append([[*pair, n] for pair, n in counts.items()])
        else:
            clients.append(_means(whole, 4))
    return clients


def plain(array: NDArray[np.float64], digits: int) -> Any:
    """Return an array as lists, with None for NaN."""
    values = np.round(array, digits).astype(object)
    values[np.isnan(array)] = None
    return values.tolist()


def _means(values: Sequence[Any], digits: int) -> Any:
    """Return the means over seeds, None where one seed has no figure."""
    return plain(np.mean(np.array(values, dtype=np.float64), axis=0), digits)


def _deviations(values: Sequence[Any], digits: int) -> Any:
    return plain(np.std(np.array(values, dtype=np.float64), axis=0, ddof=1), digits)


def _spread(values: Sequence[Spread | None]) -> Spread | None:
    known = [value.mean for value in values if value]
    return Spread.of(known) if len(known) == len(values) else None
