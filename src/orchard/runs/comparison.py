"""Methods side by side: one table of the results of a grid."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan, nan
from statistics import mean, stdev

import numpy as np

from orchard.runs.figures import Figures
from orchard.runs.grid import Contender, Grid, Measured, Watcher, run_grid
from orchard.runs.loop import Stop
from orchard.tasks.task import Measure


@dataclass(frozen=True)
class Spread:
    """A figure's mean and standard deviation over seeds; one seed has no deviation."""

    mean: float
    deviation: float | None

    def text(self, scale: float = 100) -> str:
        """Return mean and deviation, by default in percent."""
        if isnan(self.mean):
            return "–"
        digits = 2 if scale == 100 else 3
        spread = "" if self.deviation is None else f" ± {scale * self.deviation:.{digits}f}"
        return f"{scale * self.mean:.{digits}f}{spread}"

    def __str__(self) -> str:
        """Return mean and deviation in percent."""
        return self.text()

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return mean and standard deviation."""
        return cls(mean(values), stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class Row:
    """One method's figures over all seeds; scores are means over clients unless noted otherwise."""

    label: str
    bmcta: Spread
    last: Spread
    validation_selected: Spread
    worst_client: Spread
    worse_than_alone: float | None
    """How many clients, on average, did worse than by training alone; None if that was not compared."""
    bytes_up: float
    """Sent per client and round, on average."""
    bytes_down: float
    seconds: float
    clients: list[float]
    """Each client's test score at the round of the BMCTA, mean over seeds."""
    relationships: list[list[float]] | None = None
    """How much each client (row) takes from each (column) after the last round, mean over seeds, if it is known."""


@dataclass(frozen=True)
class Comparison:
    """A row for every contender, and the clients they were compared on."""

    rows: list[Row]
    clients: list[str]
    alone: Row | None
    """The row of training alone (`separate`), if it was compared."""
    score: Measure
    """What the scores are."""
    groups: list[int] | None = None
    """The group of each client, if they were dealt into groups that differ."""

    def best(self) -> Row:
        """Return the row with the best mean."""
        return max(self.rows, key=lambda row: -inf if isnan(row.bmcta.mean) else row.bmcta.mean)


def compare(grid: Grid, contenders: Sequence[Contender], watcher: Watcher, stop: Stop | None = None) -> Comparison:
    """Run every contender with every seed, or reuse finished runs; return the table."""
    return comparison_of(run_grid(grid, contenders, watcher, stop), contenders, grid.seeds)


def comparison_of(
    measured: Mapping[tuple[str, int], Measured], contenders: Sequence[Contender], seeds: Sequence[int]
) -> Comparison:
    """Return the table of what was measured."""
    runs = {contender.label: [measured[contender.label, seed] for seed in seeds] for contender in contenders}
    separate_label = next((contender.label for contender in contenders if contender.settings.name == "separate"), None)
    alone = [run.figures for run in runs[separate_label]] if separate_label else None
    rows = {label: _row(label, theirs, alone) for label, theirs in runs.items()}
    result = next(iter(measured.values())).result
    held, score = result.distribution, result.task.measures[result.task.score]
    groups = None if held.groups is None else list(held.groups)
    alone_row = rows[separate_label] if separate_label else None
    return Comparison(list(rows.values()), list(held.clients), alone_row, score, groups)


def _row(label: str, runs: Sequence[Measured], alone: Sequence[Figures] | None) -> Row:
    figures, results = [run.figures for run in runs], [run.result for run in runs]
    turns = [len(result.rounds) * result.federation.clients for result in results]
    worse = None
    if alone:
        worse = mean(
            sum(mine < theirs for mine, theirs in zip(f.clients, b.clients, strict=True))
            for f, b in zip(figures, alone, strict=True)
        )
    known = [matrices for result in results if (matrices := result.relationships) is not None]
    return Row(
        label=label,
        bmcta=Spread.of([f.best.score for f in figures]),
        last=Spread.of([f.last.score for f in figures]),
        validation_selected=Spread.of([f.validation_selected.score for f in figures]),
        worst_client=Spread.of([_lowest(f.clients) for f in figures]),
        worse_than_alone=worse,
        bytes_up=mean(result.bytes_up / n for result, n in zip(results, turns, strict=True)),
        bytes_down=mean(result.bytes_down / n for result, n in zip(results, turns, strict=True)),
        seconds=mean(result.seconds for result in results),
        clients=[mean(values) for values in zip(*(f.clients for f in figures), strict=True)],
        relationships=np.mean([matrices[-1] for matrices in known], axis=0).tolist() if known else None,
    )


def _lowest(scores: Sequence[float]) -> float:
    """Return the lowest of the scores that are defined."""
    return min((score for score in scores if not isnan(score)), default=nan)


def headings(score: Measure) -> list[str]:
    """Return the headings of a comparison's table."""
    scores = [score.best_mean(), "last round", "by validation", "worst client"]
    return ["method", *scores, "worse than alone", "MB up", "MB down", "seconds"]


def cells(row: Row, score: Measure) -> list[str]:
    """Return a row as text: shares like accuracy in percent, traffic in megabytes per client and round."""
    spreads = (row.bmcta, row.last, row.validation_selected, row.worst_client)
    return [
        row.label,
        *(spread.text(100 if score.percent else 1) for spread in spreads),
        "–" if row.worse_than_alone is None else f"{round(row.worse_than_alone, 1):g} of {len(row.clients)}",
        f"{row.bytes_up / 1e6:.2f}",
        f"{row.bytes_down / 1e6:.2f}",
        f"{row.seconds:.0f}",
    ]
