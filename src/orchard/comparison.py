"""Methods side by side: one table of what a grid of runs gave."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from orchard.experiment import Experiment
from orchard.grid import Contender, Measured, Watcher, run_grid
from orchard.results import Figures
from orchard.runs import Stop


@dataclass(frozen=True)
class Spread:
    """A figure over seeds; no deviation where there is one seed only."""

    mean: float
    deviation: float | None

    def __str__(self) -> str:
        """In percent."""
        spread = "" if self.deviation is None else f" ± {100 * self.deviation:.2f}"
        return f"{100 * self.mean:.2f}{spread}"

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return mean and standard deviation."""
        return cls(mean(values), stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class Row:
    """What one method gave, over all seeds; accuracies are means over clients unless said otherwise."""

    label: str
    bmcta: Spread
    last: Spread
    validation_selected: Spread
    worst_client: Spread
    worse_than_alone: float | None
    """How many clients, on average, did worse than by training alone; None where nobody trained alone."""
    bytes_up: float
    """Sent by one client in one round, on average."""
    bytes_down: float
    seconds: float
    clients: list[float]
    """Each client's test accuracy at the round of the BMCTA, mean over seeds."""


@dataclass(frozen=True)
class Comparison:
    """A row for every contender, and the clients they were compared on."""

    rows: list[Row]
    clients: list[str]
    alone: Row | None
    """The row of training alone, where somebody did."""


def compare(
    base: Experiment,
    contenders: Sequence[Contender],
    seeds: Sequence[int],
    root: Path,
    watcher: Watcher,
    stop: Stop | None = None,
) -> Comparison:
    """Run every contender with every seed, or take what is there, and sum up."""
    measured = run_grid(base, contenders, seeds, root, watcher, stop)
    runs = {contender.label: [measured[contender.label, seed] for seed in seeds] for contender in contenders}
    loner = next((contender.label for contender in contenders if contender.settings.name == "separate"), None)
    alone = [run.figures for run in runs[loner]] if loner else None
    rows = {label: _row(label, theirs, alone) for label, theirs in runs.items()}
    clients = next(iter(measured.values())).result.holdings.clients
    return Comparison(list(rows.values()), list(clients), rows[loner] if loner else None)


def _row(label: str, runs: Sequence[Measured], alone: Sequence[Figures] | None) -> Row:
    figures, results = [run.figures for run in runs], [run.result for run in runs]
    turns = [len(result.rounds) * result.federation.clients for result in results]
    worse = None
    if alone:
        worse = mean(
            sum(mine < theirs for mine, theirs in zip(f.clients, b.clients, strict=True))
            for f, b in zip(figures, alone, strict=True)
        )
    return Row(
        label=label,
        bmcta=Spread.of([f.best.accuracy for f in figures]),
        last=Spread.of([f.last.accuracy for f in figures]),
        validation_selected=Spread.of([f.validation_selected.accuracy for f in figures]),
        worst_client=Spread.of([min(f.clients) for f in figures]),
        worse_than_alone=worse,
        bytes_up=mean(result.bytes_up / n for result, n in zip(results, turns, strict=True)),
        bytes_down=mean(result.bytes_down / n for result, n in zip(results, turns, strict=True)),
        seconds=mean(result.seconds for result in results),
        clients=[mean(values) for values in zip(*(f.clients for f in figures), strict=True)],
    )
