"""The command `tune`: each method's parameters, chosen by validation."""

from typing import TYPE_CHECKING

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
    Seeds,
    Settings,
    Trust,
    WithSettings,
    Workers,
    app,
)

if TYPE_CHECKING:
    from orchard.runs.tuning import Choice
    from orchard.tasks.task import Measure


@app.command(cls=WithSettings)
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
    engine: Engine = None,
    address: Address = None,
    out: Reused = RUNS,
    settings: Settings = None,
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Choose learning rate and parameters of methods by validation; `orchard compare --tuned` then uses them."""
    from orchard.cli.grids import planned_grid
    from orchard.cli.progress import watched_grid
    from orchard.cli.stopping import stoppable
    from orchard.runs.run import load_data
    from orchard.runs.tuning import tune as tune_methods

    given = {"dataset": dataset, "data_dir": data_dir, "fraction": fraction, "partition": partition}
    given |= {"clients": clients, "rounds": rounds, "workers": workers, "engine": engine, "address": address}
    grid, contenders = planned_grid(experiment, settings, given, methods, seeds, out, quiet=quiet, trust=trust)
    task = load_data(grid.base, grid.data).task
    with watched_grid(quiet=quiet) as watcher, stoppable() as stop:
        choices = tune_methods(grid, contenders, watcher, stop)
    _print(choices, task.measures[task.score])
    if not quiet:
        typer.echo("compare the methods so: orchard compare --tuned, with the same options", err=True)


def _print(choices: list["Choice"], score: "Measure") -> None:
    """Print what was chosen for each method."""
    from rich.text import Text

    from orchard.cli.data_tables import output, plain_table

    table = plain_table("chosen", f"validation {score.title}", "candidates")
    for choice in choices:
        table.add_row(Text(choice.contender.label), score.text(choice.validation), str(choice.candidates))
    output().print(table)
    for choice in choices:
        if choice.edge:
            lr = choice.contender.changes["lr"]
            typer.echo(
                f"orchard: {choice.contender.label}: lr is the {choice.edge} tried; look further with --set lr={lr}",
                err=True,
            )
