"""The command line: parse, call, print. PyTorch is imported only by commands that need it."""

import json as json_module
import sys
import traceback
import warnings
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from enum import StrEnum
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from orchard import __version__
from orchard.errors import DataWarning, Refusal, ResumeWarning, RunFailed, Stopped

if TYPE_CHECKING:
    from orchard.experiment import Experiment
    from orchard.report.events import EventWriter
    from orchard.results import Result
    from orchard.rounds import Exchange

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

RUNS = Path("runs")

ExperimentFile = Annotated[Path | None, typer.Argument(help="A TOML file; without one, the defaults.")]
Dataset = Annotated[str | None, typer.Option(help="A dataset's name.")]
DataDir = Annotated[Path | None, typer.Option(help="Where data files are; else $ORCHARD_DATA.")]
Fraction = Annotated[float | None, typer.Option(help="Share of the training data to use.")]
Partition = Annotated[str | None, typer.Option(help="pathological, practical, dirichlet, iid, column or given.")]
Clients = Annotated[int | None, typer.Option(help="How many clients.")]
Rounds = Annotated[int | None, typer.Option(help="How many rounds.")]
Workers = Annotated[int | None, typer.Option(help="Clients trained at the same time; default: the cores.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Any setting, e.g. --set method.mu=0.1", metavar="KEY=VALUE")
]
RunArgument = Annotated[Path, typer.Argument(help="A run's folder.")]
RunsArgument = Annotated[list[Path], typer.Argument(help="Runs' folders.", metavar="RUN...")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


class FigureFormat(StrEnum):
    """How a figure is written."""

    pdf = "pdf"
    png = "png"
    svg = "svg"


class TableFormat(StrEnum):
    """How a table is printed."""

    text = "text"
    csv = "csv"
    markdown = "markdown"
    latex = "latex"


def main() -> None:
    """Run the command line; errors that are for people become one message and an exit code."""
    warnings.showwarning = _show_warning
    sys.path.insert(0, "")  # so that --set model=my_file:factory finds a file beside the user
    try:
        app()
    except Refusal as refusal:
        typer.echo(f"orchard: {refusal}", err=True)
        sys.exit(2)
    except RunFailed as failure:
        _explain_failure(failure)
        sys.exit(1)
    except Stopped as stopped:
        typer.echo(f"orchard: {stopped}", err=True)
        sys.exit(130)
    except KeyboardInterrupt:
        typer.echo("orchard: interrupted", err=True)
        sys.exit(130)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show what people should know as one line; what programmers should know as Python does."""
    plain = issubclass(category, DataWarning | ResumeWarning)
    text = f"orchard: {message}" if plain else warnings.formatwarning(message, category, filename, lineno).rstrip()
    typer.echo(text, err=True)


def _explain_failure(failure: RunFailed) -> None:
    """Say what failed; where it is a bug in somebody's code, they need to see where."""
    from orchard.training import NotFinite

    if failure.__cause__ is not None and not isinstance(failure.__cause__, NotFinite):
        traceback.print_exception(failure.__cause__)
    typer.echo(f"orchard: {failure}", err=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"orchard {__version__}")
        raise typer.Exit


@app.callback()
def orchard(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Personalised federated learning for silos that may not share data."""


@app.command()
def run(
    experiment: ExperimentFile = None,
    dataset: Dataset = None,
    data_dir: DataDir = None,
    fraction: Fraction = None,
    partition: Partition = None,
    clients: Clients = None,
    method: Annotated[str | None, typer.Option(help="The method's name; `orchard methods` lists them.")] = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random but the partition.")] = None,
    workers: Workers = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; default: a new one in runs/.")] = None,
    settings: Settings = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    open_page: Annotated[bool, typer.Option("--open", help="Show the run in a browser while it goes on.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write events for TensorBoard too.")] = False,
) -> None:
    """Train a federation in this process and show what each client gained."""
    definition = _definition(
        experiment,
        settings,
        dataset=dataset,
        data_dir=data_dir,
        fraction=fraction,
        partition=partition,
        clients=clients,
        method=method,
        rounds=rounds,
        seed=seed,
        workers=workers,
        out=out,
    )

    from orchard.display import watched
    from orchard.folder import free_folder
    from orchard.runs import run as run_experiment
    from orchard.stopping import stoppable

    folder = definition.out or free_folder(RUNS, definition)
    definition = definition.model_copy(update={"out": folder})
    with ExitStack() as stack:
        events = stack.enter_context(_events(folder)) if tensorboard else None
        if open_page:
            stack.enter_context(_opened(folder, quiet=quiet))
        bar = stack.enter_context(watched(definition, quiet=quiet))
        stop = stack.enter_context(stoppable())
        followers = [follower for follower in (events, bar) if follower]

        def progress(exchange: "Exchange") -> None:
            for follower in followers:
                follower(exchange)

        result = run_experiment(definition, progress=progress, stop=stop)
    _show(result, folder, quiet=quiet, json=json)


@app.command()
def resume(
    run: RunArgument,
    rounds: Annotated[int | None, typer.Option(help="Extend the run to so many rounds.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Go on with an interrupted run, to the result it would have had."""
    from orchard.display import watched
    from orchard.folder import RunFolder
    from orchard.runs import resume as resume_run
    from orchard.stopping import stoppable

    definition = RunFolder(run).experiment()
    planned = definition.model_copy(update={"rounds": rounds or definition.rounds})
    with watched(planned, quiet=quiet) as progress, stoppable() as stop:
        result = resume_run(run, rounds=rounds, progress=progress, stop=stop)
    _show(result, run, quiet=quiet, json=json)


@app.command("runs")
def list_runs(
    root: Annotated[Path, typer.Argument(help="Where the runs' folders are.")] = RUNS,
) -> None:
    """List runs: state, method, data, best accuracy, age."""
    from orchard.display import print_runs

    print_runs(root)


@app.command()
def compare(
    experiment: ExperimentFile = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Names, with commas; parameters with colons: apple,apple:mu=0. Default: all built-in."),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, with commas.")] = "42",
    dataset: Dataset = None,
    data_dir: DataDir = None,
    fraction: Fraction = None,
    partition: Partition = None,
    clients: Clients = None,
    rounds: Rounds = None,
    workers: Workers = None,
    out: Annotated[Path, typer.Option(help="Where the runs' folders are; finished ones are reused.")] = RUNS,
    settings: Settings = None,
    table: Annotated[TableFormat, typer.Option("--format", help="How the table is printed.")] = TableFormat.text,
    quiet: Quiet = False,
) -> None:
    """Run methods side by side on the same data and batches, and print one table."""
    definition = _definition(
        experiment,
        settings,
        dataset=dataset,
        data_dir=data_dir,
        fraction=fraction,
        partition=partition,
        clients=clients,
        rounds=rounds,
        workers=workers,
    )

    from orchard.comparison import compare as compare_methods
    from orchard.comparison import parse_contender
    from orchard.display import print_comparison, watched_grid
    from orchard.methods import BUILT_IN
    from orchard.stopping import stoppable

    names = dict.fromkeys(BUILT_IN if methods is None else _listed("methods", methods))
    contenders = [parse_contender(text, definition) for text in names]
    numbers = list(dict.fromkeys(_whole_number(text) for text in _listed("seeds", seeds)))
    with watched_grid(definition.rounds, quiet=quiet) as watcher, stoppable() as stop:
        comparison = compare_methods(definition, contenders, numbers, out, watcher, stop)
    print_comparison(comparison, table.value)


@app.command()
def report(
    runs: RunsArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="The page.")] = Path("report.html"),
) -> None:
    """Show one run, or several side by side, on one page to look at in a browser."""
    from orchard.report.page import write_report

    write_report(runs, output)
    typer.echo(f"written to {output}")


@app.command()
def figures(
    runs: RunsArgument,
    kind: Annotated[FigureFormat, typer.Option("--format", help="How they are written.")] = FigureFormat.pdf,
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for them.")] = Path("figures"),
) -> None:
    """Draw the paper's figures for runs of your own, ready for print."""
    from orchard.report.figures import write_figures

    for file in write_figures(runs, output, kind.value):
        typer.echo(f"drawn in {file}")


@app.command()
def watch(run: RunArgument) -> None:
    """Show a run in a browser while it goes on, until Ctrl-C."""
    from orchard.folder import RunFolder
    from orchard.report.live import live_page, open_browser

    RunFolder(run).experiment()
    with live_page(run) as address, suppress(KeyboardInterrupt):
        typer.echo(f"live at {address}; Ctrl-C ends it")
        open_browser(address)
        Event().wait()


@app.command("methods")
def list_methods() -> None:
    """List the methods that can be run, those of other packages too."""
    from orchard.methods import methods

    for name, entry in methods().items():
        typer.echo(f"{name:14s} {entry.value}")


data_app = typer.Typer(no_args_is_help=True, help="Look at datasets and at who holds what.")
app.add_typer(data_app, name="data")


@data_app.command("list")
def list_datasets(data_dir: DataDir = None) -> None:
    """List the datasets that are known by name."""
    from orchard.display import print_catalogue

    print_catalogue(data_dir)


@data_app.command("show")
def show_dataset(
    dataset: Annotated[str, typer.Argument(help="A name, an .npz, or a folder of images.")],
    partition: Partition = None,
    clients: Clients = None,
    data_dir: DataDir = None,
    fraction: Fraction = None,
    settings: Settings = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The figure: .png, .svg or .pdf; default: in this folder.")
    ] = None,
) -> None:
    """Say what a dataset is; with a partition, or data of your own, print and draw who holds what."""
    definition = _definition(
        None,
        settings,
        dataset=dataset,
        partition=partition,
        clients=clients,
        data_dir=data_dir,
        fraction=fraction,
    )

    from orchard.catalogue import CATALOGUE
    from orchard.display import print_holdings
    from orchard.holdings import entry_text

    if dataset in CATALOGUE:
        typer.echo(entry_text(dataset, CATALOGUE[dataset]))
    if dataset not in CATALOGUE or partition or clients or fraction or output or settings:
        print_holdings(definition, output)


def _events(folder: Path) -> "closing[EventWriter]":
    from orchard.report.events import EventWriter

    return closing(EventWriter(folder))


def _opened(folder: Path, *, quiet: bool) -> AbstractContextManager[None]:
    from orchard.report.live import shown_live

    return shown_live(folder, lambda text: None if quiet else typer.echo(text, err=True))


def _show(result: "Result", folder: Path | None, *, quiet: bool, json: bool) -> None:
    """Print what a run gave, for people or for other programs."""
    from orchard.display import print_result

    if json:
        typer.echo(json_module.dumps({"folder": str(folder), **result.summary()}))
    elif not quiet:
        print_result(result, folder)


def _definition(file: Path | None, settings: list[str] | None, **options: object) -> "Experiment":
    """Read the experiment that a file, the command's own options and its --set describe together."""
    from orchard.experiment import load_experiment

    return load_experiment(file, overrides=options, assignments=settings or [])


def _listed(option: str, text: str) -> list[str]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise Refusal(f"--{option}: names nothing")
    return items


def _whole_number(text: str) -> int:
    if not text.isdecimal():
        raise Refusal(f"--seeds: {text!r} is not a whole number from 0")
    return int(text)
