"""Draw how the data are distributed, in the paper's two views: where each class goes, and what each client holds."""

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

from orchard.data.clients import DataDistribution
from orchard.errors import UserError
from orchard.text import shortened

FORMATS = (".png", ".svg", ".pdf")
COLOURS = "Blues"
"""Only lightness shows the value, so it is readable for colour-blind people and in grey print."""
LABEL_LENGTH = 18

DPI = 160
SMALL_PRINT: dict[str, Any] = {"fontsize": 7, "color": "0.35"}
CELL_WIDTH, CELL_HEIGHT = 0.42, 0.34
LARGEST_SIDE = 16.0
"""Of a panel; if the cells do not fit, they shrink. All lengths are in inches."""
NUMBER_WIDTH, LINE_HEIGHT = 0.2, 0.13
"""The width of a percentage, and the height of a line of small print."""
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
"""Common fonts with Chinese, Japanese and Korean characters."""


def draw_distribution(held: DataDistribution, title: str, file: Path) -> None:
    """Draw both views into a PNG, SVG or PDF file; its size stays limited for any number of clients."""
    if file.suffix.lower() not in FORMATS:
        raise UserError(f"{file}: figures are written as {', '.join(FORMATS)}")
    totals, clients, classes = held.totals(), held.clients, held.classes
    widths = [min(CELL_WIDTH * n, LARGEST_SIDE) for n in (len(clients), len(classes))]
    height = min(CELL_HEIGHT * max(len(clients), len(classes)), LARGEST_SIDE)
    with rc_context({"font.family": fonts()}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from")  # a box in the figure shows it
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
            raise UserError(f"{file}: cannot be written: {error.strerror}") from None


def fonts() -> list[str]:
    """Return matplotlib's own font, and installed fonts for characters that it lacks."""
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
    """Draw how each row is divided among the columns, with percentages and row totals where they fit."""
    (rows, columns), (width, height) = names, cell
    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    numbered = width >= NUMBER_WIDTH and height >= LINE_HEIGHT
    darkest = 100.0 if numbered else float(shares.max())  # with many columns, all shares are small
    sharp = min(cell) * DPI >= 1  # else cells are smaller than pixels: average neighbours
    smoothing = "nearest" if sharp else "auto"
    axes.imshow(shares, cmap=COLOURS, vmin=0, vmax=darkest, aspect="auto", interpolation=smoothing)
    for i, j in np.argwhere(counts) if numbered else ():
        text = f"{shares[i, j]:.0f}" if shares[i, j] >= 0.5 else "<1"
        axes.text(j, i, text, ha="center", va="center", fontsize=7, color="white" if shares[i, j] > 50 else "black")
    if not numbered:
        unit += f", darkest: {darkest:.2g}"
    if height >= LINE_HEIGHT:
        unit += "; row totals at the right"
        for i, total in enumerate(counts.sum(axis=1)):
            axes.annotate(
                f"{total:,}", (1, i), (4, 0), axes.get_yaxis_transform(), "offset points", va="center", **SMALL_PRINT
            )
    axes.set_title(title, fontsize=10, pad=14)
    axes.annotate(unit, (0.5, 1), (0, 3), "axes fraction", "offset points", ha="center", **SMALL_PRINT)
    for axis, labels, room in ((axes.xaxis, columns, width), (axes.yaxis, rows, height)):
        ticks = range(0, len(labels), ceil(LINE_HEIGHT / room))  # if they do not all fit, every second, third, …
        axis.set_ticks(ticks, [shortened(labels[k], LABEL_LENGTH) for k in ticks], fontsize=7)
        for label in axis.get_ticklabels():
            label.set_parse_math(False)  # so that a $ in a name is printed
    axes.tick_params(axis="x", rotation=90)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
