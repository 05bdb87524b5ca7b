"""A result as people look at it in Python: a data frame, a plot, a small page in a notebook."""

from collections.abc import Mapping, Sequence
from html import escape
from importlib import import_module
from itertools import product
from math import isnan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from orchard.errors import UserError
from orchard.experiment import RunOptions
from orchard.runs.metrics import PARTS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from orchard.core.evaluation import Scores
    from orchard.method import Moment
    from orchard.runs.figures import Array
    from orchard.runs.result import Result

SPARK_WIDTH, SPARK_HEIGHT = 90, 18
CELL = "padding:0 .6em;text-align:right"
MATRIX_CLIENTS = 20
"""The relationships of so many clients are shown."""


def to_pandas(result: "Result") -> "pd.DataFrame":
    """Return a row for every round, client and moment."""
    _need_pandas()
    import pandas as pd

    columns = _measured(result)
    rows = [
        {"round": entry.round, "client": name, "moment": moment, "loss": loss, **_values(scores, columns)}
        for entry in result.rounds
        for moment in result.moments()
        for name, loss, scores in zip(result.distribution.clients, entry.loss, getattr(entry, moment), strict=True)
    ]
    return pd.DataFrame(rows, columns=["round", "client", "moment", "loss", *columns])


def scores_frame(runs: "Sequence[tuple[Mapping[str, object], Result, Moment]]") -> "pd.DataFrame":
    """Return a row for every run, round and client, at the moment that counts, after what tells the run."""
    _need_pandas()
    import pandas as pd

    about, first, _ = runs[0]
    columns = _measured(first)
    rows = [
        {**told, "round": entry.round, "client": name, **_values(scores, columns)}
        for told, result, moment in runs
        for entry in result.rounds
        for name, scores in zip(result.distribution.clients, getattr(entry, moment), strict=True)
    ]
    return pd.DataFrame(rows, columns=[*about, "round", "client", *columns])


def _need_pandas() -> None:
    try:
        import_module("pandas")
    except ImportError:
        raise UserError("to_pandas: needs pandas; install it with: pip install 'orchard[tables]'") from None


def _measured(result: "Result") -> list[str]:
    return [f"{part} {name}" for part, name in product(PARTS, result.task.measures)]


def _values(scores: "Scores | None", columns: Sequence[str]) -> dict[str, float | None]:
    """Return a client's figures by column; empty ones if it was absent."""
    split = [column.split(" ", 1) for column in columns]
    return {f"{part} {name}": getattr(scores, part)[name] if scores else None for part, name in split}


def plot(result: "Result", axes: "Axes | None" = None) -> "Axes":
    """Draw each client's test score by round, and their mean; return the axes."""
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    axes = axes or pyplot.subplots()[1]
    measure, scores = result.task.measures[result.task.score], _evaluated(result)
    scale = 100 if measure.percent else 1
    rounds = np.arange(1, len(scores) + 1)
    axes.plot(rounds, scale * scores, color="0.75", linewidth=0.8)
    axes.plot(rounds, scale * _means(scores), linewidth=2, label=f"{result.experiment.method.name}, mean over clients")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("rounds")
    axes.set_ylabel(f"test {measure.title}{' in %' if measure.percent else ''}")
    axes.legend()
    return axes


def as_html(result: "Result") -> str:
    """Return a small page: the key figures, a line per client, and who learns from whom."""
    about = ", ".join(f"{name} {value}" for name, value in result.description().items())
    done = f"{len(result.rounds)} of {result.experiment.rounds} rounds"
    parts = [f"<p><b>{escape(about)}</b>, {done}</p>"]
    if result.evaluated_rounds():
        parts += [_figures(result), _clients(result)]
        relationships = result.relationships
        if relationships is not None and len(relationships[0]) <= MATRIX_CLIENTS:
            parts.append(_matrix(relationships[-1], result.distribution.clients))
    return "\n".join(parts)


def write_page(results: "Sequence[Result]", path: Path | str) -> Path:
    """Write the page that shows these runs, in a moment also those that are kept nowhere; return its path."""
    import orchard  # by its front door: the page is made by a room that stands on this one

    with TemporaryDirectory() as home:
        folders = [result.folder or _laid_down(result, Path(home) / str(k)) for k, result in enumerate(results)]
        orchard.write_report(folders, path)
    return Path(path)


def _laid_down(result: "Result", path: Path) -> Path:
    """Write what a page needs of a run into a folder."""
    from orchard.runs.folder import RunFolder

    folder = RunFolder(path)
    path.mkdir()
    folder.create(result, RunOptions(), {"in_memory": True})
    for entry in result.rounds:
        folder.append(entry)
    done = len(result.rounds) == result.experiment.rounds
    folder.write("summary.json", {"state": "finished" if done else "interrupted"})
    return path


def _evaluated(result: "Result") -> "Array":
    return result.scores()[: result.evaluated_rounds()]


def _means(scores: "Array") -> "Array":
    from orchard.runs.figures import mean_over_clients

    return mean_over_clients(scores)


def _figures(result: "Result") -> str:
    measure, figures = result.task.measures[result.task.score], result.figures()
    chosen, best = figures.validation_selected, figures.best
    return (
        f"<p>mean test {measure.title} {measure.text(chosen.score)} at the round that validation chooses "
        f"({chosen.round + 1}), {measure.text(figures.last.score)} at the last, {measure.text(best.score)} at the best "
        f"({best.round + 1})</p>"
    )


def _clients(result: "Result") -> str:
    """Return a table: what each client has, how well its model does, how that came about, who helped it."""
    scores, measure = _evaluated(result), result.task.measures[result.task.score]
    helped = result.relationships is not None
    heads = ["client", "samples", measure.title, "by round", *(["helped most by"] if helped else [])]
    rows = []
    for i, client in enumerate(result.clients):
        cells = [escape(client.name), str(client.samples), measure.text(client.score), _spark(scores[:, i])]
        rows.append([*cells, *([escape(client.helped_by)] if helped else [])])
    return table(heads, rows)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table for a notebook; its cells are HTML."""
    head = "".join(f'<th style="{CELL}">{name}</th>' for name in heads)
    body = "".join("<tr>" + "".join(f'<td style="{CELL}">{cell}</td>' for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _spark(values: "Array") -> str:
    """Return a client's scores by round as a line, from 0 (or the lowest score) to 1."""
    known = [(r, v) for r, v in enumerate(values.tolist()) if not isnan(v)]
    if not known:
        return ""
    low = min(0.0, *(v for _, v in known))
    width = SPARK_WIDTH / max(1, len(values) - 1)
    points = " ".join(f"{r * width:.1f},{(SPARK_HEIGHT - 1) * (1 - (v - low) / (1 - low)) + 0.5:.1f}" for r, v in known)
    return (
        f'<svg width="{SPARK_WIDTH}" height="{SPARK_HEIGHT}" role="img" aria-label="scores by round">'
        f'<polyline points="{points}" fill="none" stroke="currentColor"/></svg>'
    )


def _matrix(relationships: "Array", names: Sequence[str]) -> str:
    """Return who learns from whom: the stronger, the darker; negative ones are red."""
    largest = max(float(np.abs(relationships).max()), 1e-12)
    rows = []
    for name, row in zip(names, relationships.tolist(), strict=True):
        cells = "".join(
            _shade(value, abs(value) / largest, f"{name} from {other}") for other, value in zip(names, row, strict=True)
        )
        rows.append(f'<tr><th style="{CELL};font-weight:normal">{escape(name)}</th>{cells}</tr>')
    said = "<p>Who learns from whom: what each row takes from each client, in the same order</p>"
    return f"{said}<table>{''.join(rows)}</table>"


def _shade(value: float, strength: float, title: str) -> str:
    colour = "31,119,180" if value >= 0 else "214,39,40"
    style = f"background:rgba({colour},{strength:.2f});width:1.4em;height:1.4em;padding:0"
    return f'<td title="{escape(title)}: {value:.2f}" style="{style}"></td>'
