"""A panel as text, CSV, Markdown or a page, and the page of the documentation that is made from a stored one.

python -m orchard.report.panel results docs/choosing.md
"""

import csv
import io
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import mean

from orchard.runs.panel import LAST_ROUNDS, Panel, PanelCell

Rows = Sequence[Sequence[str]]
"""A table: its head, then its rows."""

ABOUT = (
    "Accuracies in %: means over clients at the round that validation chooses, ± over seeds (first models, batches); "
    f"settled: the mean of the last {LAST_ROUNDS} rounds, which nobody chooses. "
    "Regret, in points: by how much the best other method is ahead. Worse than "
    "alone: clients who do, by more than two standard errors of their test sets. –: not measured."
)
STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:62rem;padding:0 1rem;color:#222;"
    "background:#fff}h1{font-size:1.5rem}h2{font-size:1.1rem;margin:2rem 0 .4rem}.wide{overflow-x:auto}"
    "table{border-collapse:collapse}th,td{padding:.25rem .7rem;text-align:right;white-space:nowrap;"
    "border-bottom:1px solid #8884}th:first-child,td:first-child{text-align:left}.best{font-weight:700}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}}"
)


def as_csv(panel: Panel) -> str:
    """Return a line for every method and federation; accuracies and regrets are shares."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    spreads = ("accuracy", "balanced_accuracy", "auroc", "settled")
    names = [name for spread in spreads for name in (spread, f"{spread}_sd")]
    writer.writerow(["method", "federation", *names, "regret", "settled_regret", "worse_than_alone", "clients"])
    for method, cells in panel.cells.items():
        for federation, cell in cells.items():
            found = [getattr(cell, spread) for spread in spreads]
            values = [value for one in found for value in ((one.mean, one.deviation) if one else (None, None))]
            rest = [cell.regret, cell.settled_regret, cell.worse_than_alone, cell.clients]
            writer.writerow([method, federation, *values, *rest])
    return text.getvalue()


def as_text(panel: Panel) -> str:
    """Return tables for a terminal."""
    blocks = [f"{title}\n{_aligned(rows)}" for title, rows in tables(panel)]
    return "\n".join([*blocks, ABOUT, ""])


def as_markdown(panel: Panel) -> str:
    """Return tables in Markdown."""
    blocks = [f"### {title}\n\n{markdown(rows)}" for title, rows in tables(panel)]
    return "\n".join([*blocks, ABOUT, ""])


def as_page(panel: Panel) -> str:
    """Return a page that needs nothing else."""
    blocks = [f"<h2>{escape(title)}</h2>\n{_html(rows)}" for title, rows in tables(panel)]
    notes = [f"<p>Left out: {escape(reason)}</p>" for reason in panel.left_out.values()]
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    title = "Which method, where?"
    parts = [f"{head}<title>{title}</title><style>{STYLE}</style><h1>{title}</h1>", f"<p>{ABOUT}</p>", *blocks, *notes]
    return "\n".join(parts) + "\n"


def tables(panel: Panel) -> list[tuple[str, Rows]]:
    """Return the table over all federations, and one for each, with their titles."""
    each = [(federation, _federation_rows(panel, federation)) for federation in panel.federations()]
    return [("Over all federations", regret_rows(panel)), *each]


def regret_rows(panel: Panel) -> Rows:
    """Return each method's regrets over all federations, the smallest mean first."""
    rows = []
    for method in panel.ranking():
        if not panel.is_complete(method):
            rows.append([method, *["–"] * 5])
            continue
        chosen, settled, worse = (
            panel.regrets(method),
            panel.regrets(method, settled=True),
            panel.worse_than_alone(method),
        )
        figures = [mean(chosen), max(chosen), mean(settled), max(settled)]
        rows.append([method, *map(_points, figures), "–" if worse is None else str(worse)])
    head = ["method", "mean regret", "largest", "settled: mean", "largest", "worse than alone"]
    return [head, *rows]


def accuracy_rows(panel: Panel) -> Rows:
    """Return every method's accuracy on every federation, the smallest mean regret first."""
    head = ["method", *panel.federations()]
    rows = [[m, *(_accuracy(panel.cells[m].get(f)) for f in panel.federations())] for m in panel.ranking()]
    return [head, *rows]


def _accuracy(cell: PanelCell | None) -> str:
    return f"{100 * cell.accuracy.mean:.1f}" if cell else "–"


def _federation_rows(panel: Panel, federation: str) -> Rows:
    measured = [method for method, cells in panel.cells.items() if federation in cells]
    methods = sorted(measured, key=lambda method: panel.cells[method][federation].regret)
    head = ["method", "accuracy", "balanced", "AUROC", "regret", "settled", "regret", "worse than alone"]
    return [head, *([method, *_texts(panel.cells[method][federation])] for method in methods)]


def _texts(cell: PanelCell) -> list[str]:
    worse = "–" if cell.worse_than_alone is None else f"{cell.worse_than_alone} of {cell.clients}"
    measures = (cell.accuracy, cell.balanced_accuracy, cell.auroc)
    chosen = [*(str(spread or "–") for spread in measures), _points(cell.regret)]
    return [*chosen, str(cell.settled), _points(cell.settled_regret), worse]


def _points(share: float) -> str:
    return f"{round(100 * share, 2) + 0.0:+.2f}"  # no minus before zero


def markdown(rows: Rows) -> str:
    """Return a table in Markdown."""
    lines = [rows[0], ["---", *("---:" for _ in rows[0][1:])], *rows[1:]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _aligned(rows: Rows) -> str:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))] for row in rows)
    return "".join(f"{'  '.join(line)}\n" for line in lines)


def _html(rows: Rows) -> str:
    head = "".join(f"<th>{escape(cell)}" for cell in rows[0])
    body = [
        f"<tr{' class=best' if k == 0 else ''}>" + "".join(f"<td>{escape(cell)}" for cell in row)
        for k, row in enumerate(rows[1:])
    ]
    return f'<div class="wide"><table><tr>{head}{"".join(body)}</table></div>'


def document(folder: Path) -> str:
    """Return the page of the documentation: what is written by hand, and the stored panel's tables in it."""
    panel = Panel.read(folder / "panel.json")
    text = (folder / "choosing.md").read_text("utf-8")
    for name, rows in {"REGRETS": regret_rows(panel), "ACCURACIES": accuracy_rows(panel)}.items():
        text = text.replace(f"{{{name}}}\n", markdown(rows))
    each = "\n".join(f"### {title}\n\n{markdown(rows)}" for title, rows in tables(panel)[1:])
    return text.replace("{ABOUT}", ABOUT).replace("{EACH}\n", each)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(document(Path(sys.argv[1])), "utf-8")
