"""Methods compared from Python: the runs of a grid, and their table."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from html import escape
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np

from orchard.engines.pages import use_large_pages
from orchard.errors import UserError
from orchard.experiment import Experiment
from orchard.method import MethodSettings
from orchard.runs.comparison import Comparison, Row, cells, comparison_of, headings
from orchard.runs.grid import Contender, Grid, Measured, method_label, parse_contender, run_grid
from orchard.runs.loop import Progress, Stop
from orchard.runs.result import Result
from orchard.runs.run import Data, check_options, define, load, load_data
from orchard.runs.showing import scores_frame, table, write_page

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclass(repr=False, eq=False)
class Compared:
    """Methods side by side, with one seed or several, on the same data and batches."""

    comparison: Comparison
    measured: dict[tuple[str, int], Measured]
    """By method and seed."""

    @property
    def rows(self) -> list[Row]:
        """Each method's figures over all seeds."""
        return self.comparison.rows

    @property
    def best(self) -> Row:
        """The row of the method with the best mean."""
        return self.comparison.best()

    @property
    def methods(self) -> list[str]:
        """The methods, as they were asked for."""
        return list(dict.fromkeys(method for method, _ in self.measured))

    @property
    def seeds(self) -> list[int]:
        """The seeds."""
        return list(dict.fromkeys(seed for _, seed in self.measured))

    def result(self, method: str, seed: int | None = None) -> Result:
        """Return the run of a method with a seed, by default the first one, with its models."""
        seed = self.seeds[0] if seed is None else seed
        if (method, seed) not in self.measured:
            raise UserError(f"{method}, seed {seed}: was not compared; there are {', '.join(self.methods)}")
        return load(self.measured[method, seed].folder.path)

    def __repr__(self) -> str:
        """Return the outcome in a line."""
        scale, unit = (100, " %") if self.comparison.score.percent else (1, "")
        said = f"{self.best.label}, {self.comparison.score.title} {self.best.bmcta.text(scale)}{unit}"
        seeds = f"{len(self.seeds)} seed{'s' if len(self.seeds) > 1 else ''}"
        clients = len(self.comparison.clients)
        return f"<Compared: {len(self.methods)} methods, {seeds}, {clients} clients, best {said}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the table that `orchard compare` prints."""
        score = self.comparison.score
        rows = [[escape(cell) for cell in cells(row, score)] for row in self.rows]
        unit = " in %" if score.percent else ""
        note = f"{score.best_mean()}: the best mean over clients of test {score.title}{unit}; MB of a client in a round"
        return f"{table(headings(score), rows)}\n<p>{escape(note)}</p>"

    def to_pandas(self) -> "pd.DataFrame":
        """Return a data frame with a row for every method, seed, round and client, at the method's own moment."""
        runs = [
            ({"method": method, "seed": seed}, found.result, found.moment)
            for (method, seed), found in self.measured.items()
        ]
        return scores_frame(runs)

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """Draw each method's mean test score by round, ± a standard deviation over seeds; return matplotlib's axes."""
        from matplotlib import pyplot
        from matplotlib.ticker import MaxNLocator

        axes, score = axes or pyplot.subplots()[1], self.comparison.score
        scale = 100 if score.percent else 1
        for method in self.methods:
            curves = scale * np.array([self.measured[method, seed].curve for seed in self.seeds])
            rounds, mean = np.arange(1, curves.shape[1] + 1), curves.mean(axis=0)
            (line,) = axes.plot(rounds, mean, label=method)
            if len(curves) > 1:
                spread = curves.std(axis=0, ddof=1)
                axes.fill_between(rounds, mean - spread, mean + spread, color=line.get_color(), alpha=0.15, linewidth=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("rounds")
        axes.set_ylabel(f"mean test {score.title}{' in %' if score.percent else ''}")
        axes.legend()
        return axes

    def report(self, path: Path | str = "report.html") -> Path:
        """Write the page that `orchard report` writes of these runs; return its path."""
        results = {found.folder.path: found.result for found in self.measured.values()}
        return write_page(list(results.values()), path)


def compare(
    methods: Sequence[str | MethodSettings],
    data: Data | None = None,
    *,
    seeds: Sequence[int] = (42,),
    out: Path | str | None = None,
    experiment: Experiment | None = None,
    stop: Stop | None = None,
    **settings: Any,
) -> Compared:
    """Run methods on the same data and batches: ``compare(["separate", "graft", "apple:mu=0"], seeds=[0, 1])``.

    The other settings are those of `run`. `out` is the folder for the runs' folders: finished ones that are there are
    reused. Without it they go when the result goes.
    """
    if isinstance(methods, str) or not methods:
        raise UserError(f"methods = {methods!r}: expected a list of at least one method's name, e.g. ['graft']")
    if not seeds:
        raise UserError("seeds: names nothing")
    use_large_pages()
    base, options, data = define(experiment, data, settings)
    check_options(options)
    contenders = [_contender(method, base) for method in methods]
    held = load_data(base, data, options.data_dir)
    home = Path(mkdtemp(prefix="orchard-")) if out is None else Path(out)
    grid = Grid(base, options, list(dict.fromkeys(seeds)), home, held)
    with ExitStack() as stack:
        if out is None:
            stack.callback(rmtree, home, ignore_errors=True)
        measured = run_grid(grid, contenders, _Unwatched(), stop)
        compared = Compared(comparison_of(measured, contenders, grid.seeds), measured)
        finalize(compared, stack.pop_all().close)  # the runs' folders are there as long as the object that shows them
    return compared


def _contender(method: str | MethodSettings, base: Experiment) -> Contender:
    if isinstance(method, str):
        return parse_contender(method, base)
    return Contender(method_label(method), method)


class _Unwatched:
    """Lets each run show its own progress, where somebody looks."""

    def plan(self, runs: int, rounds: int, stage: str) -> None:
        """Do nothing."""

    def begin(self, label: str, seed: int) -> Progress | None:
        """Leave it to the run."""

    def end(self, label: str, seed: int, result: Result, reused: Path | None) -> None:
        """Do nothing."""

    def fail(self, label: str, seed: int, reason: str) -> None:
        """Do nothing: the grid raises at its end."""
