"""The progress of a run or a grid on standard error: a live bar on a terminal, else plain lines."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import Progress

from orchard.data.clients import FederatedData
from orchard.experiment import Experiment, RunOptions
from orchard.runs.checks import FIRST_ROUNDS, findings, unmoved_loss
from orchard.runs.loop import Progress as OnProgress
from orchard.runs.progress import bar_on, newest_figures
from orchard.runs.result import Result
from orchard.runs.run import check_options, load_data


@contextmanager
def rounds_shown(what: str, rounds: int, *, quiet: bool) -> Iterator[Callable[[], None]]:
    """Show on a terminal how many rounds are done, without figures."""
    console = Console(stderr=True, highlight=False, quiet=quiet)
    if not console.is_terminal:
        yield lambda: None
        return
    with bar_on(console) as bar:
        task = bar.add_task(what, total=rounds, figures="")
        yield lambda: bar.advance(task)


def say_if_loss_stays() -> OnProgress:
    """Return a follower of a run that says once if the training loss does not move in the first rounds."""
    said = False

    def follow(result: Result) -> None:
        nonlocal said
        if not said and len(result.rounds) == FIRST_ROUNDS and (text := unmoved_loss(result)):
            say(text)
            said = True

    return follow


def say(text: str) -> None:
    """Print advice on standard error."""
    typer.secho(f"orchard: {text}", fg="yellow", err=True)


def checked_data(experiment: Experiment, options: RunOptions, *, quiet: bool) -> FederatedData:
    """Load an experiment's data, and say what is likely to go wrong with them."""
    check_options(options)
    data = load_data(experiment, data_dir=options.data_dir)
    for finding in [] if quiet else findings(experiment, data):
        say(finding)
    return data


class GridWatcher:
    """Shows the progress of a grid: one bar on a terminal, else a line per run."""

    advises = False
    """Whether to say of each contender, once, that its training loss does not move."""

    def __init__(self, console: Console, bar: Progress | None) -> None:
        self.console, self.bar = console, bar
        self.advised = set[str]()

    def plan(self, runs: int, rounds: int, stage: str) -> None:
        """Open a bar over all rounds of all runs; it replaces that of an earlier grid. Name a stage."""
        self.done, self.runs, self.rounds = 0, runs, rounds
        self.running = dict[tuple[str, int], int]()
        if stage:
            each = f"{rounds} round{'s' if rounds > 1 else ''}"
            self.console.print(f"{stage}: {runs} run{'s' if runs > 1 else ''} of {each}", soft_wrap=True)
        if self.bar:
            for task in self.bar.task_ids:
                self.bar.remove_task(task)
            self.task = self.bar.add_task(stage or "comparing", total=runs * rounds, figures="starting")

    def begin(self, label: str, seed: int) -> OnProgress:
        """Return a callback that shows a run's rounds on the bar, if there is one."""

        def advance(result: Result) -> None:
            self._advise(label, result)
            if self.bar:
                figures = f"{label}, seed {seed}: {newest_figures(result)}"
                self.running[label, seed] = result.evaluated_rounds()
                self.bar.update(self.task, completed=self._rounds_done(), figures=figures)

        return advance

    def end(self, label: str, seed: int, result: Result, kept: Path | None) -> None:
        """Report that a run finished or was reused."""
        how = f"kept in {kept}" if kept else f"{result.seconds:.0f} s"
        score = result.task.measures[result.task.score]
        self._advise(label, result)  # a reused run has no other callback
        self.running.pop((label, seed), None)
        self._count(f"{label}, seed {seed}: {score.best_mean()} {score.text(result.bmcta, 2)}  ({how})")

    def fail(self, label: str, seed: int, reason: str) -> None:
        """Report why a run failed."""
        self.running.pop((label, seed), None)
        self._count(f"{label}, seed {seed}: failed: {reason}")

    def _advise(self, label: str, result: Result) -> None:
        if self.advises and label not in self.advised and (text := unmoved_loss(result)):
            self.advised.add(label)
            self.console.print(f"orchard: {label}: {text}", style="yellow", soft_wrap=True)

    def _rounds_done(self) -> int:
        return self.done * self.rounds + sum(self.running.values())

    def _count(self, outcome: str) -> None:
        self.done += 1
        if self.bar:
            self.bar.update(self.task, completed=self._rounds_done())
        self.console.print(f"{self.done}/{self.runs}  {outcome}", soft_wrap=True)


@contextmanager
def watched_grid(*, quiet: bool) -> Iterator[GridWatcher]:
    """Show the progress of a grid on standard error."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False, quiet=quiet)
    if console.is_terminal and not quiet:
        with bar_on(console) as bar:
            yield GridWatcher(console, bar)
    else:
        yield GridWatcher(console, None)
