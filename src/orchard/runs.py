"""A run: from an experiment, or from what an interrupted run left, to a result."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from orchard.contract import Server
from orchard.data import ClientArrays, FederatedData, federated_data, from_arrays
from orchard.engines.local import LocalEngine
from orchard.environment import environment
from orchard.errors import NothingToGoOnFrom, Refusal, ResumeWarning, RunFailed, ServerFailed, Stopped
from orchard.experiment import Experiment
from orchard.folder import RunFolder
from orchard.models import find_factory
from orchard.record import Round, by_name
from orchard.results import Result
from orchard.resuming import compared_environment, deciding, refuse_changed_experiment, usable_checkpoint
from orchard.rounds import Exchange, form_federation, run_rounds
from orchard.settings import explain

Progress = Callable[[Exchange], None]
"""Called after every exchange."""
Stop = Callable[[], bool]
"""Asked before and after every exchange whether to stop."""
Data = Sequence[ClientArrays] | FederatedData
"""Each client's data as arrays, or data loaded before."""
Wants = Mapping[int, tuple[int, ...]]


def run(
    experiment: Experiment, data: Data | None = None, *, progress: Progress | None = None, stop: Stop | None = None
) -> Result:
    """Run an experiment in this process.

    `data` hands over each client's data as arrays; the experiment's dataset is then "arrays".
    """
    folder = RunFolder(experiment.out) if experiment.out else None
    with _gathered(experiment, data, folder) as parties:
        if folder is None:
            return _go_on(parties, None, parties.wants, 0, progress, stop)
        _say_if_bound_to_this_process(experiment)
        _make_folder(folder.path)
        with folder.held():
            _refuse_used_folder(folder.path)  # only now: somebody else may have had the same idea
            return _begin(parties, folder, progress, stop)


def resume(
    path: Path,
    data: Data | None = None,
    *,
    rounds: int | None = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> Result:
    """Go on with an interrupted run to the result it would have had; with `rounds`, extend it to so many."""
    if rounds is None and RunFolder(path).state() == "finished":
        return _finished(RunFolder(path))
    RunFolder(path).experiment()  # a folder of no run is not even locked
    with RunFolder(path).held() as folder:
        experiment = _extended(folder.experiment(), rounds).model_copy(update={"out": path})
        _refuse_missing_device(experiment.device)
        checkpoint = usable_checkpoint(folder)
        if checkpoint:
            refuse_changed_experiment(folder, experiment, checkpoint)
        with _gathered(experiment, data, folder) as parties:
            about = {}
            if checkpoint or folder.read("environment.json"):  # else it was stopped before it began
                about = compared_environment(folder, experiment, parties.fingerprint)
            wants, done = parties.wants, 0
            if checkpoint:
                wants, done = _take_up(parties, folder, checkpoint), checkpoint["rounds"]
                checkpoint = None  # or all that it holds would stay in memory to the end of the run
            # Nothing is written before all that may be refused has been looked at. The summary goes first: a run
            # that is cut off here is one to go on with, never a finished one of another length.
            with folder.on_disk():
                (path / "summary.json").unlink(missing_ok=True)
                folder.write_experiment(experiment)
                if done:
                    folder.write("environment.json", about)
                    folder.write_federation(parties.result)
                    folder.forget(after=done - 1)
            if not done:
                return _begin(parties, folder, progress, stop)
            return _go_on(parties, folder, wants, done, progress, stop)


def load_data(experiment: Experiment, data: Data | None = None) -> FederatedData:
    """Load and deal out the experiment's data, or take what was handed over."""
    if isinstance(data, FederatedData):
        return data
    if data is not None:
        if experiment.dataset != "arrays":
            raise Refusal(f'dataset = {experiment.dataset!r}: data were handed over, so set dataset = "arrays"')
        return from_arrays(data, experiment)
    if experiment.dataset == "arrays":
        raise Refusal("dataset = 'arrays': hand the data over in Python, e.g. orchard.run(experiment, data=[...])")
    return federated_data(experiment)


@dataclass(frozen=True)
class _Parties:
    """All who take part in a run in this process, and what it gives."""

    engine: LocalEngine
    server: Server
    wants: Wants
    result: Result
    fingerprint: str

    @property
    def experiment(self) -> Experiment:
        return self.result.experiment


@contextmanager
def _gathered(experiment: Experiment, data: Data | None, folder: RunFolder | None) -> Iterator[_Parties]:
    """Bring the parties together; whatever does not fit is refused here, before anything is written."""
    _refuse_missing_device(experiment.device)
    federated = load_data(experiment, data)
    with LocalEngine(experiment, federated, folder.shelf if folder else None) as engine:
        federation = form_federation(experiment, engine)
        server = experiment.method.server(federation)
        wants = engine.start(federation)
        result = Result(experiment, federated.holdings(), federation, by_name(engine.notes()))
        yield _Parties(engine, server, wants, result, federated.fingerprint())


def _begin(parties: _Parties, folder: RunFolder, progress: Progress | None, stop: Stop | None) -> Result:
    with folder.on_disk():
        folder.create(parties.result, {**environment(parties.experiment), "data": parties.fingerprint})
    return _go_on(parties, folder, parties.wants, 0, progress, stop)


def _go_on(
    parties: _Parties,
    folder: RunFolder | None,
    wants: Wants,
    first: int,
    progress: Progress | None,
    stop: Stop | None,
) -> Result:
    """Run the rounds that are left, and save each."""
    result = parties.result
    stop = stop or (lambda: False)
    stop()
    for exchange in _exchanges(parties, folder, wants, first):
        finished = result.add(exchange)
        stopping = stop() and exchange.round < parties.experiment.rounds
        if folder:
            with folder.on_disk():
                _save(parties, folder, exchange, finished, stopping)
        if progress:
            progress(exchange)
        failures = exchange.failures()
        if failures:
            raise RunFailed("\n".join(failure.reason for failure in failures)) from failures[0].error
        if stopping:
            done = f"stopped after round {exchange.round + 1} of {parties.experiment.rounds}"
            raise Stopped(f"{done}; {folder.way_on()}" if folder else done)
    result.models = list(parties.engine.models())
    return result


def _exchanges(parties: _Parties, folder: RunFolder | None, wants: Wants, first: int) -> Iterator[Exchange]:
    """Run the rounds that are left; where the server half fails, the run is marked as failed."""
    try:
        yield from run_rounds(parties.result.federation, parties.server, parties.engine, wants, first)
    except ServerFailed as failure:
        if folder:
            with folder.on_disk():
                _write_failed(parties, folder, str(failure))
        raise


def _save(parties: _Parties, folder: RunFolder, exchange: Exchange, finished: Round | None, stopping: bool) -> None:
    """Write what an exchange brought; a checkpoint if it is time for one."""
    experiment, result, r = parties.experiment, parties.result, exchange.round
    if finished:
        folder.append(finished)
    if exchange.failures():
        reasons = "\n".join(failure.reason for failure in exchange.failures())
        if r < experiment.rounds:
            folder.append(result.rounds[-1])
        _write_failed(parties, folder, reasons)
        return
    worth, measured = result.rounds_worth_keeping(), result.measured_rounds() - 1
    last = {measured} if r == experiment.rounds else set()
    if measured in worth | last:
        folder.models.offer(measured, parties.engine.models(), worth | last)
    if last:
        folder.models.save(worth | last)
        folder.write("summary.json", {"state": "finished", **result.summary()})
    elif stopping or folder.checkpoint_is_due(r + 1, experiment):
        content = {
            "rounds": r + 1,
            "experiment": deciding(experiment),
            "server": parties.server.state(),
            "clients": parties.engine.state(),
            "wants": exchange.wants,
            "unfinished": result.rounds[-1].as_json(),
        }
        folder.write_checkpoint(r + 1, content, worth)


def _write_failed(parties: _Parties, folder: RunFolder, reasons: str) -> None:
    state = {"state": "failed", "error": reasons, "rounds": len(parties.result.rounds)}
    folder.write("summary.json", {**state, **parties.result.description()})


# --- Taking up an interrupted run ---


def _extended(experiment: Experiment, rounds: int | None) -> Experiment:
    if rounds is None:
        return experiment
    if rounds <= experiment.rounds:
        raise Refusal(f"rounds = {rounds}: the run has {experiment.rounds} already; a run can only be extended")
    try:
        return Experiment.model_validate({**dict(experiment), "rounds": rounds})
    except ValidationError as error:
        raise Refusal(explain(error)) from None


def _finished(folder: RunFolder) -> Result:
    """Return a finished run's result, read back."""
    result = folder.result()
    last = result.rounds[-1].round
    result.models = [folder.models.read(last, i) for i in range(result.federation.clients)]
    return result


def _take_up(parties: _Parties, folder: RunFolder, checkpoint: Mapping[str, Any]) -> Wants:
    """Bring all parties to where a checkpoint left them; return what each client wants next."""
    done, result = checkpoint["rounds"], parties.result
    try:
        result.rounds = [*folder.rounds(done - 1), Round.from_json(checkpoint["unfinished"])]
    except Refusal as damage:
        raise NothingToGoOnFrom(str(damage)) from None
    if len(result.rounds) != done:
        file = folder.path / "metrics.jsonl"
        raise NothingToGoOnFrom(f"{file}: lacks rounds that the checkpoint after {done} builds on")
    try:
        parties.server.restore(checkpoint["server"])
        parties.engine.restore(checkpoint["clients"])
    except (ValueError, KeyError) as error:
        raise NothingToGoOnFrom(f"{folder.path}: its checkpoint does not fit the code: {error}") from None
    wants: Wants = checkpoint["wants"]
    return wants


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        _refuse_used_folder(path)
    except OSError as error:
        raise Refusal(f"out = '{path}': cannot be used as a folder: {error.strerror}") from None


def _refuse_used_folder(path: Path) -> None:
    """Leave a folder alone that holds anything but what a run killed at birth leaves."""
    if any(not file.name.startswith(".") for file in path.iterdir()):
        raise Refusal(f"out = '{path}': holds something already; name a new folder")


def _say_if_bound_to_this_process(experiment: Experiment) -> None:
    """Say so before hours are spent if no other process can find the model's code by its name."""
    if isinstance(experiment.model, str):
        return
    name = experiment.model_dump()["model"]
    try:
        found = find_factory(name) is experiment.model and not name.startswith("__main__:")
    except Refusal:
        found = False
    if not found:
        text = f"model = {name!r}: will not be found by `orchard resume` and `orchard export`"
        warnings.warn(f"{text}; put it into a module of its own", ResumeWarning, stacklevel=3)


def _refuse_missing_device(name: str) -> None:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise Refusal(f"device = {name!r}: is not available here: {str(error).splitlines()[0]}") from None
