"""The command `panel`: methods on federations that differ in kind."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from orchard.cli.options import RUNS, Address, DataDir, Engine, Quiet, Workers, app, chosen, listed, seeds_of

DEFAULT = "separate,fedavg-ft,ditto,apfl,heurfedamp,fedfomo,apple,graft"


@app.command()
def panel(
    methods: Annotated[str, typer.Option(help="Names, with commas; parameters with colons.")] = DEFAULT,
    seeds: Annotated[str, typer.Option(help="Seeds, with commas.")] = "0,1,2,3,4",
    federations: Annotated[str | None, typer.Option(help="Only these, with commas; default: all.")] = None,
    data_dir: DataDir = None,
    workers: Workers = None,
    engine: Engine = None,
    address: Address = None,
    out: Annotated[Path, typer.Option(help="Where the runs' folders are; finished ones are reused.")] = RUNS / "panel",
    style: Annotated[
        Literal["text", "csv", "markdown", "page"], typer.Option("--format", help="How the tables are printed.")
    ] = "text",
    results: Annotated[
        Path | None,
        typer.Option(help="Also keep the figures in this folder's panel.json, beside those of other methods."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Compare methods on federations that differ in kind: accuracy, regret, and who would do better alone."""
    from orchard.cli.progress import watched_grid
    from orchard.cli.stopping import stoppable
    from orchard.errors import UserError
    from orchard.experiment import RunOptions
    from orchard.report.panel import as_csv, as_markdown, as_page, as_text
    from orchard.runs.panel import Panel, check_federations, run_panel

    names = check_federations(listed("federations", federations) if federations else [])
    if results and not results.is_dir():
        raise UserError(f"--results: there is no folder {results}")
    options = RunOptions(**chosen(data_dir=data_dir, workers=workers, engine=engine, address=address))
    with watched_grid(quiet=quiet) as watcher, stoppable() as stop:
        found = run_panel(listed("methods", methods), seeds_of(seeds), names, options, out, watcher, stop)
    formats = {"text": as_text, "csv": as_csv, "markdown": as_markdown, "page": as_page}
    sys.stdout.write(formats[style](found))
    if results:
        kept = results / "panel.json"
        (Panel.read(kept).updated(found) if kept.exists() else found).write(kept)
    for reason in found.left_out.values():
        typer.echo(f"orchard: left out: {reason}", err=True)
