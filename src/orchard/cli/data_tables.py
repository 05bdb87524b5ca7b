"""Tables for a terminal: the known datasets, and each client's samples by class."""

from pathlib import Path
from typing import TYPE_CHECKING

import tomli_w
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchard.data.catalogue import CATALOGUE, Entry
from orchard.data.download import is_at_hand
from orchard.data.tables.kinds import describe_columns, find_columns
from orchard.data.tables.settings import TableSettings
from orchard.text import shortened

if TYPE_CHECKING:
    from orchard.data.clients import DataDistribution
    from orchard.experiment import Experiment

PLAIN_WIDTH = 400
"""Columns of the output if it is not a terminal."""
NAME_LENGTH = 30
GAP = 2
"""Spaces between two columns of a table."""
KINDS = {0: "rows", 1: "grey", 3: "colour"}
"""What a sample is, by its channels."""


def catalogue_table(chosen: Path | None) -> Table:
    """Return a table of the datasets known by name, and whether each is available locally."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("name", "classes", "samples", "licence", "at hand", "what it is"):
        table.add_column(heading, justify="right" if heading == "classes" else "left", no_wrap=heading == "name")
    for name, entry in CATALOGUE.items():
        at_hand = "yes" if is_at_hand(entry, chosen) else "-"
        table.add_row(name, str(len(entry.classes)), KINDS[entry.channels], entry.licence, at_hand, entry.title)
    return table


def entry_text(name: str, entry: Entry) -> str:
    """Return a description of a dataset: its classes, licence, citation and files."""
    lines = [
        f"{name}: {entry.title}",
        f"classes   {', '.join(entry.classes)}",
        f"samples   {KINDS[entry.channels]}",
        f"licence   {entry.licence}",
        f"please cite {entry.citation}",
    ]
    for size, files in entry.files.items():
        lines += [
            f"file      {source.file}{f'  ({size}×{size})' if size else ''}  {source.addresses[0]}" for source in files
        ]
    return "\n".join(lines)


def distribution_tables(held: "DataDistribution", width: int) -> list[Table]:
    """Return tables of each client's samples by class, over training, validation and test data.

    Columns that do not fit into `width` go into further tables, so that no number is cut off.
    """
    totals = held.totals().T if held.predicted().by_class else ()
    columns = [[str(k), *(str(n) if n else "·" for n in column)] for k, column in enumerate(totals)]
    columns.append(["all", *map(str, held.sizes())])
    if held.groups is not None:
        columns.append(["group", *map(str, held.groups)])
    columns += [[part, *map(str, sizes)] for part, sizes in held.samples.items()]
    names = ["client", *(shortened(name, min(NAME_LENGTH, width // 3)) for name in held.clients)]
    return [_table(names, piece) for piece in _pieces(columns, width - _width(names))]


def _pieces(columns: list[list[str]], width: int) -> list[list[list[str]]]:
    """Split columns into pieces that fit into the width."""
    pieces: list[list[list[str]]] = [[]]
    left = width
    for column in columns:
        if pieces[-1] and _width(column) > left:
            pieces.append([])
            left = width
        pieces[-1].append(column)
        left -= _width(column)
    return pieces


def _width(column: list[str]) -> int:
    return GAP + max(map(cell_len, column))


def _table(names: list[str], columns: list[list[str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    table.add_column(names[0], no_wrap=True)
    for heading, *_ in columns:
        table.add_column(heading, justify="right", no_wrap=True, style="bold" if heading == "all" else "")
    for name, *row in zip(names[1:], *(column[1:] for column in columns), strict=True):
        table.add_row(Text(name), *row)  # a Text is printed verbatim: a name may contain markup
    return table


def class_legend(held: "DataDistribution") -> str:
    """Return a legend of class numbers and names."""
    task = held.predicted()
    numbered = [f"{k} {name}" if name != str(k) else name for k, name in enumerate(held.classes)]
    return f"{task.nouns[1]}: {', '.join(numbered if task.by_class else held.classes)}"


def print_catalogue(data_dir: Path | None) -> None:
    """Print the datasets known by name."""
    output().print(catalogue_table(data_dir))


def print_columns(experiment: "Experiment") -> None:
    """Print what each column of a table is, and how to write that down."""
    from orchard.data.tables.datasets import whole_table

    frame = whole_table(Path(experiment.dataset), experiment.table)
    place, settings, console = experiment.dataset, experiment.table, output()
    found = describe_columns(frame, settings or TableSettings(target=str(frame.columns[-1])), place)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for heading in ("column", "kind", "missing", "values", ""):
        table.add_column(heading, justify="right" if heading == "missing" else "left")
    for column in found:
        # Without settings the target is not known yet: the last column only stood in for it.
        kind = column.kind if settings or column.kind != "target" else "?"
        cells = (column.name, kind, str(column.missing) if column.missing else "·", column.values, column.problem)
        table.add_row(*map(Text, cells))
    console.print(f"{len(frame):,} rows, {len(found)} columns")
    console.print(table)
    if settings is None:
        console.print("Say which column to predict: --set table.target=NAME, and which names the site, if one does: ")
        console.print("--set table.site=NAME. Leave columns out with: --set 'table.drop=[\"NAME\"]'", markup=False)
        return
    if settings.columns is None:
        columns = {"table": {**settings.model_dump(exclude_none=True), "columns": find_columns(frame, settings, place)}}
        console.print("\nFor an experiment's file, as sites on separate machines need it:\n")
        console.print(tomli_w.dumps(columns), markup=False, soft_wrap=True)
        console.print("Sites also need the target's values: classes in [deploy]; see docs/deploy.md", markup=False)


def plain_table(*headings: str, gap: int = GAP) -> Table:
    """Return a table without lines: names on the left, figures in all other columns on the right."""
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for k, heading in enumerate(headings):
        table.add_column(Text(heading), justify="right" if k else "left")
    return table


def output() -> Console:
    """Return a console for standard output; if that is not a terminal, it is `PLAIN_WIDTH` columns wide."""
    console = Console(highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    return console
