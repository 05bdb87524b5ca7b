"""Commands that train: run, resume, compare, reproduce."""

from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orchard.cli.options import (
    RUNS,
    Address,
    Clients,
    DataDir,
    Dataset,
    Engine,
    ExperimentFile,
    Fraction,
    Methods,
    Partition,
    Quiet,
    Reused,
    Rounds,
    RunArgument,
    Seeds,
    Settings,
    Trust,
    WithSettings,
    Workers,
    app,
    chosen,
    definition,
    listed,
    make_folder,
    seeds_of,
    trusted,
)
from orchard.errors import UserError

if TYPE_CHECKING:
    from orchard.experiment import Experiment
    from orchard.report.events import EventWriter
    from orchard.report.tracking import RunTracker
    from orchard.runs.result import Result


@app.command(cls=WithSettings)
def run(
    experiment: ExperimentFile = None,
    dataset: Dataset = None,
    data_dir: DataDir = None,
    fraction: Fraction = None,
    partition: Partition = None,
    clients: Clients = None,
    method: Annotated[str | None, typer.Option(help="The method's name; default: graft.")] = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random but the partition.")] = None,
    workers: Workers = None,
    engine: Engine = None,
    address: Address = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; default: a new one in runs/.")] = None,
    settings: Settings = None,
    quiet: Annotated[bool, typer.Option("--quiet", metavar="", help="Print nothing but errors.")] = False,
    json: Annotated[bool, typer.Option("--json", metavar="", help="Print the summary as JSON.")] = False,
    open_page: Annotated[
        bool, typer.Option("--open", metavar="", help="Show the run in a browser while it is running.")
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", metavar="", help="Write events for TensorBoard too.")
    ] = False,
    mlflow: Annotated[
        str | None, typer.Option(help="Write the run to MLflow too: a folder, e.g. mlruns, or a server's address.")
    ] = None,
    trust: Trust = False,
) -> None:
    """Train a federation in this process and show what each client gained."""
    planned, options = definition(
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
        engine=engine,
        address=address,
        out=out,
        trust=trust,
    )

    from orchard.cli.progress import checked_data, say_if_loss_stays
    from orchard.cli.stopping import stoppable
    from orchard.runs.folder import new_folder
    from orchard.runs.progress import watched
    from orchard.runs.run import run as run_experiment

    if tensorboard:
        from orchard.report.events import summary_writer

        summary_writer()  # raises before anything is loaded
    tracker = _tracker(mlflow, planned) if mlflow else None
    data = checked_data(planned, options, quiet=quiet)  # before the bar, which would be drawn around the advice
    with ExitStack() as stack:
        folder = options.out or stack.enter_context(new_folder(RUNS, planned))
        events = stack.enter_context(_events(folder)) if tensorboard else None
        tracked = stack.enter_context(tracker.following(folder)) if tracker else None
        if open_page:
            stack.enter_context(_opened(folder, quiet=quiet))
        bar = None if quiet else stack.enter_context(watched(planned))
        stop = stack.enter_context(stoppable())
        advice = None if quiet else say_if_loss_stays()
        followers = [follower for follower in (events, tracked, bar, advice) if follower]

        def progress(result: "Result") -> None:
            for follower in followers:
                follower(result)

        result = run_experiment(planned, data, options=options, out=folder, progress=progress, stop=stop)
    _show(result, folder, quiet=quiet, json=json)


@app.command()
def resume(
    run: RunArgument,
    rounds: Annotated[int | None, typer.Option(help="Extend the run to this many rounds.")] = None,
    engine: Engine = None,
    address: Address = None,
    quiet: Annotated[bool, typer.Option("--quiet", metavar="", help="Print nothing but errors.")] = False,
    json: Annotated[bool, typer.Option("--json", metavar="", help="Print the summary as JSON.")] = False,
    trust: Trust = False,
) -> None:
    """Resume an interrupted run, to the result it would have had."""
    trusted(run, trust=trust)
    from orchard.cli.stopping import stoppable
    from orchard.runs.folder import RunFolder
    from orchard.runs.progress import no_progress, watched
    from orchard.runs.run import resume as resume_run

    experiment = RunFolder(run).experiment()
    planned = experiment.model_copy(update={"rounds": rounds or experiment.rounds})
    with ExitStack() as stack:
        progress = no_progress if quiet else stack.enter_context(watched(planned))
        where = chosen(engine=engine, address=address)
        stop = stack.enter_context(stoppable())
        result = resume_run(run, rounds=rounds, progress=progress, stop=stop, **where)
    _show(result, run, quiet=quiet, json=json)


@app.command(cls=WithSettings)
def compare(
    experiment: ExperimentFile = None,
    methods: Methods = None,
    seeds: Seeds = "42",
    dataset: Dataset = None,
    data_dir: DataDir = None,
    fraction: Fraction = None,
    partition: Partition = None,
    clients: Clients = None,
    rounds: Rounds = None,
    workers: Workers = None,
    engine: Engine = None,
    address: Address = None,
    out: Reused = RUNS,
    settings: Settings = None,
    tuned: Annotated[
        bool,
        typer.Option(
            "--tuned", metavar="", help="With the parameters that `orchard tune` chooses with the first seed."
        ),
    ] = False,
    table: Annotated[
        Literal["text", "csv", "markdown", "latex"], typer.Option("--format", help="How the table is printed.")
    ] = "text",
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Run methods side by side on the same data and batches, and print one table."""
    from orchard.cli.display import print_comparison
    from orchard.cli.grids import planned_grid
    from orchard.cli.progress import watched_grid
    from orchard.cli.stopping import stoppable
    from orchard.runs.comparison import compare as compare_methods
    from orchard.runs.tuning import tune

    given = {"dataset": dataset, "data_dir": data_dir, "fraction": fraction, "partition": partition}
    given |= {"clients": clients, "rounds": rounds, "workers": workers, "engine": engine, "address": address}
    grid, contenders = planned_grid(experiment, settings, given, methods, seeds, out, quiet=quiet, trust=trust)
    with watched_grid(quiet=quiet) as watcher, stoppable() as stop:
        if tuned:
            choices = tune(replace(grid, seeds=grid.seeds[:1]), contenders, watcher, stop)
            contenders = [choice.contender for choice in choices]
        watcher.advises = True  # not before: tuning looks for a better learning rate anyway
        comparison = compare_methods(grid, contenders, watcher, stop)
    print_comparison(comparison, table)
    if not quiet:
        typer.echo(f"kept in {out}; as a page: orchard report {out}", err=True)


@app.command()
def reproduce(
    part: Annotated[
        Literal["table1", "table2", "figures"],
        typer.Argument(help="table1: all methods; table2: limited downloads; figures: of table 1's runs."),
    ],
    dataset: Annotated[
        str,
        typer.Option(
            help="A dataset's name, or a folder of images; the paper's: mnist, cifar10, organamnist, pathmnist."
        ),
    ],
    partition: Annotated[
        Literal["pathological", "practical"], typer.Option(help="Which of the paper's splits.")
    ] = "practical",
    scale: Annotated[
        Literal["smoke", "desk", "paper"],
        typer.Option(help="smoke: a minute or two; desk: 20 % of the data, 100 rounds; paper: all of it."),
    ] = "desk",
    seeds: Annotated[str, typer.Option(help="Seeds, with commas.")] = "42",
    rows: Annotated[
        str | None, typer.Option(help="Only these rows of the table, as they are called there, with commas.")
    ] = None,
    copy_of: Annotated[
        str | None, typer.Option(help="Of a folder: the paper's dataset that it holds a copy of, e.g. as JPEGs.")
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", metavar="", help="Choose parameters by a grid on validation accuracy.")
    ] = False,
    data_dir: DataDir = None,
    workers: Workers = None,
    engine: Engine = None,
    address: Address = None,
    out: Annotated[Path, typer.Option(help="Where the runs' folders are; finished ones are kept.")] = RUNS / "paper",
    results: Annotated[Path | None, typer.Option(help="Also keep the outcome in a small file in this folder.")] = None,
    quiet: Quiet = False,
) -> None:
    """Re-measure a table of the paper, or draw its figures; can be interrupted and repeated."""
    from orchard.cli.display import print_reproduction
    from orchard.cli.progress import watched_grid
    from orchard.cli.stopping import stoppable
    from orchard.experiment import RunOptions
    from orchard.paper.protocol import Table
    from orchard.paper.reproduce import Task
    from orchard.paper.reproduce import reproduce as reproduce_table
    from orchard.report.figures import write_figures

    table: Table = "table2" if part == "table2" else "table1"
    options = RunOptions(**chosen(data_dir=data_dir, workers=workers, engine=engine, address=address))
    wanted = listed("rows", rows) if rows is not None else []
    if wanted and part == "figures":
        raise UserError("--rows: figures are of whole tables")
    task = Task(table, dataset, partition, scale, seeds_of(seeds), out, options, tune, wanted, copy_of)
    task.grid()  # raises if it is not valid, before any folder is made
    if results:
        make_folder("--results", results)
    with watched_grid(quiet=quiet) as watcher, stoppable() as stop:
        found, folders = reproduce_table(task, watcher, stop)
    try:
        if results:
            typer.echo(f"kept in {found.write(results)}", err=True)
    finally:
        print_reproduction(found, whole=not wanted)
    if part == "figures":
        files, _left_out = write_figures(folders, Path("figures") / found.name, "pdf")
        for file in files:
            typer.echo(f"drawn in {file}")


def _events(folder: Path) -> "closing[EventWriter]":
    from orchard.report.events import EventWriter

    return closing(EventWriter(folder))


def _tracker(uri: str, experiment: "Experiment") -> "RunTracker":
    from orchard.cli.progress import say
    from orchard.report.tracking import RunTracker

    return RunTracker(uri, experiment, say)


def _opened(folder: Path, *, quiet: bool) -> AbstractContextManager[None]:
    from orchard.report.live import shown_live

    return shown_live(folder, lambda text: None if quiet else typer.echo(text, err=True))


def _show(result: "Result", folder: Path | None, *, quiet: bool, json: bool) -> None:
    """Print a run's result as text or as JSON."""
    from orchard.cli.display import print_result
    from orchard.runs.files import to_json

    if json:
        typer.echo(to_json({"folder": str(folder), **result.summary()}))
    elif not quiet:
        print_result(result, folder)
