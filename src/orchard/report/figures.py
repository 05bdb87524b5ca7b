"""Draw the paper's figures for the user's runs: convergence, scores by client, relationships, data distribution."""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import cycle, islice
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from orchard.errors import UserError
from orchard.report.content import contents_of
from orchard.report.distribution import draw_distribution, fonts
from orchard.report.views import Content, Relationships, Values
from orchard.runs.figures import mean_over_clients
from orchard.runs.folder import RunFolder
from orchard.runs.listing import found_runs
from orchard.text import shortened
from orchard.whole import write_output

Array = NDArray[np.float64]
WIDTH = 7.0
"""Width of a page between its margins, in inches."""
PANEL = 2.2
LEGEND_ROOM = 0.22
"""Height of a line of the legend, in inches."""
BANDS_SHOWN = 3
"""With more methods than this, their bands would hide one another."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000", "#56B4E9", "#7648C0")
"""Okabe and Ito's colours, with violet for yellow: colour-blind people can tell them apart. In grey print, the dashes
and markers help."""
ALONE = "#7F7F7F"
DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v")
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "0.9",
    "axes.axisbelow": True,
    "lines.linewidth": 1.2,
    "lines.markersize": 3,
    "text.parse_math": False,  # so that a $ in a name is printed
    "pdf.fonttype": 42,  # text stays text, as publishers ask
    "svg.fonttype": "none",
    "svg.hashsalt": "orchard",  # equal figures give equal files
}


def write_figures(runs: Sequence[Path], folder: Path, kind: str) -> tuple[list[Path], list[str]]:
    """Draw all figures of some runs into a folder; return their files, and which runs are not shown, and why."""
    contents = contents_of([RunFolder(run) for run in found_runs(runs)])
    files = []
    for content in contents:  # on several data sets: a folder for each
        files += _drawn(content, folder / _file_name(content.title) if len(contents) > 1 else folder, kind)
    return files, contents[0].left_out


def _drawn(content: Content, folder: Path, kind: str) -> list[Path]:
    """Draw all figures of runs on the same data."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with drawing():
            files = [save(figure, folder / f"{name}.{kind}") for name, figure in _figures(content)]
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}") from None
    data = folder / f"data.{kind}"
    draw_distribution(content.distribution, content.title, data)
    return [*files, data]


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.=-]+", "-", text)[:60]


@contextmanager
def drawing() -> Iterator[None]:
    """Give figures the house style."""
    with rc_context({**STYLE, "font.family": fonts()}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from")  # a box in the figure shows it
        yield


def _figures(content: Content) -> Iterator[tuple[str, Figure]]:
    yield "convergence", _convergence(content)
    yield "clients", _clients(content)
    names: set[str] = set()
    for view in content.methods:
        if view.relationships:
            name = "relationships-" + _file_name(view.label)
            name += f"-{len(names)}" if name in names else ""
            names.add(name)
            yield name, draw_relationships(content.distribution.clients, view.relationships)


def save(figure: Figure, file: Path) -> Path:
    """Write a figure in the format that the file's name ends with."""
    # No date, so that equal figures give equal files.
    dateless: dict[str, dict[str, Any]] = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    content = BytesIO()
    figure.savefig(content, dpi=300, format=file.suffix[1:], metadata=dateless.get(file.suffix))
    write_output(file, content.getvalue())
    return file


def line_styles(methods: Sequence[str]) -> list[dict[str, Any]]:
    """Return how the line of each method looks; training alone is grey."""
    looks = _looks(len(methods))
    return [{"color": ALONE, "linestyle": ":"} if method == "separate" else next(looks) for method in methods]


def _looks(count: int) -> Iterator[dict[str, Any]]:
    """Yield combinations of colour, dashes and marker that can be told apart."""
    for k, colour in enumerate(islice(cycle(COLOURS), count)):
        yield {"color": colour, "linestyle": DASHES[(k + k // 8) % 4], "marker": MARKERS[k % 5]}


def _convergence(content: Content) -> Figure:
    """Draw training loss and test score against rounds, as the paper does: means over seeds.

    The band is ± one standard deviation over seeds; of a single run it spans the clients.
    """
    figure = Figure(figsize=(WIDTH, PANEL + 0.3), layout="constrained")
    left, right = figure.subplots(1, 2)
    for view, style in zip(content.methods, line_styles([view.method for view in content.methods]), strict=True):
        scores, losses = (np.array(values, dtype=np.float64) for values in (view.scores, view.loss))
        rounds, means = np.arange(1.0, len(scores) + 1), mean_over_clients(scores)
        every = max(1, len(rounds) // 8)
        left.plot(rounds, losses, label=view.label, markevery=every, **style)
        right.plot(rounds, means, markevery=every, **style)
        band = {"color": style["color"], "alpha": 0.12, "linewidth": 0}
        if view.runs:
            _band(left, rounds, losses, view.loss_deviations, band)
            _band(right, rounds, means, view.score_deviations, band)
        elif len(content.methods) <= BANDS_SHOWN:
            low, high = (np.where(np.isnan(means), np.nan, edge(scores)) for edge in (_lowest, _highest))
            right.fill_between(rounds, low, high, **band)
    name_axes(left, "round", "training loss")
    right.set_ylim(bottom=max(right.get_ylim()[0], content.score.floor()))
    name_axes(right, "round", f"mean client test {content.score.title}")
    _in_percent(right, content)
    return with_legend(figure, left)


def _band(axes: Axes, rounds: Array, means: Array, deviations: Values | None, look: dict[str, Any]) -> None:
    spread = np.array(deviations, dtype=np.float64)
    axes.fill_between(rounds, means - spread, means + spread, **look)


def _clients(content: Content) -> Figure:
    """Draw each client's test score as bars, method by method, as the paper does: means over seeds."""
    names, views = content.distribution.clients, content.methods
    figure = Figure(figsize=(max(WIDTH, 0.07 * len(names) * len(views)), PANEL + 0.3), layout="constrained")
    axes = figure.subplots()
    columns = {view.label: np.array(view.clients, dtype=np.float64) for view in views}
    draw_bars(axes, names, columns, line_styles([view.method for view in views]), content.score.floor())
    name_axes(axes, "", f"test {content.score.title}")
    _in_percent(axes, content)
    return with_legend(figure, axes)


def draw_bars(
    axes: Axes, names: Sequence[str], columns: Mapping[str, Array], styles: Sequence[Mapping[str, Any]], floor: float
) -> None:
    """Draw a group of bars for each client, with one for each method."""
    places, bar = np.arange(len(names)), 0.8 / len(columns)
    for k, ((label, values), style) in enumerate(zip(columns.items(), styles, strict=True)):
        offset = (k - (len(columns) - 1) / 2) * bar
        axes.bar(places + offset, values, bar, color=style["color"], label=label, edgecolor="white", linewidth=0.3)
    lowest = np.nanmin(list(columns.values()))
    bottom = lowest - 0.1 * (1 - lowest) - 0.02  # the differences are near the top
    axes.set_ylim(max(bottom, 0 if lowest >= 0 else floor), 1)
    axes.set_xticks(places, [shortened(name, 18) for name in names], rotation=30 if len(names) > 8 else 0)
    axes.grid(visible=False, axis="x")


def draw_relationships(names: Sequence[str], relationships: Relationships) -> Figure:
    """Draw relationships against rounds: each client's to itself in one panel, then a panel for each client."""
    rounds, matrices = relationships.rounds, np.array(relationships.matrices)
    columns = min(4, len(names) + 1)
    rows = ceil((len(names) + 1) / columns)
    size = (max(WIDTH * columns / 4, 3.4), 1.35 * rows + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, squeeze=False).flatten()
    views = [("self-relationships", matrices.diagonal(axis1=1, axis2=2))]
    views += [(f"of {shortened(name, 22)}", matrices[:, i]) for i, name in enumerate(names)]
    for axes, (title, lines) in zip(panels, views, strict=False):
        for name, values, look in zip(names, lines.T, _looks(len(names)), strict=True):
            axes.plot(rounds, values, label=name, markevery=max(1, len(rounds) // 5), **look)
        axes.set_title(title)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    for axes in panels[len(views) :]:
        axes.set_visible(False)
    for axes in panels[len(views) - columns : len(views)]:  # the lowest panel of each column
        axes.tick_params(labelbottom=True)
    figure.supxlabel("round", fontsize=8)
    return with_legend(figure, panels[0])


def _in_percent(axes: Axes, content: Content) -> None:
    if content.score.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))


def _lowest(scores: Array) -> Array:
    lowest: Array = np.fmin.reduce(scores, axis=1)  # ignores NaN
    return lowest


def _highest(scores: Array) -> Array:
    highest: Array = np.fmax.reduce(scores, axis=1)
    return highest


def name_axes(axes: Axes, x: str, y: str) -> None:
    """Name both axes; the first counts rounds, if it has a name."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if x:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def with_legend(figure: Figure, axes: Axes) -> Figure:
    """Add one legend above all panels, and increase the figure's height to fit it."""
    handles, labels = axes.get_legend_handles_labels()
    labels = [shortened(label, 30) for label in labels]
    width, height = figure.get_size_inches()
    columns = max(1, min(len(labels), int(width / (0.55 + 0.06 * max(map(len, labels))))))
    if len(labels) > 1:
        figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False)
        figure.set_size_inches(width, height + LEGEND_ROOM * ceil(len(labels) / columns))
    return figure
