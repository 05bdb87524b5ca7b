"""The page's sentences and tables as plain HTML, for those who allow it no JavaScript."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from orchard.report.views import Content
from orchard.tasks.task import Measure

WANTS_SCRIPT = (
    "This page draws its figures with JavaScript of its own; please allow it here. Nothing is loaded from elsewhere."
)


def plain(contents: Sequence[Content], data: Sequence[Mapping[str, Any]]) -> str:
    """Return what came out on each data set, in sentences and tables."""
    parts = [f"<p>{WANTS_SCRIPT}</p>"]
    for content, shown in zip(contents, data, strict=True):
        parts += [f"<h2>{escape(shown['title'])}</h2>", *_sentences(shown), *_tables(content.score, shown)]
    left_out = data[0]["left_out"]
    return "\n".join(parts + ([f"<p>Left out: {escape('; '.join(left_out))}.</p>"] if left_out else []))


def _best(shown: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the method with the best mean, whose story is told."""
    measured = [view for view in shown["methods"] if view["best"]]
    best: Mapping[str, Any] = max(measured, key=lambda view: view["best"]["mean"], default=shown["methods"][0])
    return best


def _sentences(shown: Mapping[str, Any]) -> list[str]:
    told = (shown["overview"], _best(shown)["story"])
    return [f"<p>{escape(' '.join(sentences))}</p>" for sentences in told if sentences]


def _tables(score: Measure, shown: Mapping[str, Any]) -> list[str]:
    """Return a table of the methods, one of the silos and, of the best method, those of each silo's classes."""
    names, views = shown["clients"], shown["methods"]
    chosen = {"best": "best round", "last": "last round", "validation": "chosen by validation", "worst": "worst silo"}
    means = [[view["label"], *(_spread(score, view[name]) for name in chosen)] for view in views]
    silos = [
        [name, str(trained), str(tested), *(_client(score, view, i) for view in views)]
        for i, (name, trained, tested) in enumerate(zip(names, shown["trained"], shown["tests"], strict=True))
    ]
    tables = [
        _table(f"Mean {score.title}", ["method", *chosen.values()], means),
        _table("Each silo", ["silo", "training samples", "test cases", *(view["label"] for view in views)], silos),
    ]
    if shown["leaks"]:
        tables.append(_table("What leaks", shown["leaks"]["head"], shown["leaks"]["rows"]))
    return [*tables, *(_confusions(shown, _best(shown)) if shown["counted"] else [])]


def _spread(score: Measure, spread: Mapping[str, Any] | None) -> str:
    if spread is None:
        return "–"
    deviation = spread["deviation"]
    return score.text(spread["mean"]) + ("" if deviation is None else f" ± {score.text(deviation)}")


def _client(score: Measure, view: Mapping[str, Any], i: int) -> str:
    said, interval = score.text(view["clients"][i]), view["intervals"] and view["intervals"][i]
    return said + (f" ({' to '.join(score.text(bound, 0) for bound in interval)})" if interval else "")


def _confusions(shown: Mapping[str, Any], view: Mapping[str, Any]) -> list[str]:
    """Return each silo's test cases by what they are and what its model says, folded away."""
    tables = []
    for name, rows in zip(shown["clients"], view["by_class"] or [], strict=False):
        present = sorted({k for true, given, _ in rows or [] for k in (true, given)})
        counts = {(true, given): str(count) for true, given, count in rows or []}
        heads = [shown["classes"][k] for k in present]
        lines = [[shown["classes"][true], *(counts.get((true, given), "") for given in present)] for true in present]
        title = f"{view['label']}, {name}: test cases by {shown['noun']} (row) and what the model says (column)"
        table = _table("", ["", *heads], lines)
        tables += [f"<details><summary>{escape(title)}</summary>{table}</details>"] if rows else []
    return tables


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
    body = "".join(
        f"<tr><th>{escape(first)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for first, *cells in rows
    )
    caption = f"<h3>{escape(title)}</h3>" if title else ""
    return f'{caption}<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
