"""The command `audit`: what a run leaks, measured."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orchard.cli.options import Quiet, RunsArgument, Trust, app, make_folder, trusted

if TYPE_CHECKING:
    from orchard.audit.findings import Audit


@app.command()
def audit(
    runs: RunsArgument,
    shadows: Annotated[
        int, typer.Option(help="How often to run the federation again for the likelihood ratio; even, 0 for never.")
    ] = 8,
    canaries: Annotated[
        int, typer.Option(help="How many canaries to put among all clients' records; 0 for none.")
    ] = 200,
    seed: Annotated[int, typer.Option(help="Of the records asked for, the shadows and the canaries.")] = 0,
    style: Annotated[Literal["text", "markdown"], typer.Option("--format", help="How the table is printed.")] = "text",
    results: Annotated[
        Path | None, typer.Option(help="Also keep the figures in this folder's audit.json, beside those of other runs.")
    ] = None,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Attack finished runs and measure what leaks: who was trained on, a bound on ε, labels, samples.

    Each is repeated in this process, so all clients' data must be here. What is found is kept in the run's folder, and
    shown by `orchard report`.
    """
    from orchard.audit.audit import audit as audit_run
    from orchard.audit.audit import auditable
    from orchard.audit.document import keep
    from orchard.audit.findings import Plan
    from orchard.audit.table import labels_of
    from orchard.cli.progress import rounds_shown
    from orchard.cli.stopping import stoppable
    from orchard.runs.folder import RunFolder
    from orchard.runs.listing import found_runs

    if results:
        make_folder("--results", results)
    plan, folders = Plan(shadows, canaries, seed), found_runs(runs)
    for folder in folders:
        trusted(folder, trust=trust)
    experiments = [auditable(RunFolder(folder))[0] for folder in folders]  # all are checked before one is audited
    exchanges = sum(map(plan.exchanges, experiments))
    silent = quiet or sys.stderr.isatty()  # a terminal has a bar

    def audited(folder: Path) -> "Audit":
        def say(text: str) -> None:
            if not silent:
                typer.echo(f"{folder}: {text}", err=True)

        return audit_run(folder, plan, step, stop, say)

    with rounds_shown("auditing", exchanges, quiet=quiet) as step, stoppable() as stop:
        found = [audited(folder) for folder in folders]
    audits = list(zip(labels_of(folders, found), found, strict=True))
    _print(audits, style)
    if results:
        keep(results, audits)
    for folder in folders:
        typer.echo(f"kept in {folder / 'audit.json'}", err=True)


def _print(audits: "list[tuple[str, Audit]]", style: str) -> None:
    """Print one table on standard output."""
    from rich.table import Table
    from rich.text import Text

    from orchard.audit.table import ABOUT, notes_of, table_of
    from orchard.cli.data_tables import output
    from orchard.text import markdown_table

    head, rows = table_of(audits)
    if style == "markdown":
        typer.echo("\n".join(markdown_table(head, rows)))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for k, heading in enumerate(head):
        table.add_column(Text(heading), justify="right" if k else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    console = output()
    console.print(table)
    for line in [ABOUT, *notes_of(audits)]:
        console.print(line, soft_wrap=True, markup=False)
