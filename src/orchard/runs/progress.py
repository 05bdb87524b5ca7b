"""The progress of a run on standard error or in a notebook."""

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from orchard.experiment import Experiment
from orchard.runs.loop import Progress as OnProgress
from orchard.runs.result import Result


def no_progress(result: Result) -> None:
    """Show nothing."""


@contextmanager
def shown(experiment: Experiment) -> Iterator[OnProgress | None]:
    """Show a run's progress where somebody looks: in a notebook or on a terminal, else nowhere."""
    if _in_notebook():
        yield _updated_cell(experiment)
    elif sys.stderr.isatty():
        with watched(experiment) as progress:
            yield progress
    else:
        yield None


@contextmanager
def watched(experiment: Experiment) -> Iterator[OnProgress]:
    """Show a run's progress on standard error: a live bar on a terminal, else a line per round."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if console.is_terminal:
        with bar_on(console) as bar:
            task = bar.add_task(experiment.method.name, total=experiment.rounds, figures="starting")

            def advance(result: Result) -> None:
                bar.update(task, completed=result.rounds_shown(), figures=newest_figures(result))

            yield advance
    else:
        began, first, shown = time.monotonic(), 0, -1

        def say(result: Result) -> None:
            nonlocal shown, first
            done, total = result.rounds_shown(), experiment.rounds
            if not done:  # the first exchange of methods whose aggregation is evaluated in the next one
                return
            first = done - 1 if shown < 0 else first  # a resumed run does not start at 0
            if done > shown:
                left = (time.monotonic() - began) / (done - first) * (total - done)
                console.print(f"round {done}/{total}  {newest_figures(result)}  {left:.0f} s left", soft_wrap=True)
            shown = done

        yield say


def bar_on(console: Console) -> Progress:
    """Return a bar of rounds with the newest figures beside it."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.completed}/{task.total} rounds  {task.fields[figures]}", markup=False),
        TimeRemainingColumn(compact=True),
        console=console,
    )


def newest_figures(result: Result) -> str:
    """Return the mean and the worst test score of the newest round that was evaluated, as text."""
    score, done = result.task.measures[result.task.score], result.evaluated_rounds()
    if result.figures_stay:
        return "figures stay at the sites"
    if not done:
        return "nothing evaluated yet"
    values = zip(result.distribution.clients, result.scores()[done - 1].tolist(), strict=True)
    known = {client: value for client, value in values if not math.isnan(value)}
    if not known:
        return f"no {score.title} yet"
    worst = min(known, key=lambda client: known[client])
    mean = sum(known.values()) / len(known)
    return f"mean {score.text(mean)}  worst {score.text(known[worst])} ({worst})"


def _in_notebook() -> bool:
    """Tell whether a notebook's kernel runs this."""
    shell: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return type(shell).__name__ == "ZMQInteractiveShell"


def _updated_cell(experiment: Experiment) -> OnProgress:
    """Return a callback that keeps one line under the notebook's cell up to date."""
    from IPython.display import display

    class Line:
        text = f"{experiment.method.name}: starting"

        def __repr__(self) -> str:
            return self.text

    line = Line()
    handle = display(line, display_id=True)

    def update(result: Result) -> None:
        done = f"round {result.rounds_shown()}/{experiment.rounds}"
        line.text = f"{experiment.method.name}: {done}  {newest_figures(result)}"
        handle.update(line)

    return update
