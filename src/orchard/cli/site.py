"""Commands of a site: site check, report, export. None of them needs the network, nor FLARE."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from orchard.cli.options import app

site_app = typer.Typer(no_args_is_help=True, help="Take part as one of several silos on separate machines.")
app.add_typer(site_app, name="site")

Kit = Annotated[Path, typer.Argument(help="This site's startup kit.")]
Run = Annotated[str | None, typer.Option("--run", help="The run's name; default: the newest.")]


class Choice(StrEnum):
    """Which model."""

    last = "last"
    validation = "validation"


@site_app.command("check")
def check_site(kit: Kit, experiment: Annotated[Path, typer.Argument(help="The experiment's TOML file.")]) -> None:
    """Try out settings, data, model and a training step, and say what would leave this site."""
    from orchard.site.check import check

    for line in check(kit, experiment):
        typer.echo(line)


@site_app.command("report")
def report_site(kit: Kit, run: Run = None) -> None:
    """Show this site's figures and its own directed relationships."""
    from orchard.site.report import own_record, report

    for line in report(own_record(kit, run)):
        typer.echo(line)


@site_app.command("export")
def export_site(
    kit: Kit,
    to: Annotated[Path, typer.Option(help="The file: .safetensors, .pt2 or .onnx.")],
    run: Run = None,
    round: Annotated[
        Choice, typer.Option("--round", help="The round that this site's validation data choose, or the last.")
    ] = Choice.validation,
) -> None:
    """Write this site's personalised model to be used, with a model card beside it."""
    from orchard.site.report import export, own_record

    card = export(own_record(kit, run), to, round.value)
    typer.echo(f"written: {to}, described in {card}", err=True)
