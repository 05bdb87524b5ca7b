"""What a person sees: progress while a run goes on, and its result as a table."""

import io
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from orchard.checkpoints import write_durably
from orchard.comparison import Comparison
from orchard.contract import Answer
from orchard.data import federated_data
from orchard.errors import Refusal
from orchard.experiment import Experiment
from orchard.layout import readable
from orchard.listing import listed_runs
from orchard.paper.reproduce import Reproduction
from orchard.paper.wording import claims, table_rows
from orchard.results import ClientResult, Result, Selected
from orchard.rounds import Exchange
from orchard.runs import Progress as OnExchange
from orchard.tables import as_csv, as_latex, as_markdown, gains_table, rich_table

PLAIN_WIDTH = 400
"""Columns where there is no terminal to ask."""


@contextmanager
def watched(experiment: Experiment, *, quiet: bool) -> Iterator[OnExchange | None]:
    """Show progress on standard error: a live bar on a terminal, else a plain line a round."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if quiet:
        yield None
    elif console.is_terminal:
        with _bar(console) as bar:
            task = bar.add_task(experiment.method.name, total=experiment.rounds, figures="starting")

            def advance(exchange: Exchange) -> None:
                if exchange.round < experiment.rounds:
                    bar.update(task, completed=exchange.round + 1, figures=_figures(exchange))

            yield advance
    else:
        began, before = time.monotonic(), -1

        def say(exchange: Exchange) -> None:
            nonlocal before
            before = exchange.round if before < 0 else before  # a run that goes on starts later than at 0
            done, total = exchange.round + 1, experiment.rounds
            if done <= total:
                left = (time.monotonic() - began) / (done - before) * (total - done)
                console.print(f"round {done}/{total}  {_figures(exchange)}  {left:.0f} s left", soft_wrap=True)

        yield say


class GridWatcher:
    """Shows how a comparison goes on: one bar for all of it on a terminal, else a plain line a run."""

    def __init__(self, console: Console, bar: Progress | None) -> None:
        self.console, self.bar = console, bar

    def plan(self, runs: int, rounds: int) -> None:
        """Open the bar over all rounds of all runs, in place of an earlier grid's."""
        self.done, self.runs, self.rounds = 0, runs, rounds
        if self.bar:
            for task in self.bar.task_ids:
                self.bar.remove_task(task)
            self.task = self.bar.add_task("comparing", total=runs * rounds, figures="starting")

    def begin(self, label: str, seed: int) -> OnExchange | None:
        """Follow a run's rounds on the bar."""
        if self.bar is None:
            return None

        def advance(exchange: Exchange) -> None:
            if self.bar and exchange.round < self.rounds:
                figures = f"{label}, seed {seed}: {_figures(exchange)}"
                self.bar.update(self.task, completed=self.done * self.rounds + exchange.round + 1, figures=figures)

        return advance

    def end(self, label: str, seed: int, result: Result, kept: Path | None) -> None:
        """Say how a run ended."""
        how = f"kept in {kept}" if kept else f"{result.seconds:.0f} s"
        self._count(f"{label}, seed {seed}: BMCTA {result.bmcta:.2%}  ({how})")

    def fail(self, label: str, seed: int, reason: str) -> None:
        """Say why a run failed."""
        self._count(f"{label}, seed {seed}: failed: {reason}")

    def _count(self, outcome: str) -> None:
        self.done += 1
        if self.bar:
            self.bar.update(self.task, completed=self.done * self.rounds)
        self.console.print(f"{self.done}/{self.runs}  {outcome}", soft_wrap=True)


@contextmanager
def watched_grid(*, quiet: bool) -> Iterator[GridWatcher]:
    """Show the progress of a comparison on standard error."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False, quiet=quiet)
    if console.is_terminal and not quiet:
        with _bar(console) as bar:
            yield GridWatcher(console, bar)
    else:
        yield GridWatcher(console, None)


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.completed}/{task.total} rounds  {task.fields[figures]}", markup=False),
        TimeRemainingColumn(compact=True),
        console=console,
    )


def _figures(exchange: Exchange) -> str:
    """Say how the clients do right after training."""
    accuracy = {
        i: answer.trained.test.accuracy
        for i, answer in exchange.answers.items()
        if isinstance(answer, Answer) and answer.trained
    }
    if not accuracy:
        return "no client trained"
    worst = min(accuracy, key=lambda i: accuracy[i])
    mean = sum(accuracy.values()) / len(accuracy)
    return f"mean {mean:.1%}  worst {accuracy[worst]:.1%} (client {worst})"


def print_comparison(comparison: Comparison, style: str) -> None:
    """Print a comparison on standard output, as text for people or in a format for other programs."""
    if style != "text":
        formats = {"csv": as_csv, "markdown": as_markdown, "latex": as_latex}
        sys.stdout.write(formats[style](comparison.rows))
        return
    console = _output()
    console.print(rich_table(comparison.rows))
    console.print("accuracies in %, traffic of one client in one round; BMCTA: best mean client test accuracy")
    if comparison.alone and len(comparison.rows) > 1:
        console.print("\nWhat each client gains over training alone, in percentage points:")
        console.print(gains_table(comparison, comparison.alone))


def print_reproduction(found: Reproduction, *, whole: bool) -> None:
    """Print a table of the paper beside ours, and, if it is whole, which of the paper's claims hold."""
    head, *body = table_rows(found)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in head:
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for row in body:
        table.add_row(*row)
    console = _output()
    how = f"at scale {found.scale}{', tuned' if found.tuned else ''}"
    console.print(f"{found.dataset}, {found.partition} split, {found.table}, {how}: BMCTA in %")
    console.print(table)
    for claim in claims(found) if whole else []:
        console.print(claim, soft_wrap=True)


def print_catalogue(data_dir: Path | None) -> None:
    """Print the datasets known by name."""
    from orchard.holdings import catalogue_table

    _output().print(catalogue_table(data_dir))


def print_holdings(experiment: Experiment, file: Path | None) -> None:
    """Print who holds what, and draw it into a file."""
    # Late, since matplotlib would hold up every other command.
    from orchard.holdings import class_legend, draw_holdings, holdings_tables

    held = federated_data(experiment).holdings()
    name = readable(Path(experiment.dataset).resolve().stem)
    file = file or Path(f"{name}-{experiment.partition.name}.png")
    console = _output()
    for table in holdings_tables(held, console.width):
        console.print(table)
    console.print(class_legend(held), soft_wrap=True, markup=False)
    draw_holdings(held, f"{name}, {experiment.partition.name} split", file)
    console.print(f"drawn in {readable(str(file))}", soft_wrap=True, markup=False)


def _output() -> Console:
    console = Console(highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    return console


def print_predictions(model: Path, samples: Sequence[Path], output: Path | None, factory: str | None) -> None:
    """Classify samples and write CSV; say on standard error how many there were and, if it is known, how many right."""
    from orchard.prediction import batches, classify, load_classifier  # late: so would PyTorch's exporter

    classifier = load_classifier(model, factory)
    found = batches(samples, classifier)
    table = io.StringIO()
    count, accuracy = classify(classifier, found, table)
    try:
        if output is None:
            sys.stdout.write(table.getvalue())
            sys.stdout.flush()
        elif output.is_symlink() or (output.exists() and not output.is_file()):  # what is no file is never replaced
            output.write_text(table.getvalue(), "utf-8")
        else:
            write_durably(output, table.getvalue())
    except OSError as error:
        if output is None:  # else Python tries, and fails, once more at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise Refusal(f"{output or 'standard output'}: cannot be written: {error.strerror}") from None
    said = "" if accuracy is None else f", accuracy {accuracy:.4%}"
    Console(stderr=True, highlight=False).print(f"{count} samples{said}")


def print_runs(root: Path) -> None:
    """Print the runs in a folder, the newest last."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("run", "state", "method", "data", "rounds", "best", "age"):
        table.add_column(heading, justify="right" if heading in ("rounds", "best", "age") else "left", no_wrap=True)
    found, damaged = listed_runs(root)
    for entry in found:
        best = "-" if entry.best is None else f"{entry.best:.2%}"
        cells = (entry.folder, entry.state, entry.method, entry.data, f"{entry.done}/{entry.planned}", best)
        table.add_row(*map(Text, cells), _age(entry.started))
    console = _output()
    console.print(table if found else Text(f"no runs in {root}"))
    for problem in damaged:
        Console(stderr=True, highlight=False).print(problem, soft_wrap=True, markup=False)


def _age(started: datetime) -> str:
    seconds = (datetime.now(UTC) - started).total_seconds()
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def print_result(result: Result, folder: Path | None) -> None:
    """Print a table of clients and the run's headline on standard output."""
    console = _output()
    console.print(_table(result))
    figures = result.figures()
    best, last, selected = figures.best, figures.last, figures.validation_selected
    console.print(f"[bold]BMCTA {best.accuracy:.2%}[/] {_when(best)} (best mean client test accuracy)")
    console.print(f"last round {last.accuracy:.2%}; chosen by validation {selected.accuracy:.2%} {_when(selected)}")
    summary = result.summary()
    console.print(
        f"{summary['rounds']} rounds in {summary['seconds']:.0f} s; "
        f"sent {_bytes(summary['bytes_up'])} up, {_bytes(summary['bytes_down'])} down"
    )
    alone = result.single_class_clients()
    if alone:
        note = f"no balanced accuracy and no AUROC for those who hold test data of one class: {', '.join(alone)}"
        console.print(note, soft_wrap=True, markup=False)
    if folder:
        console.print(f"kept in {folder}", soft_wrap=True, markup=False)


def _table(result: Result) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("client", no_wrap=True)
    table.add_column("holds, most first", no_wrap=True)
    for column in ("samples", "accuracy"):
        table.add_column(column, justify="right")
    if result.relationships is not None:
        table.add_column("self-\nrelationship", justify="right", no_wrap=True)
        table.add_column("helped\nmost by", no_wrap=True)
    for client in result.clients:
        table.add_row(*_row(client))
    return table


def _row(client: ClientResult) -> list[Text]:
    classes = sorted(client.classes, key=lambda name: -client.classes[name])
    row = [client.name, " ".join(classes), str(client.samples), f"{client.accuracy:.1%}"]
    if client.self_relationship is not None:
        row += [f"{client.self_relationship:.2f}", client.strongest_helper or "nobody"]
    return [Text(cell) for cell in row]


def _when(selected: Selected) -> str:
    rounds = selected.round + 1
    return f"after {rounds} round{'s' if rounds > 1 else ''}"


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
