"""The command `panel`: methods on federations that differ in kind."""

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orchard.cli.options import RUNS, DataDir, Quiet, Workers, app, listed, seeds_of

if TYPE_CHECKING:
    from orchard.runs.panel import Panel, PanelCell

Style = Literal["text", "csv", "markdown"]
DEFAULT = "separate,fedavg-ft,apfl,heurfedamp,fedfomo,apple"


@app.command()
def panel(
    methods: Annotated[str, typer.Option(help="Names, with commas; parameters with colons.")] = DEFAULT,
    seeds: Annotated[str, typer.Option(help="Seeds, with commas.")] = "0,1,2,3,4",
    federations: Annotated[str | None, typer.Option(help="Only these, with commas; default: all.")] = None,
    data_dir: DataDir = None,
    workers: Workers = None,
    out: Annotated[Path, typer.Option(help="Where the runs' folders are; finished ones are reused.")] = RUNS / "panel",
    style: Annotated[Style, typer.Option("--format", help="How the tables are printed.")] = "text",
    quiet: Quiet = False,
) -> None:
    """Compare methods on federations that differ in kind: accuracy, regret, and who would do better alone."""
    from orchard.cli.progress import watched_grid
    from orchard.cli.stopping import stoppable
    from orchard.experiment import RunOptions
    from orchard.runs.panel import check_federations, run_panel

    names = check_federations(listed("federations", federations) if federations else [])
    options = RunOptions(data_dir=data_dir, workers=workers)
    with watched_grid(quiet=quiet) as watcher, stoppable() as stop:
        found = run_panel(listed("methods", methods), seeds_of(seeds), names, options, out, watcher, stop)
    sys.stdout.write(as_csv(found) if style == "csv" else as_tables(found, markdown=style == "markdown"))
    for reason in found.left_out.values():
        typer.echo(f"orchard: left out: {reason}", err=True)


def as_csv(panel: "Panel") -> str:
    """Return a line for every method and federation; accuracies and regrets are shares."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = ["method", "federation", "accuracy", "accuracy_sd", "balanced_accuracy", "balanced_accuracy_sd", "regret"]
    writer.writerow([*head, "worse_than_alone", "clients"])
    for method, cells in panel.cells.items():
        for federation, cell in cells.items():
            balanced = cell.balanced_accuracy
            both = [balanced.mean, balanced.deviation] if balanced else [None, None]
            row = [method, federation, cell.accuracy.mean, cell.accuracy.deviation, *both, cell.regret]
            writer.writerow([*row, cell.worse_than_alone, cell.clients])
    return text.getvalue()


def as_tables(panel: "Panel", *, markdown: bool) -> str:
    """Return a table for each federation, and one of the regrets over all of them."""
    blocks = []
    for federation in next(iter(panel.cells.values())):
        rows = [[method, *_texts(cells[federation])] for method, cells in panel.cells.items()]
        head = ["method", "accuracy", "balanced", "regret", "worse than alone"]
        blocks.append(f"{'### ' if markdown else ''}{federation}\n{_table([head, *rows], markdown=markdown)}")
    regrets = [[m, _points(panel.mean_regret(m)), _points(panel.largest_regret(m))] for m in panel.cells]
    title = f"{'### ' if markdown else ''}Over all of them"
    blocks.append(f"{title}\n{_table([['method', 'mean regret', 'largest regret'], *regrets], markdown=markdown)}")
    about = (
        "Accuracies in %, means over clients at the round that validation chooses, ± over seeds. Regret, in points: by "
        "how much the best other method is ahead. Worse than alone: clients, on average over seeds."
    )
    return "\n".join([*blocks, about, ""])


def _texts(cell: "PanelCell") -> list[str]:
    worse = "–" if cell.worse_than_alone is None else f"{cell.worse_than_alone:.1f} of {cell.clients}"
    return [str(cell.accuracy), str(cell.balanced_accuracy or "–"), _points(cell.regret), worse]


def _points(share: float) -> str:
    return f"{round(100 * share, 2) + 0.0:+.2f}"  # no minus before zero


def _table(rows: Sequence[Sequence[str]], *, markdown: bool) -> str:
    if markdown:
        lines = [rows[0], ["---", *("---:" for _ in rows[0][1:])], *rows[1:]]
        return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    texts = (
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )
    return "".join(f"{text}\n" for text in texts)
