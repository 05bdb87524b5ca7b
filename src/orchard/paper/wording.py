"""A reproduced table as text: its rows, the accuracy over the rounds, and which of the paper's claims hold."""

from collections.abc import Mapping
from statistics import mean

from orchard.paper.protocol import OWN, WITHOUT_PENALTY
from orchard.paper.reproduce import Cell, Reproduction
from orchard.paper.tuning import RATES, searched

APPLE = (WITHOUT_PENALTY, "apple")
NOT_PERSONALISED = ("separate", "fedavg")
ROUNDS_SHOWN = (1, 5, 10, 20, 40, 60, 80, 120)


def table_rows(found: Reproduction) -> list[list[str]]:
    """Return the table's rows with accuracies in %, headings first."""
    rows = [["method", "published", "ours", "difference", "last round", "by validation"]]
    for cell in found.cells:
        theirs = "–" if cell.published is None else f"{100 * cell.published:.2f}"
        apart = "–" if cell.difference is None else _points(cell.difference)
        rows.append([cell.label, theirs, str(cell.bmcta), apart])
        rows[-1] += [str(cell.over_seeds(figure)) for figure in ("last", "validation_selected")]
    if found.tuned:
        rows[0].append("chosen")
        for row, cell in zip(rows[1:], found.cells, strict=True):
            row.append(_chosen(cell))
    return rows


def course_rows(found: Reproduction) -> list[list[str]]:
    """Return the mean client test accuracy after some of the rounds, in %, headings first."""
    last = min(len(run.curve) for cell in found.cells for run in cell.runs)
    after = [number for number in ROUNDS_SHOWN if number < last] + [last]
    rows = [["after rounds", *map(str, after)]]
    for cell in found.cells:
        means = [mean(run.curve[number - 1] for run in cell.runs) for number in after]
        rows.append([cell.label, *(f"{100 * value:.1f}" for value in means)])
    return rows


def _chosen(cell: Cell) -> str:
    """Return the parameters that tuning chose."""
    names = (*RATES, *searched(cell.parameters["name"], cell.parameters))
    return " ".join(f"{name}={cell.parameters[name]}" for name in names)


def claims(found: Reproduction) -> list[str]:
    """Return for each of the paper's claims whether it holds in our results, and in the published ones."""
    answers = _about_methods if found.table == "table1" else _about_budgets
    cells = [cell for cell in found.cells if cell.label not in OWN]
    ours = answers({cell.label: cell.bmcta.mean for cell in cells})
    known = {cell.label: cell.published for cell in cells if cell.published is not None}
    theirs = answers(known) if len(known) == len(cells) else {}
    return [
        f"{question} {answer}." + (f" Published: {theirs[question]}." if theirs else "")
        for question, answer in ours.items()
    ]


def _about_methods(bmcta: Mapping[str, float]) -> dict[str, str]:
    apple = max(APPLE, key=lambda label: bmcta[label])
    rival = max((label for label in bmcta if label not in APPLE), key=lambda label: bmcta[label])
    lead = bmcta[apple] - bmcta[rival]
    below = [label for label in bmcta if label not in NOT_PERSONALISED and bmcta[label] <= bmcta["fedavg"]]
    exceptions = f", not {', '.join(below)}" if below else ""
    return {
        "APPLE first?": f"{_yes(lead > 0)}: {apple} is {_points(lead)} points from the best other, {rival}",
        "Every personalised method above FedAvg?": f"{_yes(not below)}{exceptions}",
    }


def _about_budgets(bmcta: Mapping[str, float]) -> dict[str, str]:
    numbers = sorted({int(label.rpartition("-")[2]) for label in bmcta}, reverse=True)
    most, least = numbers[0], numbers[-1]
    below = [str(m) for m in numbers if bmcta[f"apple-{m}"] <= bmcta[f"fedfomo-{m}"]]
    answers = {}
    for name, method in (("APPLE", "apple"), ("FedFomo", "fedfomo")):
        change = bmcta[f"{method}-{least}"] - bmcta[f"{method}-{most}"]
        answers[f"{name} with M = {least} instead of M = {most}:"] = f"{_points(change)} points"
    exceptions = f", not at M = {', '.join(below)}" if below else ""
    return {**answers, "APPLE above FedFomo at every budget?": f"{_yes(not below)}{exceptions}"}


def _points(difference: float) -> str:
    """Return a difference in percentage points; +0.00 rather than -0.00."""
    return f"{round(100 * difference, 2) + 0.0:+.2f}"


def _yes(holds: bool) -> str:
    return "Yes" if holds else "No"
