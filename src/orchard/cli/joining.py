"""Commands for those who come when a run has ended: offer, join."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchard.cli.options import Force, Quiet, RunArgument, Trust, app, may_replace, trusted
from orchard.runs import JOIN_ROUNDS

if TYPE_CHECKING:
    from orchard.runs.joining import Joined

HELPERS = 3
"""How many of those whom a newcomer turns to are named."""


@app.command()
def join(
    run: Annotated[Path, typer.Argument(help="A finished run's folder, or what `orchard offer` wrote.")],
    data: Annotated[Path, typer.Option(help="The newcomer's data, as a site's: a table, an .npz, a folder of images.")],
    name: Annotated[str, typer.Option(help="What to call the newcomer.")] = "newcomer",
    rounds: Annotated[int, typer.Option(help="For how many rounds it trains.")] = JOIN_ROUNDS,
    to: Annotated[
        Path | None, typer.Option(help="A file for its model, with a card: .safetensors, .pt2 or .onnx.")
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Personalise for a client that was not there: it learns from what a finished run has left."""
    from orchard.cli.progress import rounds_shown
    from orchard.export.export import export_joined, packer_for
    from orchard.runs.joining import join as join_run

    trusted(run, trust=trust)
    if to is not None:
        packer_for(to)  # raises before anything is trained
        may_replace(to, force=force)
    with rounds_shown(f"{name} joins", 2 * (rounds + 1), quiet=quiet) as progress:
        joined = join_run(run, data, name, rounds, progress)
    _print(joined)
    if to is not None:
        typer.echo(f"written: {to}, described in {export_joined(joined, to)}", err=True)


@app.command()
def offer(
    run: RunArgument,
    to: Annotated[Path, typer.Option(help="A new folder, to be handed to those who join.")],
) -> None:
    """Write what newcomers need of a finished run: its settings and what the server holds."""
    from orchard.runs.folder import RunFolder
    from orchard.runs.offer import Offer

    found = Offer.of(RunFolder(run))
    found.write(to)
    typer.echo(f"written: {to}; it holds what the server of {found.experiment.method.name} holds, and no data")


def _print(joined: "Joined") -> None:
    """Print what joining was worth."""
    from rich.text import Text

    from orchard.cli.data_tables import output, plain_table

    task = joined.federation.task
    table = plain_table(joined.client.name, *(measure.title for measure in task.measures.values()))
    rows = {
        "as received": joined.received,
        f"joined, {_rounds(joined.joined.round)}": joined.joined.scores,
        f"alone, {_rounds(joined.alone.round)}": joined.alone.scores,
    }
    for label, scores in rows.items():
        table.add_row(Text(label), *(measure.text(scores.test[key]) for key, measure in task.measures.items()))
    console = output()
    console.print(table)
    tested = len(joined.client.test.y)
    console.print(f"on its {tested} test samples, at the rounds that its {len(joined.client.validation.y)} choose")
    if helpers := _helpers(joined):
        console.print(f"it turns most to {helpers}", markup=False, soft_wrap=True)


def _rounds(round: int) -> str:
    return f"after {round + 1} round{'s' if round else ''}"


def _helpers(joined: "Joined") -> str:
    """Name those whom the newcomer turns to most, with the strengths of its relationships."""
    found = joined.diagnostics.get("relationships")
    if not isinstance(found, list):
        return ""
    others = sorted(zip(found[:-1], joined.names, strict=False), key=lambda pair: -abs(pair[0]))
    return ", ".join(f"{name} ({strength:+.2f})" for strength, name in others[:HELPERS] if strength)
