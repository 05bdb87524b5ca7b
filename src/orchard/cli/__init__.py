"""The command line: parse, call, print. PyTorch is imported only by commands that need it."""

import sys
import traceback
import warnings
from typing import Annotated, TextIO

import typer

from orchard import __version__
from orchard.cli.options import app
from orchard.engines.pages import use_large_pages
from orchard.errors import ClusterWarning, DataWarning, ModelWarning, ResumeWarning, RunFailed, Stopped, UserError

# isort: off
from orchard.cli import (  # in the order of --help
    running,
    tuning,
    joining,
    auditing,
    methods,
    panel,
    looking,
    data,
    deploy,
    server,
    site,
)
# isort: on

__all__ = [
    "app",
    "auditing",
    "data",
    "deploy",
    "joining",
    "looking",
    "main",
    "methods",
    "panel",
    "running",
    "server",
    "site",
    "tuning",
]


def main() -> None:
    """Run the command line; turn expected errors into one message and an exit code."""
    warnings.showwarning = _show_warning
    use_large_pages()
    sys.path.insert(0, "")  # so that --set model=my_file:factory finds a file in the current folder
    try:
        app()
    except UserError as refusal:
        typer.echo(f"orchard: {refusal}", err=True)
        sys.exit(2)
    except RunFailed as failure:
        _explain_failure(failure)
        sys.exit(1)
    except Stopped as stopped:
        typer.echo(f"orchard: {stopped}", err=True)
        sys.exit(130)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show Orchard's own warnings as one line each; format all others as Python does."""
    plain = issubclass(category, ClusterWarning | DataWarning | ModelWarning | ResumeWarning)
    text = f"orchard: {message}" if plain else warnings.formatwarning(message, category, filename, lineno).rstrip()
    typer.echo(text, err=True)


def _explain_failure(failure: RunFailed) -> None:
    """Print why a run failed; with a traceback if an error in someone's code caused it."""
    from orchard.core.training import NotFinite

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
        bool, typer.Option("--version", metavar="", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Personalised federated learning for silos that may not share data."""


@app.command("help", hidden=True)
def show_help() -> None:
    """Show what `orchard -h` shows."""
    app(["-h"])
