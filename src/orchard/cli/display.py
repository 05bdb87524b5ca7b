"""Print results, comparisons, predictions and lists of runs."""

import io
import os
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchard.cli.data_tables import class_legend, distribution_tables, output, plain_table
from orchard.cli.options import make_folder
from orchard.cli.tables import as_csv, as_latex, as_markdown, gains_table, relationship_table, rich_table
from orchard.data.division import federated_data
from orchard.errors import UserError
from orchard.experiment import Experiment
from orchard.runs.advice import advice
from orchard.runs.comparison import Comparison
from orchard.runs.figures import ClientResult, RoundFigures
from orchard.runs.listing import RunSummary, run_summaries
from orchard.runs.result import Result
from orchard.tasks.task import Task
from orchard.text import readable
from orchard.whole import write_output

if TYPE_CHECKING:
    from orchard.paper.reproduce import Reproduction

WIDE = 60
"""Columns of a terminal from which on there is room for who helps whom."""
WIDE_FOR_RUNS = 100
"""Columns from which on a list of runs has room for the data."""
MATRIX_CLIENTS = 16
"""The relationships of so many clients fit into a terminal."""


def print_comparison(comparison: Comparison, style: str) -> None:
    """Print a comparison on standard output as text, CSV, Markdown or LaTeX."""
    if style != "text":
        formats = {"csv": as_csv, "markdown": as_markdown, "latex": as_latex}
        sys.stdout.write(formats[style](comparison))
        return
    console = output()
    console.print(rich_table(comparison))
    score = comparison.score
    unit = " in %" if score.percent else ""
    what = f"{score.best_mean()}: the best mean over clients of test {score.title}{unit}"
    console.print(f"{what}; traffic of one client in one round")
    if comparison.alone and len(comparison.rows) > 1:
        points = ", in percentage points" if score.percent else ""
        console.print(f"\nWhat each client gains over training alone{points}:")
        console.print(gains_table(comparison, comparison.alone))
    learned = [row for row in comparison.rows if row.relationships]
    best = max(learned, key=lambda row: row.bmcta.mean, default=None)
    if best and best.relationships and len(comparison.clients) <= MATRIX_CLIENTS:
        console.print(f"\nWho learns from whom with {best.label}: what each row takes from each client, in %")
        console.print(relationship_table(comparison, best.relationships))


def print_reproduction(found: "Reproduction", *, whole: bool) -> None:
    """Print a table of the paper beside our figures and, if it is complete, which of the paper's claims hold."""
    from orchard.paper.wording import claims, table_rows

    head, *body = table_rows(found)
    table = plain_table(*head)
    for row in body:
        table.add_row(*row)
    console = output()
    how = f"at scale {found.scale}{', tuned' if found.tuned else ''}"
    console.print(f"{found.dataset}, {found.partition} split, {found.table}, {how}: BMCTA in %")
    console.print(table)
    for claim in claims(found) if whole else []:
        console.print(claim, soft_wrap=True)


def print_distribution(experiment: Experiment, data_dir: Path | None, file: Path | None) -> None:
    """Print each client's samples by class, and draw them into a file."""
    from orchard.report.distribution import draw_distribution  # here, since matplotlib is slow to import

    held = federated_data(experiment, data_dir).distribution()
    name = readable(Path(experiment.dataset).resolve().stem)
    file = file or Path(f"{name}-{experiment.partition.name}.png")
    console = output()
    for table in distribution_tables(held, console.width):
        console.print(table)
    console.print(class_legend(held), soft_wrap=True, markup=False)
    draw_distribution(held, f"{name}, {experiment.partition.name} split", file)
    console.print(f"drawn in {readable(str(file))}", soft_wrap=True, markup=False)


def print_predictions(
    model: Path, samples: Sequence[Path], to: Path | None, factory: str | None, masks: Path | None
) -> None:
    """Predict and write CSV; on standard error print the number of samples and, if targets are known, measures."""
    from orchard.export.predict import batches, load_predictor, predict

    predictor = load_predictor(model, factory)
    table = io.StringIO()
    if masks:
        make_folder("--masks", masks)
    count, measured = predict(predictor, batches(samples, predictor), table, masks)
    if to is not None:
        write_output(to, table.getvalue())
    else:
        _print_whole(table.getvalue())
    titles = predictor.task.measures
    said = [f"{titles[name].title} {titles[name].text(value, 2)}" for name, value in (measured or {}).items()]
    Console(stderr=True, highlight=False).print(", ".join([f"{count} samples", *said]))
    if to is not None:
        typer.echo(f"written: {to}", err=True)


def _print_whole(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # Otherwise Python fails again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise UserError(f"standard output: cannot be written: {error.strerror}") from None


def print_runs(root: Path) -> None:
    """Print the runs in a folder, the newest last."""
    console = output()
    found, damaged = run_summaries(root)
    console.print(_runs_table(found, console.width) if found else Text(f"no runs in {root}"))
    for entry in found:
        if entry.waiting:
            console.print(f"{entry.folder} waits for {entry.waiting}", soft_wrap=True, markup=False)
    for problem in damaged:
        Console(stderr=True, highlight=False).print(problem, soft_wrap=True, markup=False)


def _runs_table(runs: Sequence[RunSummary], width: int) -> Table:
    """Return a line for each run; on a narrow terminal its name, which begins with the data, says which they are."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    wide = width >= WIDE_FOR_RUNS
    for heading in ("run", "state", "method", *(["data"] if wide else []), "rounds", "best", "age"):
        right, whole = heading in ("rounds", "best", "age"), heading not in ("run", "method")
        table.add_column(heading, justify="right" if right else "left", no_wrap=whole, overflow="fold")
    for run in runs:
        state = "waiting" if run.waiting else run.state
        data = [run.data] if wide else []
        cells = (run.folder, state, run.method, *data, f"{run.done}/{run.planned}", run.best, _age(run.started))
        table.add_row(*map(Text, cells))
    return table


def _age(started: datetime) -> str:
    seconds = (datetime.now(UTC) - started).total_seconds()
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def print_result(result: Result, folder: Path | None) -> None:
    """Print a table of clients and the run's key figures on standard output."""
    console = output()
    console.print(_table(result, console.width))
    if result.figures_stay:
        console.print("figures stay at the sites: each has `orchard site report`", markup=False)
    else:
        _print_figures(console, result)
    summary = result.summary()
    console.print(
        f"{summary['rounds']} round{'s' if summary['rounds'] > 1 else ''} in {summary['seconds']:.0f} s; "
        f"sent {_bytes(summary['bytes_up'])} up, {_bytes(summary['bytes_down'])} down"
    )
    for note in [] if result.figures_stay else _notes(result):
        console.print(note, soft_wrap=True)
    for failure in _failures(result):
        console.print(failure, soft_wrap=True, markup=False, style="yellow")
    if folder:
        console.print(f"kept in {folder}", soft_wrap=True, markup=False)


def _notes(result: Result) -> Iterator[Text]:
    """Yield what to know about the figures."""
    if note := advice(result.experiment.method.name, result.bmcta, result.distribution):
        yield Text(note, style="yellow")
    if absent := result.never_trained():
        yield Text(f"never trained: {', '.join(absent)}; all means are over the others", style="yellow")
    for name, clients in result.undefined_measures().items():
        title = result.task.measures[name].title
        yield Text(f"no {title} for {', '.join(clients)}: too little to compare in the test data")


def _print_figures(console: Console, result: Result) -> None:
    """Print the best round, the last one, and the one that validation chooses."""
    figures = result.figures()
    best, last, selected = figures.best, figures.last, figures.validation_selected
    score = result.task.measures[result.task.score]
    said = score.text(best.score, 2)
    console.print(f"[bold]{score.best_mean()} {said}[/] {_when(best)} (best mean client test {score.title})")
    chosen = f"chosen by validation {score.text(selected.score, 2)} {_when(selected)}"
    console.print(f"last round {score.text(last.score, 2)}; {chosen}")


def _failures(result: Result) -> Iterator[str]:
    """Say of each client that has failed how often, and how the last time."""
    for i, name in enumerate(result.distribution.clients):
        found = [entry.failures[i] for entry in result.rounds if i in entry.failures]
        if found:
            rounds = f"{len(found)} of {len(result.rounds)} rounds"
            yield f"{name} took no part in {rounds}; the last time: {readable(found[-1])}"


def _table(result: Result, width: int) -> Table:
    """Return a line for each client. What it holds gives way on narrow terminals, then who helps it."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("client", no_wrap=True)
    if result.task.by_class:
        table.add_column("holds, most first")
    score = result.task.measures[result.task.score]
    for column in ("samples", score.title):
        table.add_column(column, justify="right", no_wrap=True)
    helped = result.relationships is not None and width >= WIDE
    if helped:
        table.add_column("self-\nrelationship", justify="right", no_wrap=True)
        table.add_column("helped\nmost by", no_wrap=True)
    for client in result.clients:
        table.add_row(*_row(client, result.task, helped=helped))
    return table


def _row(client: ClientResult, task: Task, *, helped: bool) -> list[Text]:
    classes = sorted(client.classes, key=lambda name: -client.classes[name])
    held = [" ".join(classes)] if task.by_class else []
    row = [client.name, *held, str(client.samples), task.measures[task.score].text(client.score)]
    if helped:
        row += [f"{client.self_relationship or 0.0:.2f}", client.helped_by]
    return [Text(cell) for cell in row]


def _when(selected: RoundFigures) -> str:
    rounds = selected.round + 1
    return f"after {rounds} round{'s' if rounds > 1 else ''}"


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
