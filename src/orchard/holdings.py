"""Who holds what: as a table, and drawn in the paper's two views (where each class goes, what each client holds)."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.markup import escape
from rich.table import Table

from orchard.catalogue import CATALOGUE, Entry
from orchard.data import FederatedData
from orchard.data.fetch import data_folder
from orchard.errors import Refusal

FORMATS = (".png", ".svg", ".pdf")
COLOURS = "Blues"
"""Lightness alone carries the value: the same to colour-blind eyes and in grey print."""
LABEL_LENGTH = 18


def catalogue_table(chosen: Path | None) -> Table:
    """Return a table of the datasets known by name, and which of them are at hand."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("name", "classes", "channels", "licence", "at hand", "what it is"):
        table.add_column(heading, justify="right" if heading in ("classes", "channels") else "left")
    for name, entry in CATALOGUE.items():
        at_hand = "yes" if is_at_hand(entry, chosen) else "-"
        table.add_row(name, str(len(entry.classes)), str(entry.channels), entry.licence, at_hand, entry.title)
    return table


def is_at_hand(entry: Entry, chosen: Path | None) -> bool:
    """Tell whether all files of some size of a dataset are there."""
    folder = data_folder(chosen)
    sizes = entry.files.values()
    return not sizes or any(all((folder / source.file).exists() for source in files) for files in sizes)


def entry_text(name: str, entry: Entry) -> str:
    """Say of a dataset what it is, what may be done with it, and where its files come from."""
    lines = [
        f"{name}: {entry.title}",
        f"classes   {', '.join(entry.classes)}",
        f"images    {'grey' if entry.channels == 1 else 'colour'}",
        f"licence   {entry.licence}",
        f"please cite {entry.citation}",
    ]
    for size, files in entry.files.items():
        lines += [f"file      {source.file}  ({size}×{size})  {source.addresses[0]}" for source in files]
    return "\n".join(lines)


def holdings_table(data: FederatedData) -> Table:
    """Return how many samples of each class each client holds, training, validation and test together."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("client", no_wrap=True)
    for heading in (*map(str, range(len(data.classes))), "all", "train", "validation", "test"):
        table.add_column(heading, justify="right", no_wrap=True, style="bold" if heading == "all" else "")
    counts = data.class_counts()
    for i, row in enumerate(_totals(data)):
        parts = [sum(counts[part][i]) for part in counts]
        held = [str(n) if n else "·" for n in row]
        table.add_row(escape(data.clients[i].name), *held, str(sum(parts)), *map(str, parts))
    return table


def class_legend(data: FederatedData) -> str:
    """Say which class each number stands for."""
    return "classes: " + ", ".join(f"{k} {name}" if name != str(k) else name for k, name in enumerate(data.classes))


def draw_holdings(data: FederatedData, title: str, file: Path) -> None:
    """Draw both views into a PNG, SVG or PDF file."""
    if file.suffix.lower() not in FORMATS:
        raise Refusal(f"{file}: figures are written as {', '.join(FORMATS)}")
    totals = _totals(data)
    clients, classes = [c.name for c in data.clients], list(data.classes)
    width, height = 3.4 + 0.42 * (len(clients) + len(classes)), 2.0 + 0.34 * max(len(clients), len(classes))
    figure = Figure(figsize=(width, height), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[len(clients), len(classes)])
    figure.suptitle(title, parse_math=False)
    _draw_shares(left, totals.T, classes, clients, "Where each class goes", "share of the class, %")
    _draw_shares(right, totals, clients, classes, "What each client holds", "share of the client's samples, %")
    try:
        figure.savefig(file, dpi=160)
    except OSError as error:
        raise Refusal(f"{file}: cannot be written: {error.strerror}") from None


def _draw_shares(
    axes: Axes, counts: NDArray[np.int64], rows: list[str], columns: list[str], title: str, unit: str
) -> None:
    """Draw each row's division among the columns, with its percentages and the row's total beside it."""
    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap=COLOURS, vmin=0, vmax=100, aspect="auto")
    for i, j in np.argwhere(counts):
        text = f"{shares[i, j]:.0f}" if shares[i, j] >= 0.5 else "<1"
        axes.text(j, i, text, ha="center", va="center", fontsize=7, color="white" if shares[i, j] > 50 else "black")
    for i, total in enumerate(counts.sum(axis=1)):
        axes.text(len(columns) - 0.35, i, f"{total:,}", va="center", fontsize=7, color="0.35")
    axes.set_title(title, fontsize=10, pad=14)
    axes.text(
        0.5, 1.01, f"{unit}; row totals at the right", transform=axes.transAxes, ha="center", fontsize=7, color="0.35"
    )
    axes.set_xticks(range(len(columns)), [shortened(c, LABEL_LENGTH) for c in columns], fontsize=7, rotation=90)
    axes.set_yticks(range(len(rows)), [shortened(r, LABEL_LENGTH) for r in rows], fontsize=7)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)  # a dollar in a name is a dollar
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def shortened(name: str, length: int) -> str:
    """Return a name that fits; long class names are cut."""
    return name if len(name) <= length else name[: length - 1] + "…"


def _totals(data: FederatedData) -> NDArray[np.int64]:
    """Return samples by client and class."""
    totals: NDArray[np.int64] = np.sum(list(data.class_counts().values()), axis=0)
    return totals
