"""The command line: parse, call, print. PyTorch is imported only by commands that need it."""

import json as json_module
import sys
import traceback
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchard import __version__
from orchard.errors import Refusal, RunFailed

if TYPE_CHECKING:
    from orchard.experiment import Experiment

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """Run the command line; errors that are for people become one message and an exit code."""
    try:
        app()
    except Refusal as refusal:
        print(f"orchard: {refusal}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except RunFailed as failure:
        _explain_failure(failure)
        sys.exit(1)
    except KeyboardInterrupt:
        print("orchard: interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(130)


def _explain_failure(failure: RunFailed) -> None:
    """Say what failed; where it is a bug in somebody's code, they need to see where."""
    from orchard.training import NotFinite

    if failure.__cause__ is not None and not isinstance(failure.__cause__, NotFinite):
        traceback.print_exception(failure.__cause__)
    print(f"orchard: {failure}", file=sys.stderr)  # noqa: T201


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
    experiment: Annotated[Path | None, typer.Argument(help="A TOML file; without one, the defaults.")] = None,
    dataset: Annotated[str | None, typer.Option(help="A dataset's name.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where data files are.")] = None,
    fraction: Annotated[float | None, typer.Option(help="Share of the training data to use.")] = None,
    partition: Annotated[str | None, typer.Option(help="pathological, practical or dirichlet.")] = None,
    clients: Annotated[int | None, typer.Option(help="How many clients.")] = None,
    method: Annotated[str | None, typer.Option(help="The method's name.")] = None,
    rounds: Annotated[int | None, typer.Option(help="How many rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random but the partition.")] = None,
    workers: Annotated[int | None, typer.Option(help="Clients trained at the same time.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; default: a new one in runs/.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting, e.g. --set method.mu=0.1", metavar="KEY=VALUE"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Train a federation in this process and show what each client gained."""
    from orchard.experiment import load_experiment

    overrides = {
        "dataset": dataset,
        "data_dir": data_dir,
        "fraction": fraction,
        "partition": partition,
        "clients": clients,
        "method": method,
        "rounds": rounds,
        "seed": seed,
        "workers": workers,
        "out": out,
    }
    definition = load_experiment(experiment, overrides=overrides, assignments=settings or [])
    if definition.out is None:
        definition = definition.model_copy(update={"out": _free_folder(definition)})

    from orchard.display import print_result, watched
    from orchard.runs import run as run_experiment

    with watched(definition, quiet=quiet) as progress:
        result = run_experiment(definition, progress=progress)
    if json:
        typer.echo(json_module.dumps({"folder": str(definition.out), **result.summary()}))
    elif not quiet:
        print_result(result)


def _free_folder(experiment: "Experiment") -> Path:
    """Return the first unused name in runs/."""
    name = f"{experiment.dataset}-{experiment.partition.name}-{experiment.method.name}-seed{experiment.seed}"
    candidates = (Path("runs") / (name if k == 1 else f"{name}-{k}") for k in count(1))
    return next(path for path in candidates if not path.exists())
