"""The report page: one HTML file that contains everything and uses no network."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from orchard import __version__
from orchard.report.content import contents_of
from orchard.report.plain import WANTS_SCRIPT, plain
from orchard.report.ranking import apart_from_alone, gain_in_cases, intervals, is_beyond_noise, ranking, uneven
from orchard.report.story import overview, story
from orchard.report.views import Content, MethodView
from orchard.runs.folder import RunFolder
from orchard.runs.listing import found_runs
from orchard.tasks.task import Task
from orchard.whole import write_output

MEANINGS = {
    "classification": "Accuracy is the share of a silo's own test cases that its model gets right.",
    "multilabel": "AUROC is the chance that a test case with a finding gets a higher score than one without, mean over "
    "findings: 0.5 is guessing, 1 is perfect.",
    "regression": "R² is the share of the variance of a silo's own test targets that its model explains: 1 is "
    "perfect, 0 as good as always naming their mean, below 0 worse.",
    "segmentation": "Dice is the overlap of the regions that a silo's model outlines with the true ones, mean over "
    "classes but for the background.",
}
"""What a task's score is, for people who do not train networks."""
SCRIPTS = (
    "charts.js",
    "matrices.js",
    "saving.js",
    "report.js",
    "headline.js",
    "classes.js",
    "helping.js",
    "leaks.js",
    "controls.js",
)


def write_report(runs: Sequence[Path | str], output: Path | str) -> list[str]:
    """Write the page of these runs, or of those in folders of runs; return which are not shown, and why."""
    contents = contents_of([RunFolder(run) for run in found_runs(list(map(Path, runs)))])
    text = whole_page(contents)
    write_output(Path(output), text)
    return contents[0].left_out


def whole_page(contents: Sequence[Content]) -> str:
    """Return the page of these runs, which says the most important without JavaScript, too."""
    data = pages_data(contents)
    return page(data, plain(contents, [data, *data["others"]]))


def pages_data(contents: Sequence[Content]) -> dict[str, Any]:
    """Return everything that a page shows; of runs on several data sets, the first, and the others beside it."""
    first, *others = map(page_data, contents)
    return {**first, "others": others}


def page_data(content: Content) -> dict[str, Any]:
    """Return everything that the page shows of runs on the same data, as values for JSON."""
    task = content.distribution.predicted()
    ranks = ranking(content)
    return {
        "title": content.title,
        "clients": content.distribution.clients,
        "classes": content.distribution.classes,
        "counts": content.distribution.totals().tolist(),
        "noun": task.nouns[0],
        "by_class": task.by_class,
        "counted": task.name == "classification",
        "sizes": content.distribution.sizes().tolist(),
        "trained": content.distribution.samples["train"],
        "tests": content.distribution.samples["test"],
        "commonest": uneven(content),
        "score": score_data(task),
        "overview": overview(content),
        "ranking": asdict(ranks) if ranks else None,
        "left_out": content.left_out,
        "leaks": asdict(content.leaks) if content.leaks else None,
        "methods": [_view_data(content, view) for view in content.methods],
    }


def _view_data(content: Content, view: MethodView) -> dict[str, Any]:
    """Return a method's view with what follows from it; so with each of its runs."""
    clients = range(len(view.clients))
    return {
        **asdict(replace(view, runs=[])),
        "intervals": intervals(content, view),
        "gain_cases": [gain_in_cases(content, view, i) for i in clients] if view.gains else None,
        "beyond_noise": [is_beyond_noise(content, view, i) for i in clients] if view.gains else None,
        "apart_from_alone": apart_from_alone(content, view),
        "story": story(content, view),
        "runs": [_view_data(content, run) for run in view.runs],
    }


def score_data(task: Task) -> dict[str, Any]:
    """Return what the task's score is called, what it means, and how it is drawn."""
    score = task.measures[task.score]
    return {
        "title": score.title,
        "term": score.best_mean(),
        "percent": score.percent,
        "floor": score.floor(),
        "meaning": MEANINGS[task.name],
    }


def page(data: Mapping[str, Any], without_script: str = f"<p>{WANTS_SCRIPT}</p>") -> str:
    """Return the page of these data; if they have a `version`, the page asks its server for newer ones."""
    style, script = _asset("report.css"), "\n".join(map(_asset, SCRIPTS))
    return Template(_asset("template.html")).substitute(
        title=escape(f"Orchard: {data['title']}"),
        version=escape(__version__),
        policy=_policy(style, script),
        style=style,
        without_script=without_script,
        data=as_script(data),
        script=script,
    )


def as_script(data: object) -> str:
    """Return JSON for a script element, escaped so that no name or value can end the element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(style: str, script: str) -> str:
    """Return the content security policy: the browser allows only this style and script, and loads nothing else."""
    sources = {"style-src": _hash(style), "script-src": _hash(script), "connect-src": "'self'", "img-src": "data:"}
    return "; ".join(["default-src 'none'", *(f"{kind} {source}" for kind, source in sources.items())])


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return (files("orchard.report") / name).read_text("utf-8")
