"""A run: from an experiment to its result, and the folder that keeps it.

The folder holds `experiment.toml` (everything that defines the run), `federation.json` (who holds what),
`metrics.jsonl` (a line a round) and `summary.json`. All of it is plain text, readable without Orchard.
"""

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import torch

from orchard.contract import Failure
from orchard.data import ClientArrays, FederatedData, federated_data, from_arrays
from orchard.engines.local import LocalEngine
from orchard.errors import Refusal, RunFailed
from orchard.experiment import Experiment
from orchard.models import find_factory
from orchard.results import Result, Round
from orchard.rounds import Exchange, form_federation, run_rounds

Progress = Callable[[Exchange], None]
"""Called after every exchange."""


def run(
    experiment: Experiment,
    data: Sequence[ClientArrays] | None = None,
    *,
    progress: Progress | None = None,
) -> Result:
    """Run an experiment in this process.

    `data` hands over each client's data as arrays; the experiment's dataset is then "arrays".
    """
    _refuse_missing_device(experiment.device)
    federated = load_data(experiment, data)
    with LocalEngine(experiment, federated) as engine:
        federation = form_federation(experiment, engine)
        server = experiment.method.server(federation)
        wants = engine.start(federation)
        result = Result(experiment, federated, federation, engine.notes())
        folder = RunFolder.create(experiment.out, result) if experiment.out else None
        for exchange in run_rounds(federation, server, engine, wants):
            finished = result.add(exchange)
            if folder and finished:
                folder.append(finished)
            if progress:
                progress(exchange)
            _stop_on_failure(exchange, result, folder)
        result.models = engine.models()
    if folder:
        folder.finish(result)
    return result


def load_data(experiment: Experiment, data: Sequence[ClientArrays] | None = None) -> FederatedData:
    """Load and deal out the experiment's data, or take what was handed over."""
    if data is not None:
        if experiment.dataset != "arrays":
            raise Refusal(f'dataset = {experiment.dataset!r}: data were handed over, so set dataset = "arrays"')
        return from_arrays(data, experiment)
    if experiment.dataset == "arrays":
        raise Refusal("dataset = 'arrays': hand the data over in Python: orchard.run(experiment, data=[...])")
    return federated_data(experiment)


def _stop_on_failure(exchange: Exchange, result: Result, folder: "RunFolder | None") -> None:
    failures = [answer for answer in exchange.answers.values() if isinstance(answer, Failure)]
    if failures:
        reasons = "\n".join(failure.reason for failure in failures)
        if folder:
            if exchange.round < result.experiment.rounds:
                folder.append(result.rounds[-1])
            folder.fail(result, reasons)
        raise RunFailed(reasons) from failures[0].error


def _refuse_missing_device(name: str) -> None:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise Refusal(f"device = {name!r}: is not available here: {str(error).splitlines()[0]}") from None


def code_fingerprint(experiment: Experiment) -> str:
    """Return a hash of the code that decides a result: Orchard's, the method's and the model's."""
    files = set(Path(__file__).parent.rglob("*.py"))
    for thing in (type(experiment.method), find_factory(experiment.model)):
        home = inspect.getsourcefile(inspect.getmodule(thing) or type(None))
        files |= {Path(home)} if home else set()
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def free_folder(root: Path, experiment: Experiment) -> Path:
    """Return the first unused name for a run's folder."""
    data = re.sub(r"[^\w.-]+", "-", Path(experiment.dataset).resolve().name)[:60]  # never a path of its own
    name = f"{data}-{experiment.partition.name}-{experiment.method.name}-seed{experiment.seed}"
    candidates = (root / (name if k == 1 else f"{name}-{k}") for k in count(1))
    return next(path for path in candidates if not path.exists())


class RunFolder:
    """Writes a run's folder as the run goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, result: Result) -> "RunFolder":
        """Make a new folder; one that holds anything already is left alone."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise Refusal(f"out = '{path}': holds something already; name a new folder")
        except OSError as error:
            raise Refusal(f"out = '{path}': cannot be used as a folder: {error.strerror}") from None
        folder = cls(path)
        # Without its own folder, so that the file can be run again as it is.
        definition = result.experiment.model_copy(update={"out": None})
        (path / "experiment.toml").write_text(definition.to_toml(), "utf-8")
        folder._write_json("federation.json", result.who_holds_what())
        return folder

    def append(self, finished: Round) -> None:
        """Add a round's line to the metrics."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(finished.as_json()) + "\n")

    def finish(self, result: Result) -> None:
        """Write the summary."""
        made_of = {"code": code_fingerprint(result.experiment), "data": result.data.fingerprint()}
        self._write_json("summary.json", {"state": "finished", **made_of, **result.summary()})

    def fail(self, result: Result, reasons: str) -> None:
        """Write why there is no summary."""
        started = {"state": "failed", "error": reasons, "rounds": len(result.rounds)}
        self._write_json("summary.json", {**started, **result.description()})

    def _write_json(self, name: str, content: object) -> None:
        """Write a file whole or not at all."""
        temporary = self.path / f".{name}.new"
        temporary.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
        temporary.replace(self.path / name)
