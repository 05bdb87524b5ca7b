"""Draw how the data are distributed, in the paper's two views: where each class goes, and what each client holds."""

import warnings
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from numpy.typing import NDArray

from orchard.data.clients import DataDistribution
from orchard.errors import UserError
from orchard.text import shortened
from orchard.whole import write_output

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


class View(NamedTuple):
    """A panel of the figure."""

    title: str
    unit: str
    rows: list[str]
    columns: list[str]
    counts: NDArray[np.int64]
    """How many samples each row (outer) has in each column (inner)."""
    totals: NDArray[np.int64]
    """How many samples each row has; one may count in several columns."""


def draw_distribution(held: DataDistribution, title: str, file: Path) -> None:
    """Draw both views into a PNG, SVG or PDF file; its size stays limited for any number of clients."""
    if file.suffix.lower() not in FORMATS:
        raise UserError(f"{file}: figures are written as {', '.join(FORMATS)}")
    views = _views(held)
    widths = [min(CELL_WIDTH * len(view.columns), LARGEST_SIDE) for view in views]
    height = min(CELL_HEIGHT * max(len(view.rows) for view in views), LARGEST_SIDE)
    with rc_context({"font.family": fonts()}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from")  # a box in the figure shows it
        figure = Figure(figsize=(3.4 + sum(widths), 2.0 + height), layout="constrained")
        panels = figure.subplots(1, len(views), width_ratios=widths, squeeze=False)[0]
        figure.suptitle(title, parse_math=False)
        for axes, view, width in zip(panels, views, widths, strict=True):
            _draw_shares(axes, view, width / len(view.columns), height / len(view.rows))
        content = BytesIO()
        figure.savefig(content, dpi=DPI, format=file.suffix[1:].lower())
    write_output(file, content.getvalue())


def fonts() -> list[str]:
    """Return matplotlib's own font, and installed fonts for characters that it lacks."""
    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in WIDE_FONTS if name in installed)]


def _views(held: DataDistribution) -> list[View]:
    """Return where each class goes and what each client holds; where samples do not differ, only where they go."""
    task, totals, sizes = held.predicted(), held.totals(), held.sizes()
    if not task.by_class:
        unit = "share of all samples, %"
        return [View("Where the samples go", unit, ["samples"], held.clients, sizes[None], sizes.sum(keepdims=True))]
    noun, unit = task.nouns[0], "share of the client's samples, %"
    goes, whole = f"Where each {noun} goes", totals.sum(axis=0)
    return [
        View(goes, f"share of the {noun}, %", held.classes, held.clients, totals.T, whole),
        View("What each client holds", unit, held.clients, held.classes, totals, sizes),
    ]


def _draw_shares(axes: Axes, view: View, width: float, height: float) -> None:
    """Draw the share of each row that the columns have, with percentages and row totals where they fit."""
    counts, unit = view.counts, view.unit
    shares = 100 * counts / np.maximum(view.totals, 1)[:, None]
    numbered = width >= NUMBER_WIDTH and height >= LINE_HEIGHT
    darkest = 100.0 if numbered else float(shares.max())  # with many columns, all shares are small
    sharp = min(width, height) * DPI >= 1  # else cells are smaller than pixels: average neighbours
    smoothing = "nearest" if sharp else "auto"
    axes.imshow(shares, cmap=COLOURS, vmin=0, vmax=darkest, aspect="auto", interpolation=smoothing)
    for i, j in np.argwhere(counts) if numbered else ():
        text = f"{shares[i, j]:.0f}" if shares[i, j] >= 0.5 else "<1"
        axes.text(j, i, text, ha="center", va="center", fontsize=7, color="white" if shares[i, j] > 50 else "black")
    if not numbered:
        unit += f", darkest: {darkest:.2g}"
    if height >= LINE_HEIGHT:
        unit += "; row totals at the right"
        for i, total in enumerate(view.totals):
            axes.annotate(
                f"{total:,}", (1, i), (4, 0), axes.get_yaxis_transform(), "offset points", va="center", **SMALL_PRINT
            )
    axes.set_title(view.title, fontsize=10, pad=14)
    axes.annotate(unit, (0.5, 1), (0, 3), "axes fraction", "offset points", ha="center", **SMALL_PRINT)
    for axis, labels, room in ((axes.xaxis, view.columns, width), (axes.yaxis, view.rows, height)):
        ticks = range(0, len(labels), ceil(LINE_HEIGHT / room))  # if they do not all fit, every second, third, …
        axis.set_ticks(ticks, [shortened(labels[k], LABEL_LENGTH) for k in ticks], fontsize=7)
        for label in axis.get_ticklabels():
            label.set_parse_math(False)  # so that a $ in a name is printed
    axes.tick_params(axis="x", rotation=90)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
