"""Write a run for MLflow: its settings as parameters, each client's figures as metrics, its files as artefacts."""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from orchard.errors import Stopped, UserError
from orchard.experiment import Experiment
from orchard.report.content import contents_of
from orchard.report.page import whole_page
from orchard.runs.figures import mean_over_clients
from orchard.runs.folder import RunFolder
from orchard.runs.result import Result
from orchard.settings import flat

if TYPE_CHECKING:
    from mlflow import MlflowClient

SURROUNDINGS = {
    "MLFLOW_ALLOW_FILE_STORE": "true",  # a folder is refused without it, and mlflow-skinny brings no database
    "MLFLOW_DISABLE_TELEMETRY": "true",  # a run tells nobody of itself
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # with MLflow's own number a server that is away costs four minutes
}
"""MLflow's own settings, unless somebody has set them."""
FILES = ("experiment.toml", "federation.json", "environment.json", "metrics.jsonl", "summary.json")
T = TypeVar("T")
BATCH = 500
"""Metrics that are sent at once; MLflow takes a thousand, and a hundred parameters."""
LONGEST = 500
"""Letters of a parameter's value."""


class RunTracker:
    """Writes a run's rounds to MLflow as they are completed."""

    def __init__(self, uri: str, experiment: Experiment, say: Callable[[str], None]) -> None:
        """Find or make MLflow's experiment: raise, before data are loaded, if that fails."""
        self.uri, self.experiment, self.say = uri, experiment, say
        self.client = _client(uri)
        data = Path(experiment.dataset).name
        name = f"{data}, {experiment.partition.name}"
        try:
            known = self.client.get_experiment_by_name(name)
            self.home = known.experiment_id if known else self.client.create_experiment(name)
        except Exception as error:  # of many kinds: MLflow's, a server's, of a database's packages that are missing
            raise UserError(f"--mlflow {uri}: cannot be used: {_reason(error)}") from None
        self.written, self.lost = 0, False

    @contextmanager
    def following(self, folder: Path) -> Iterator[Self]:
        """Follow the run in a folder; at its end, write its summary and its files, with the page that shows it."""
        self._attempt(self._begin, folder)
        try:
            yield self
        except BaseException as failure:
            stopped = isinstance(failure, Stopped | KeyboardInterrupt)
            self._attempt(self._finish, "KILLED" if stopped else "FAILED")
            raise
        self._attempt(self._finish, "FINISHED")

    def __call__(self, result: Result) -> None:
        """Write the rounds that are complete and not written yet."""
        self._attempt(self._write, result)

    def _attempt(self, action: Callable[[T], None], argument: T) -> None:
        """Write; if MLflow cannot take it, the run goes on without."""
        if self.lost:
            return
        try:
            action(argument)
        except Exception as error:
            self.lost = True
            self.say(f"--mlflow {self.uri}: cannot be written: {_reason(error)}; the run goes on without it")

    def _begin(self, folder: Path) -> None:
        from mlflow.entities import Param

        self.folder = folder
        self.run = self.client.create_run(self.home, run_name=folder.name).info.run_id
        values = flat(self.experiment.identity())
        given = [Param(_clean(name), str(value)[:LONGEST]) for name, value in values.items() if value is not None]
        self.client.log_batch(self.run, params=given)

    def _write(self, result: Result) -> None:
        while self.written < result.complete_rounds():
            self._metrics(_figures(result, self.written), self.written + 1)
            self.written += 1

    def _metrics(self, figures: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in figures.items()]
        for start in range(0, len(metrics), BATCH):
            self.client.log_batch(self.run, metrics=metrics[start : start + BATCH])

    def _finish(self, state: str) -> None:
        if (self.folder / "federation.json").is_file():
            self._keep(RunFolder(self.folder), state)
        self.client.set_terminated(self.run, state)

    def _keep(self, folder: RunFolder, state: str) -> None:
        """Write what the folder has."""
        if state == "FINISHED":
            result = folder.result()
            figures, title = result.figures(), result.task.measures[result.task.score].title
            chosen = {"best": figures.best, "last": figures.last, "chosen by validation": figures.validation_selected}
            scores = {f"{title} {name}": one.score for name, one in chosen.items() if not isnan(one.score)}
            self._metrics(scores, len(result.rounds))
        for name in FILES:
            if (folder.path / name).is_file():
                self.client.log_artifact(self.run, str(folder.path / name))
        self.client.log_text(self.run, whole_page(contents_of([folder], live=True)), "report.html")


def _client(uri: str) -> "MlflowClient":
    for name, value in SURROUNDINGS.items():
        os.environ.setdefault(name, value)
    try:
        from mlflow import MlflowClient
    except ImportError:
        text = "--mlflow: MLflow is not installed; install it with: pip install 'orchard[mlflow]'"
        raise UserError(text) from None
    try:
        return MlflowClient(tracking_uri=uri if ":" in uri else Path(uri).resolve().as_uri())
    except Exception as error:
        raise UserError(f"--mlflow {uri}: cannot be used: {_reason(error)}") from None


def _figures(result: Result, r: int) -> dict[str, float]:
    """Return a round's figures by MLflow's names; what is not defined is left out."""
    title, names = result.task.measures[result.task.score].title, unlike(result.distribution.clients)
    figures = dict(zip((f"test {title}/{name}" for name in names), result.scores()[r].tolist(), strict=True))
    losses = {f"training loss/{name}": loss for name, loss in zip(names, result.rounds[r].loss, strict=True)}
    figures |= {name: loss for name, loss in losses.items() if loss is not None}
    figures[f"mean test {title}"] = float(mean_over_clients(result.scores())[r])
    return {name: value for name, value in figures.items() if not isnan(value)}


def unlike(names: Sequence[str]) -> list[str]:
    """Return the clients' names as MLflow takes them; those that become alike, or are long, get their number."""
    clean = [_clean(name)[:100] for name in names]
    return [
        name if clean.count(name) == 1 and name == names[i] else f"{name} {i}".strip() for i, name in enumerate(clean)
    ]


def _clean(name: str) -> str:
    """Return a name of letters, digits, spaces and `_-.:`, which is no path: two dots and slashes lead elsewhere."""
    return re.sub(r"[^\w\- :.]|\.(?=\.|$)", "_", name).strip(" ")


def _reason(error: Exception) -> str:
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return said if len(said) <= 200 else f"{said[:199]}…"
