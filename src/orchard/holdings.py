"""Who holds what: as a table, and drawn in the paper's two views (where each class goes, what each client holds)."""

import warnings
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from orchard.catalogue import CATALOGUE, Entry
from orchard.data import Holdings
from orchard.data.fetch import data_folder
from orchard.errors import Refusal
from orchard.layout import shortened

FORMATS = (".png", ".svg", ".pdf")
COLOURS = "Blues"
"""Lightness alone carries the value: the same to colour-blind eyes and in grey print."""
LABEL_LENGTH = 18
NAME_LENGTH = 30
GAP = 2
"""Columns of the terminal between two of a table."""

DPI = 160
SMALL_PRINT: dict[str, Any] = {"fontsize": 7, "color": "0.35"}
CELL_WIDTH, CELL_HEIGHT = 0.42, 0.34
LARGEST_SIDE = 16.0
"""Of a panel; cells shrink where there are more than fit at their size. All in inches."""
NUMBER_WIDTH, LINE_HEIGHT = 0.2, 0.13
"""What a percentage, and a line of small print, take."""
WIDE_FONTS = (
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "WenQuanYi Zen Hei",
    "Hiragino Sans",
    "PingFang SC",
    "Yu Gothic",
    "Microsoft YaHei",
    "Malgun Gothic",
)
"""Fonts of the usual systems with Chinese, Japanese and Korean characters."""


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


def holdings_tables(held: Holdings, width: int) -> list[Table]:
    """Return how many samples of each class each client holds, training, validation and test together.

    Where that is wider than `width`, the columns go on in further tables: a number that is cut off helps nobody.
    """
    totals = held.totals()
    columns = [[str(k), *(str(n) if n else "·" for n in column)] for k, column in enumerate(totals.T)]
    columns.append(["all", *map(str, totals.sum(axis=1))])
    columns += [[part, *(str(sum(row)) for row in rows)] for part, rows in held.counts.items()]
    names = ["client", *(shortened(name, min(NAME_LENGTH, width // 3)) for name in held.clients)]
    return [_table(names, piece) for piece in _pieces(columns, width - _width(names))]


def _pieces(columns: list[list[str]], width: int) -> list[list[list[str]]]:
    """Divide columns so that each piece fits into the width."""
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
        table.add_row(Text(name), *row)  # a Text is printed as it is, whatever brackets or colons are in a name
    return table


def class_legend(held: Holdings) -> str:
    """Say which class each number stands for."""
    return "classes: " + ", ".join(f"{k} {name}" if name != str(k) else name for k, name in enumerate(held.classes))


def draw_holdings(held: Holdings, title: str, file: Path) -> None:
    """Draw both views into a PNG, SVG or PDF file; however many clients there are, on a page that can be looked at."""
    if file.suffix.lower() not in FORMATS:
        raise Refusal(f"{file}: figures are written as {', '.join(FORMATS)}")
    totals, clients, classes = held.totals(), held.clients, held.classes
    widths = [min(CELL_WIDTH * n, LARGEST_SIDE) for n in (len(clients), len(classes))]
    height = min(CELL_HEIGHT * max(len(clients), len(classes)), LARGEST_SIDE)
    with rc_context({"font.family": fonts()}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from")  # it is drawn as a box, and seen
        figure = Figure(figsize=(3.4 + sum(widths), 2.0 + height), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=widths)
        figure.suptitle(title, parse_math=False)
        cells = [(w / n, height / m) for w, n, m in zip(widths, totals.shape, totals.shape[::-1], strict=True)]
        _draw_shares(left, totals.T, (classes, clients), cells[0], "Where each class goes", "share of the class, %")
        unit = "share of the client's samples, %"
        _draw_shares(right, totals, (clients, classes), cells[1], "What each client holds", unit)
        try:
            figure.savefig(file, dpi=DPI)
        except OSError as error:
            raise Refusal(f"{file}: cannot be written: {error.strerror}") from None


def fonts() -> list[str]:
    """Return matplotlib's own font, and those of this machine that can write what it lacks."""
    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in WIDE_FONTS if name in installed)]


def _draw_shares(
    axes: Axes,
    counts: NDArray[np.int64],
    names: tuple[list[str], list[str]],
    cell: tuple[float, float],
    title: str,
    unit: str,
) -> None:
    """Draw each row's division among the columns, with its percentages and the row's total where they fit."""
    (rows, columns), (width, height) = names, cell
    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    numbered = width >= NUMBER_WIDTH and height >= LINE_HEIGHT
    darkest = 100.0 if numbered else float(shares.max())  # of a thousand, nobody holds as much as can be seen
    sharp = min(cell) * DPI >= 1  # else some clients would have no pixel; then neighbours are averaged
    smoothing = "nearest" if sharp else "auto"
    axes.imshow(shares, cmap=COLOURS, vmin=0, vmax=darkest, aspect="auto", interpolation=smoothing)
    for i, j in np.argwhere(counts) if numbered else ():
        text = f"{shares[i, j]:.0f}" if shares[i, j] >= 0.5 else "<1"
        axes.text(j, i, text, ha="center", va="center", fontsize=7, color="white" if shares[i, j] > 50 else "black")
    if not numbered:
        unit += f", the darkest {darkest:.2g}"
    if height >= LINE_HEIGHT:
        unit += "; row totals at the right"
        for i, total in enumerate(counts.sum(axis=1)):
            axes.annotate(
                f"{total:,}", (1, i), (4, 0), axes.get_yaxis_transform(), "offset points", va="center", **SMALL_PRINT
            )
    axes.set_title(title, fontsize=10, pad=14)
    axes.annotate(unit, (0.5, 1), (0, 3), "axes fraction", "offset points", ha="center", **SMALL_PRINT)
    for axis, labels, room in ((axes.xaxis, columns, width), (axes.yaxis, rows, height)):
        ticks = range(0, len(labels), ceil(LINE_HEIGHT / room))  # where there is no room for all, every so many
        axis.set_ticks(ticks, [shortened(labels[k], LABEL_LENGTH) for k in ticks], fontsize=7)
        for label in axis.get_ticklabels():
            label.set_parse_math(False)  # a dollar in a name is a dollar
    axes.tick_params(axis="x", rotation=90)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
