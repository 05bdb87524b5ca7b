"""Commands for a site. Only start, stop and health need FLARE."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from orchard.cli.options import Force, app, may_replace
from orchard.cli.server import add_service

site_app = typer.Typer(no_args_is_help=True, help="Take part as one of several silos on separate machines.")
app.add_typer(site_app, name="site")

Kit = Annotated[Path, typer.Argument(help="This site's startup kit.")]
Run = Annotated[str | None, typer.Option("--run", help="The run's name; default: the newest.")]


@site_app.command("check")
def check_site(kit: Kit, experiment: Annotated[Path, typer.Argument(help="The experiment's TOML file.")]) -> None:
    """Try out settings, data, model and a training step, and say what would leave this site."""
    from orchard.sites.check import check

    for line in check(kit, experiment):
        typer.echo(line)


@site_app.command("stats")
def stats_of_site(kit: Kit, experiment: Annotated[Path, typer.Argument(help="The experiment's TOML file.")]) -> None:
    """Show what this site would tell of its data before training; nothing leaves."""
    from orchard.sites.statistics import rehearsed

    for line in rehearsed(kit, experiment):
        typer.echo(line)


add_service(site_app, "site")


@site_app.command("accept")
def accept_member(kit: Kit, name: Annotated[str, typer.Argument(help="The new member.")]) -> None:
    """Agree to train with a new member, which this site was told of."""
    from orchard.sites.members import accept

    typer.echo(f"accepted: {name}, with the certificate {accept(kit, name)}")


@site_app.command("report")
def report_site(kit: Kit, run: Run = None) -> None:
    """Show this site's figures and its own directed relationships."""
    from orchard.sites.report import report, site_run

    for line in report(site_run(kit, run)):
        typer.echo(line)


@site_app.command("export")
def export_site(
    kit: Kit,
    to: Annotated[Path, typer.Option(help="The file: .safetensors, .pt2 or .onnx.")],
    run: Run = None,
    round: Annotated[
        Literal["last", "validation"] | None,
        typer.Option(
            "--round",
            help="The last round, or the one that this site's validation data choose, as by default without privacy.",
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Export this site's personalised model, with a model card beside it."""
    from orchard.sites.report import export, site_run

    may_replace(to, force=force)
    card = export(site_run(kit, run), to, round)
    typer.echo(f"written: {to}, described in {card}", err=True)


@site_app.command("log")
def log_site(
    kit: Kit,
    run: Annotated[str | None, typer.Option("--run", help="Only entries about this run.")] = None,
    kept: Annotated[
        str | None, typer.Option("--kept", help="A hash that this command printed earlier: is that entry still there?")
    ] = None,
) -> None:
    """Show what has left this site, and check that no entry was altered, added or removed."""
    from orchard.sites.settings import load_site
    from orchard.sites.trail import Trail, shown, verify

    trail = Trail(load_site(kit).records)
    for line, entry in trail.entries():
        if entry is None:
            typer.echo(f"line {line}: unfinished, as after a crash")
        elif run is None or entry["run"] == run:
            typer.echo(shown(entry))
    found = verify(trail, kept)
    if found.kept is not None:
        typer.echo(f"the hash that you kept is that of entry {found.kept}")
    typer.echo(f"{found.entries} entries, each as it was written. Keep the last hash elsewhere: {found.head}")
