"""The report page: one HTML file that contains everything and uses no network."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from orchard import __version__
from orchard.errors import UserError
from orchard.report.content import Content, content_of
from orchard.report.story import overview, story
from orchard.runs.folder import RunFolder
from orchard.tasks.task import Task

MEANINGS = {
    "classification": "Accuracy is the share of a client's own test cases that its model gets right. BMCTA is the best "
    "mean client test accuracy: the mean over clients at its best round.",
    "multilabel": "AUROC is the chance that a test case with a finding gets a higher score than one without, mean over "
    "findings: 0.5 is guessing, 1 is perfect.",
    "regression": "R² is the share of the variance of a client's own test targets that its model explains: 1 is "
    "perfect, 0 as good as always naming their mean, below 0 worse.",
    "segmentation": "Dice is the overlap of the regions that a client's model outlines with the true ones, mean over "
    "classes but for the background.",
}
"""What a task's score is, for people who do not train networks."""
SCRIPTS = ("charts.js", "matrices.js", "report.js", "helping.js", "controls.js")


def write_report(runs: Sequence[Path], output: Path) -> None:
    """Write the page of these runs."""
    text = page(page_data(content_of([RunFolder(run) for run in runs])))
    try:
        output.write_text(text, "utf-8")
    except OSError as error:
        raise UserError(f"{output}: cannot be written: {error.strerror}") from None


def page_data(content: Content) -> dict[str, Any]:
    """Return everything that the page shows, as values for JSON."""
    task = content.distribution.predicted()
    return {
        "title": content.title,
        "clients": content.distribution.clients,
        "classes": content.distribution.classes,
        "counts": content.distribution.totals().tolist(),
        "noun": task.nouns[0],
        "by_class": task.by_class,
        "sizes": content.distribution.sizes().tolist(),
        "score": score_data(task),
        "overview": overview(content),
        "runs": [{**asdict(run), "story": story(content, run)} for run in content.runs],
    }


def score_data(task: Task) -> dict[str, Any]:
    """Return what the task's score is called, what it means, and how it is drawn."""
    score = task.measures[task.score]
    return {
        "title": score.title,
        "best": score.best_mean().replace("best", "Best"),
        "percent": score.percent,
        "floor": score.floor(),
        "meaning": MEANINGS[task.name],
    }


def page(data: Mapping[str, Any]) -> str:
    """Return the page of these data; if they have a `version`, the page asks its server for newer ones."""
    style, script = _asset("report.css"), "\n".join(map(_asset, SCRIPTS))
    return Template(_asset("template.html")).substitute(
        title=escape(f"Orchard: {data['title']}"),
        version=escape(__version__),
        policy=_policy(style, script),
        style=style,
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
