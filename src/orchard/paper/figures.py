"""Draw the paper's figures from the files in results/: courses of loss and accuracy, clients, relationships."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

from orchard.paper.protocol import WITHOUT_PENALTY, row_labels
from orchard.paper.reproduce import Cell, Reproduction, Run
from orchard.report.figures import (
    PANEL,
    WIDTH,
    Array,
    draw_bars,
    draw_relationships,
    drawing,
    line_styles,
    name_axes,
    save,
    with_legend,
)

LEFT_OUT = ("fedavg-local", "fedprox-ft", WITHOUT_PENALTY)
"""Rows that lie on others; with the rest each line has a colour of its own."""
TICKS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998)


def draw(found: Reproduction, folder: Path) -> None:
    """Draw what the runs of a Table 1 have kept into a folder."""
    names = [f"client {client}" for client in range(found.shared["clients"])]
    with drawing():
        save(_courses(found), folder / f"{found.name}.svg")
        if relationships := found.relationships:
            save(draw_relationships(names, relationships), folder / f"{found.name}-relationships.svg")


def _courses(found: Reproduction) -> Figure:
    """Draw training loss and mean client test accuracy by round, and each client's accuracy: means over seeds."""
    cells = [cell for cell in found.cells if cell.label not in LEFT_OUT]
    labels = [label for label in row_labels("table1", found.shared["clients"]) if label not in LEFT_OUT]
    styles = dict(zip(labels, line_styles(labels), strict=True))
    newer = [cell for cell in cells if all(run.loss and run.clients for run in cell.runs)]
    figure = Figure(figsize=(WIDTH, (2 if newer else 1) * PANEL + 0.3), layout="constrained")
    panels = figure.subplot_mosaic([["accuracy", "loss"], ["clients", "clients"]] if newer else [["accuracy"]])
    accuracy = panels["accuracy"]
    for cell in cells:
        _line(accuracy, cell.label, _over_seeds(cell, lambda run: run.curve), styles)
    _open_upper_end(accuracy)
    name_axes(accuracy, "round", "mean client test accuracy")
    if newer:
        for cell in newer:
            _line(panels["loss"], cell.label, _over_seeds(cell, lambda run: run.loss), styles)
        name_axes(panels["loss"], "round", "training loss")
        _bars(panels["clients"], newer, [styles[cell.label] for cell in newer])
    return with_legend(figure, accuracy)


def _line(axes: Axes, label: str, values: Array, styles: Mapping[str, Mapping[str, Any]]) -> None:
    every = max(1, len(values) // 8)
    axes.plot(np.arange(1, len(values) + 1), values, label=label, markevery=every, **styles[label])


def _open_upper_end(axes: Axes) -> None:
    """Show the points near 100 %, where methods end, as far apart as those where they begin."""
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=np.float64) for line in axes.lines])
    axes.set_yscale("logit")
    low, high = max(0.9 * float(values.min()), 0.02), min(1 - 0.8 * (1 - float(values.max())), 0.999)
    ticks = [tick for tick in TICKS if low <= tick <= high]
    axes.set_yticks(ticks, [f"{100 * tick:g}%" for tick in ticks])
    axes.set_ylim(low, high)
    axes.yaxis.set_minor_locator(NullLocator())


def _bars(axes: Axes, cells: Sequence[Cell], styles: Sequence[Mapping[str, Any]]) -> None:
    columns = {cell.label: _over_seeds(cell, lambda run: run.clients) for cell in cells}
    draw_bars(axes, [str(client) for client in range(len(next(iter(columns.values()))))], columns, styles, 0)
    axes.tick_params(axis="x", rotation=0)
    name_axes(axes, "", "test accuracy, best round")
    axes.set_xlabel("client")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))


def _over_seeds(cell: Cell, of: Callable[[Run], Sequence[float | None]]) -> Array:
    means: Array = np.mean([np.array(of(run), dtype=np.float64) for run in cell.runs], axis=0)
    return means
