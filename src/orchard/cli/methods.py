"""The command `methods`: which there are, and what one of them does."""

from typing import TYPE_CHECKING, Annotated

import typer

from orchard.cli.options import app

if TYPE_CHECKING:
    from rich.console import Console

    from orchard.methods.description import Description


@app.command("methods")
def show_methods(
    name: Annotated[str | None, typer.Argument(help="A method, to see its parameters, paper and equations.")] = None,
) -> None:
    """List the methods that can be run, those of other packages too; or explain one."""
    from rich.console import Console

    from orchard.errors import UserError
    from orchard.methods.description import describe
    from orchard.methods.registry import all_methods

    console = Console(highlight=False)
    try:
        if name:
            _explain(describe(name), console)
        else:
            _list([describe(method) for method in all_methods()], console)
    except ValueError as unknown:
        raise UserError(str(unknown)) from None


def _list(methods: list["Description"], console: "Console") -> None:
    """Print what each does, what travels and what stays."""
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for one in methods:
        table.add_row(one.name, f"{one.does}\n[dim]travels: {one.travels}. private: {one.keeps}.[/dim]")
    console.print(table)
    console.print("\nParameters, paper and equations of one: orchard methods NAME")


def _explain(one: "Description", console: "Console") -> None:
    """Print all that is known of a method."""
    from rich.table import Table

    typer.echo(f"{one.paper}\n")
    typer.echo(f"travels: {one.travels}\nprivate: {one.keeps}\nevaluated: {one.evaluated}\n")
    if not one.parameters:
        typer.echo("It has no parameters.")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("parameter", "default", "allowed", "tried by tune", "meaning"):
        table.add_column(heading, no_wrap=heading == "parameter")
    for parameter in one.parameters:
        table.add_row(parameter.name, parameter.default, parameter.allowed, parameter.tried, parameter.meaning)
    console.print(table)
    first = one.parameters[0]
    typer.echo(f"\nSet one: orchard run --method {one.name} --set method.{first.name}=…")
    typer.echo(f"In a comparison: orchard compare --methods {one.name}:{first.name}=…,…")
