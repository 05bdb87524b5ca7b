"""A comparison as text: for a terminal, as CSV, Markdown or LaTeX."""

import csv
import io
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from orchard.runs.comparison import Comparison, Row

HEADINGS = (
    "method",
    "BMCTA",
    "last round",
    "by validation",
    "worst client",
    "worse than alone",
    "MB up",
    "MB down",
    "seconds",
)


def cells(row: Row) -> list[str]:
    """Return a row as text: accuracies in percent, traffic in megabytes per client and round."""
    return [
        row.label,
        *(str(s) for s in (row.bmcta, row.last, row.validation_selected, row.worst_client)),
        "–" if row.worse_than_alone is None else f"{round(row.worse_than_alone, 1):g} of {len(row.clients)}",
        f"{row.bytes_up / 1e6:.2f}",
        f"{row.bytes_down / 1e6:.2f}",
        f"{row.seconds:.0f}",
    ]


def rich_table(rows: Sequence[Row]) -> Table:
    """Return the table for a terminal, the best BMCTA in bold."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "method" else "right")
    best = max(row.bmcta.mean for row in rows)
    for row in rows:
        table.add_row(*map(Text, cells(row)), style="bold" if row.bmcta.mean == best else "")
    return table


def gains_table(comparison: Comparison, alone: Row) -> Table:
    """Return each client's accuracy when training alone, and each method's gain over it in percentage points."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("client")
    table.add_column("alone", justify="right")
    others = [row for row in comparison.rows if row is not alone]
    for row in others:
        table.add_column(Text(row.label), justify="right")
    for i, name in enumerate(comparison.clients):
        gains = [100 * (row.clients[i] - alone.clients[i]) for row in others]
        table.add_row(Text(name), f"{100 * alone.clients[i]:.1f}", *(_signed(gain) for gain in gains))
    return table


def relationship_table(comparison: Comparison, matrix: Sequence[Sequence[float]]) -> Table:
    """Return how much each client (row) takes from each (column), in percent; members of a group side by side."""
    groups = comparison.groups
    order = sorted(range(len(matrix)), key=lambda i: (groups[i] if groups else 0, i))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("")
    for j in order:
        table.add_column(str(j), justify="right", no_wrap=True)
    for i in order:
        name = comparison.clients[i] + (f", group {groups[i]}" if groups else "")
        table.add_row(Text(name), *(_share(matrix[i][j], itself=i == j) for j in order))
    return table


def _share(p: float, *, itself: bool) -> Text:
    percent = round(100 * p)
    style = "bold" if itself else "green" if percent > 0 else "red" if percent < 0 else "dim"
    return Text(str(percent) if percent else "·", style=style)


def _signed(gain: float) -> Text:
    text = f"{gain:+.1f}"
    if text in ("+0.0", "-0.0"):
        return Text("0.0")
    return Text(text, style="green" if gain > 0 else "red")


def as_csv(rows: Sequence[Row]) -> str:
    """Return the table as CSV in full precision; accuracies are fractions, traffic is in bytes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    spreads = ("bmcta", "last", "validation_selected", "worst_client")
    deviations = [name for spread in spreads for name in (spread, f"{spread}_sd")]
    writer.writerow(["method", *deviations, "worse_than_alone", "bytes_up", "bytes_down", "seconds"])
    for row in rows:
        values = [value for name in spreads for value in (getattr(row, name).mean, getattr(row, name).deviation)]
        writer.writerow([row.label, *values, row.worse_than_alone, row.bytes_up, row.bytes_down, row.seconds])
    return text.getvalue()


def as_markdown(rows: Sequence[Row]) -> str:
    """Return the table as Markdown."""
    lines = [HEADINGS, ("---", *("---:" for _ in HEADINGS[1:])), *(cells(row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def as_latex(rows: Sequence[Row]) -> str:
    """Return the table as LaTeX, for the booktabs package; the best BMCTA in bold."""
    best = max(row.bmcta.mean for row in rows)
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(HEADINGS) - 1)}}}", r"\toprule", _latex_line(HEADINGS), r"\midrule"]
    for row in rows:
        line = [_escaped(cell) for cell in cells(row)]
        if row.bmcta.mean == best:
            line[1] = rf"\textbf{{{line[1]}}}"
        lines.append(_latex_line(line))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _latex_line(texts: Sequence[str]) -> str:
    return " & ".join(texts) + r" \\"


def _escaped(text: str) -> str:
    for character in "&%$#_{}":
        text = text.replace(character, "\\" + character)
    return text.replace("±", r"$\pm$").replace("–", "--")
