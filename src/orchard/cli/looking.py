"""Commands that show runs and use their models: runs, report, figures, watch, export, predict."""

from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Annotated, Literal

import typer

from orchard.cli.options import RUNS, Force, RunArgument, RunsArgument, Trust, app, may_replace, trusted


@app.command("runs")
def list_runs(
    root: Annotated[Path, typer.Argument(help="Where the runs' folders are.")] = RUNS,
) -> None:
    """List runs: state, method, data, best score, age."""
    from orchard.cli.display import print_runs

    print_runs(root)


@app.command()
def report(
    runs: RunsArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="The page.")] = Path("report.html"),
) -> None:
    """Write a page that shows one run, or several side by side; a folder of runs stands for the runs in it."""
    from orchard.report.page import write_report

    for reason in write_report(runs, output):
        typer.echo(f"left out: {reason}", err=True)
    typer.echo(f"written to {output}")


@app.command()
def figures(
    runs: RunsArgument,
    kind: Annotated[Literal["pdf", "png", "svg"], typer.Option("--format", help="The file format.")] = "pdf",
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for them.")] = Path("figures"),
) -> None:
    """Draw the paper's figures for runs of your own, ready for print; a folder of runs stands for the runs in it."""
    from orchard.report.figures import write_figures

    files, left_out = write_figures(runs, output, kind)
    for reason in left_out:
        typer.echo(f"left out: {reason}", err=True)
    for file in files:
        typer.echo(f"drawn in {file}")


@app.command()
def watch(run: RunArgument) -> None:
    """Show a running run in a browser, until Ctrl-C."""
    from orchard.report.live import browser_at, live_page
    from orchard.runs.folder import RunFolder

    RunFolder(run).experiment()
    with live_page(run) as address, suppress(KeyboardInterrupt):
        typer.echo(f"live at {address}; Ctrl-C ends it")
        with browser_at(address):
            Event().wait()


@app.command()
def export(
    run: RunArgument,
    client: Annotated[str, typer.Option(help="The client's number, from 0, or its name.")],
    to: Annotated[Path, typer.Option(help="The file: .safetensors, .pt2 or .onnx.")],
    round: Annotated[
        Literal["best", "last", "validation"],
        typer.Option("--round", help="The round of the best mean test or validation score, or the last."),
    ] = "validation",
    force: Force = False,
    trust: Trust = False,
) -> None:
    """Export a client's personalised model, with a model card beside it."""
    from orchard.export.export import export_model

    trusted(run, trust=trust)
    may_replace(to, force=force)
    name, card = export_model(run, client, to, round)
    typer.echo(f"written: {to}, the model of {name}, described in {card}", err=True)


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="An exported model, .safetensors or .onnx.")],
    samples: Annotated[list[Path], typer.Argument(help="Images, folders of images, or an .npz.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The CSV file; default: standard output.")
    ] = None,
    factory: Annotated[
        str | None, typer.Option("--model", help='The network, if it is your own: "package.module:factory".')
    ] = None,
    masks: Annotated[
        Path | None, typer.Option(help="A folder for the masks that are predicted, as PNG or NIfTI.")
    ] = None,
) -> None:
    """Predict with an exported model; write CSV."""
    from orchard.cli.display import print_predictions

    print_predictions(model, samples, output, factory, masks)
