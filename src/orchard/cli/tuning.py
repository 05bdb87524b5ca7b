"""The command `tune`: each method's parameters, chosen by validation."""

from typing import TYPE_CHECKING

import typer

from orchard.cli.options import (
    RUNS,
    Clients,
    DataDir,
    Dataset,
    ExperimentFile,
    Fraction,
    Methods,
    Partition,
    Quiet,
    Reused,
    Rounds,
    Seeds,
    Settings,
    Trust,
    Workers,
    app,
    contenders_of,
    definition,
    seeds_of,
)

if TYPE_CHECKING:
    from orchard.runs.tuning import Choice
    from orchard.tasks.task import Measure


@app.command()
def tune(
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
    out: Reused = RUNS,
    settings: Settings = None,
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Choose learning rate and parameters of methods by validation; `orchard compare --tuned` then uses them."""
    base, options = definition(
        experiment,
        settings,
        dataset=dataset,
        data_dir=data_dir,
        fraction=fraction,
        partition=partition,
        clients=clients,
        rounds=rounds,
        workers=workers,
        trust=trust,
    )

    from orchard.cli.progress import checked_data, watched_grid
    from orchard.cli.stopping import stoppable
    from orchard.runs.grid import Grid
    from orchard.runs.tuning import tune as tune_methods

    contenders = contenders_of(methods, base)
    data = checked_data(base, options, quiet=quiet)
    grid = Grid(base, options, seeds_of(seeds), out, data)
    with watched_grid(quiet=quiet) as watcher, stoppable() as stop:
        choices = tune_methods(grid, contenders, watcher, stop)
    _print(choices, data.task.measures[data.task.score])


def _print(choices: list["Choice"], score: "Measure") -> None:
    """Print what was chosen for each method."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("chosen")
    table.add_column(f"validation {score.title}", justify="right")
    table.add_column("candidates", justify="right")
    for choice in choices:
        table.add_row(Text(choice.contender.label), score.text(choice.validation), str(choice.candidates))
    Console(highlight=False).print(table)
    for choice in choices:
        if choice.edge:
            lr = choice.contender.changes["lr"]
            typer.echo(f"orchard: {choice.contender.label}: lr is the {choice.edge} tried; try --set lr={lr}", err=True)
