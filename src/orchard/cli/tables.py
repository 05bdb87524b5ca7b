"""A comparison as text: for a terminal, as CSV, Markdown or LaTeX."""

import csv
import io
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from orchard.cli.data_tables import plain_table
from orchard.runs.comparison import Comparison, Row, cells, headings


def rich_table(comparison: Comparison) -> Table:
    """Return the table for a terminal, the best mean in bold."""
    table = plain_table(*headings(comparison.score))
    best = comparison.best().bmcta.mean
    for row in comparison.rows:
        table.add_row(*map(Text, cells(row, comparison.score)), style="bold" if row.bmcta.mean == best else "")
    return table


def gains_table(comparison: Comparison, alone: Row) -> Table:
    """Return each client's score when training alone, and each method's gain over it, in points of percentages."""
    others = [row for row in comparison.rows if row is not alone]
    table = plain_table("client", "alone", *(row.label for row in others))
    for i, name in enumerate(comparison.clients):
        gains = [comparison.score.difference(row.clients[i] - alone.clients[i]) for row in others]
        own = comparison.score.text(alone.clients[i]).removesuffix(" %")
        table.add_row(Text(name), own, *(_coloured(gain) for gain in gains))
    return table


def relationship_table(comparison: Comparison, matrix: Sequence[Sequence[float]]) -> Table:
    """Return how much each client (row) takes from each (column), in percent; members of a group side by side.

    Columns have clients' numbers, since names are too wide.
    """
    groups = comparison.groups
    order = sorted(range(len(matrix)), key=lambda i: (groups[i] if groups else 0, i))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("")
    for j in order:
        table.add_column(str(j), justify="right", no_wrap=True)
    for i in order:
        number = "" if comparison.clients[i] == f"client {i}" else f"{i}: "
        name = number + comparison.clients[i] + (f", group {groups[i]}" if groups else "")
        table.add_row(Text(name), *(_share(matrix[i][j], itself=i == j) for j in order))
    return table


def _share(p: float, *, itself: bool) -> Text:
    percent = round(100 * p)
    style = "bold" if itself else "green" if percent > 0 else "red" if percent < 0 else "dim"
    return Text(str(percent) if percent else "·", style=style)


def _coloured(gain: str) -> Text:
    if gain == "–":
        return Text(gain)
    if float(gain) == 0:
        return Text(gain[1:])
    return Text(gain, style="green" if float(gain) > 0 else "red")


def as_csv(comparison: Comparison) -> str:
    """Return the table as CSV in full precision; scores are fractions, traffic is in bytes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    spreads = ("bmcta", "last", "validation_selected", "worst_client")
    deviations = [name for spread in spreads for name in (spread, f"{spread}_sd")]
    writer.writerow(["method", *deviations, "worse_than_alone", "bytes_up", "bytes_down", "seconds"])
    for row in comparison.rows:
        values = [value for name in spreads for value in (getattr(row, name).mean, getattr(row, name).deviation)]
        writer.writerow([row.label, *values, row.worse_than_alone, row.bytes_up, row.bytes_down, row.seconds])
    return text.getvalue()


def as_markdown(comparison: Comparison) -> str:
    """Return the table as Markdown."""
    head = headings(comparison.score)
    rows = [cells(row, comparison.score) for row in comparison.rows]
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def as_latex(comparison: Comparison) -> str:
    """Return the table as LaTeX, for the booktabs package; the best mean in bold."""
    best, head = comparison.best().bmcta.mean, [_escaped(heading) for heading in headings(comparison.score)]
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule", _latex_line(head), r"\midrule"]
    for row in comparison.rows:
        line = [_escaped(cell) for cell in cells(row, comparison.score)]
        if row.bmcta.mean == best:
            line[1] = rf"\textbf{{{line[1]}}}"
        lines.append(_latex_line(line))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _latex_line(texts: Sequence[str]) -> str:
    return " & ".join(texts) + r" \\"


def _escaped(text: str) -> str:
    for character in "&%$#_{}":
        text = text.replace(character, "\\" + character)
    return text.replace("±", r"$\pm$").replace("–", "--").replace("²", "$^2$")
