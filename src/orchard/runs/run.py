"""Run an experiment in this process, or resume an interrupted run."""

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from orchard.core.models import find_factory
from orchard.data.clients import FederatedData
from orchard.data.division import federated_data
from orchard.data.download import check_folder
from orchard.data.handed_over import federate, handed_over, number_of_clients
from orchard.data.partitions import column_key
from orchard.engines.engine import Engine
from orchard.engines.local import LocalEngine
from orchard.engines.pages import use_large_pages
from orchard.engines.ray.cluster import check_ray
from orchard.errors import ResumeWarning, RunFailed, ServerFailed, Stopped, UserError
from orchard.experiment import Experiment, RunOptions, definition_of
from orchard.methods.registry import all_methods
from orchard.runs.by_class import write_by_class
from orchard.runs.environment import environment
from orchard.runs.folder import PRIVATE, RunFolder
from orchard.runs.loop import Progress, Run, Stop, TooFewAnswers, new_run, restored_run, run_to_end
from orchard.runs.metrics import Round
from orchard.runs.progress import shown
from orchard.runs.result import Result
from orchard.runs.resuming import check_environment, check_same_data, check_same_experiment, usable_checkpoint

Data = object
"""Data handed over in one of the forms of `orchard.data.handed_over`, or data that is already loaded."""


def run(
    experiment: Experiment | None = None,
    data: Data | None = None,
    *,
    options: RunOptions | None = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
    **settings: Any,
) -> Result:
    """Run an experiment in this process.

    Settings make the experiment, or change the one given: ``run(dataset="digits", method="apple", rounds=20)``.
    Run options may be among them: ``run(experiment, out="runs/mine", workers=2)``.
    `data` is each client's data, or one dataset to divide; the experiment's dataset is then "arrays".
    `progress` is called with the figures so far after every exchange; without it, a terminal or notebook shows a bar.
    """
    use_large_pages()
    experiment, options, data = define(experiment, data, {**dict(options or {}), **settings})
    check_options(options)
    folder = RunFolder(options.out) if options.out else None
    federated = load_data(experiment, data, options.data_dir)
    with _engine(experiment, federated, options, folder) as engine:
        run = new_run(experiment, engine, options)
        if folder is None:
            return _finished(run, None, options, progress, stop, federated)
        _warn_of_code_that_is_not_found_again(experiment)
        make_run_folder(folder.path)
        with folder.locked():
            check_unused(folder.path)  # again, now under the lock: another process may have used it
            run.data = federated.fingerprint()
            _create(run, folder, options)
            return _finished(run, folder, options, progress, stop, federated)


def define(
    experiment: Experiment | None, data: Data | None, settings: Mapping[str, Any]
) -> tuple[Experiment, RunOptions, Data | None]:
    """Return the checked experiment and options, and the data; the number of clients is theirs unless it is given."""
    if experiment is not None and not isinstance(experiment, Experiment):
        kind = type(experiment).__name__
        raise UserError(f"experiment: expected an Experiment, not {kind}; orchard.load_experiment(path) reads a file")
    values = {**(experiment.given() if experiment else {}), **settings}
    if data is None or isinstance(data, FederatedData):
        return *definition_of(values), data
    held = handed_over(data, column_key(values.get("partition")))
    if experiment is None:
        values = {"dataset": "arrays", **values}
    if "clients" not in values and (clients := number_of_clients(held, values)):
        values["clients"] = clients
    return *definition_of(values), held


def resume(
    path: Path | str,
    data: Data | None = None,
    *,
    rounds: int | None = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
    **changes: Any,
) -> Result:
    """Resume an interrupted run, to the same result as without the interruption; `rounds` extends the run.

    Run options are those it began with, but for `changes` such as ``engine="ray"``.
    """
    use_large_pages()
    folder = RunFolder(Path(path))
    experiment, options = folder.definition()  # raises before locking a folder that is no run's
    if rounds is None and folder.state() == "finished":
        return _read_back(folder)
    if (folder.path / "plan.json").is_file():
        raise UserError(f"{folder.path}: is a run on separate machines: see orchard deploy attach")
    with folder.locked():
        experiment = _extended(experiment, rounds)
        options = options.changed(**changes, out=folder.path)
        check_options(options)
        checkpoint = usable_checkpoint(folder)
        if checkpoint:
            check_same_experiment(folder, experiment, checkpoint)
        federated = load_data(experiment, data, options.data_dir)
        fingerprint = federated.fingerprint()
        with _engine(experiment, federated, options, folder) as engine:
            begun = bool(checkpoint or folder.read("environment.json"))
            about = check_environment(folder, experiment, options, fingerprint) if begun else {}
            if checkpoint:
                check_same_data(folder, checkpoint, fingerprint)
                run = restored_run(experiment, engine, options, folder, checkpoint)
                checkpoint = None  # otherwise its content stays in memory to the end of the run
            else:
                run = new_run(experiment, engine, options)
            run.data = fingerprint
            # Nothing is written before all checks are done. The summary is deleted first: a crash here leaves an
            # interrupted run, never a finished one of another length.
            with folder.on_disk():
                (folder.path / "summary.json").unlink(missing_ok=True)
                if run.done:
                    folder.write_experiment(experiment, options)
                    folder.write("environment.json", about)
                    folder.write_federation(run.result)
                    folder.truncate(run.done - 1)
            if not run.done:
                _create(run, folder, options)
            return _finished(run, folder, options, progress, stop, federated)


def load(path: Path | str) -> Result:
    """Return the result of a run from its folder; of one that is not finished, its figures so far, without models."""
    folder = RunFolder(Path(path))
    return _read_back(folder) if folder.state() == "finished" else folder.result()


def load_data(experiment: Experiment, data: Data | None = None, data_dir: Path | None = None) -> FederatedData:
    """Load and partition the experiment's data, or use the data given."""
    if isinstance(data, FederatedData):
        return data
    if data is not None:
        if experiment.dataset != "arrays":
            raise UserError(f'dataset = {experiment.dataset!r}: data were handed over, so set dataset = "arrays"')
        return federate(data, experiment)
    if experiment.dataset == "arrays":
        raise UserError("dataset = 'arrays': hand the data over in Python, e.g. orchard.run(experiment, data=[...])")
    return federated_data(experiment, data_dir)


def make_run_folder(path: Path) -> None:
    """Make a run's folder; raise if it is not empty."""
    try:
        path.mkdir(PRIVATE, parents=True, exist_ok=True)
        check_unused(path)
    except OSError as error:
        raise UserError(f"out = '{path}': cannot be used as a folder: {error.strerror}") from None


def check_unused(path: Path) -> None:
    """Raise if a folder is not empty; ignore hidden files, which a run that was killed at its start leaves."""
    if any(not file.name.startswith(".") for file in path.iterdir()):
        raise UserError(f"out = '{path}': holds something already; name a new folder")


def check_options(options: RunOptions) -> None:
    """Raise if the engine, the device or the folder that is asked for is not there; before data are loaded."""
    check_folder(options.data_dir)
    if options.engine == "ray":
        check_ray()  # the devices are its nodes'
    else:
        _check_device(options.device)


def _engine(
    experiment: Experiment, data: FederatedData, options: RunOptions, folder: RunFolder | None
) -> AbstractContextManager[Engine]:
    offloader = folder.offloader if folder else None
    if options.engine == "local":
        return LocalEngine(experiment, data, options, offloader)
    from orchard.engines.ray.engine import RayEngine  # late: Ray takes seconds to import

    return RayEngine(experiment, data, options, offloader)


def _create(run: Run, folder: RunFolder, options: RunOptions) -> None:
    with folder.on_disk():
        about = {**environment(run.experiment, options), "data": run.data}
        folder.create(run.result, options, about)


def _finished(
    run: Run,
    folder: RunFolder | None,
    options: RunOptions,
    progress: Progress | None,
    stop: Stop | None,
    data: FederatedData,
) -> Result:
    """Run the remaining rounds; record a failure in the folder."""
    try:
        with nullcontext(progress) if progress else shown(run.experiment) as follower:
            finished = run_to_end(run, folder, options, follower, stop)
    except (TooFewAnswers, ServerFailed) as failed:
        if folder:
            with folder.on_disk():
                for entry in _lines_of_failure(run, failed):
                    folder.append(entry)
                folder.write_failed(run.result, str(failed))
        raise
    if not finished:
        done = f"stopped after round {run.done} of {run.experiment.rounds}"
        raise Stopped(f"{done}; {folder.resume_hint()}" if folder else done)
    if folder:
        run.result.folder = folder.path
        with folder.on_disk():
            write_by_class(folder, run.result, data.clients)
    run.result.models = _last_models(folder, run.result) if folder else list(run.engine.models())
    return run.result


def _lines_of_failure(run: Run, failed: RunFailed) -> list[Round]:
    """Return the round that the failed exchange completed, and the round that failed."""
    if not isinstance(failed, TooFewAnswers):
        return []
    finished = run.result.add(failed.exchange)
    rounds = [finished] if finished else []
    return rounds if failed.exchange.round == run.experiment.rounds else [*rounds, run.result.rounds[-1]]


def _read_back(folder: RunFolder) -> Result:
    """Return a finished run's result."""
    result = folder.result()
    result.models = _last_models(folder, result)
    return result


def _last_models(folder: RunFolder, result: Result) -> list[Any]:
    last = result.rounds[-1].round
    return [folder.models.read(last, i) for i in range(result.federation.clients)]


def _extended(experiment: Experiment, rounds: int | None) -> Experiment:
    if rounds is None:
        return experiment
    if rounds <= experiment.rounds:
        raise UserError(f"rounds = {rounds}: the run has {experiment.rounds} already; a run can only be extended")
    return experiment.changed(rounds=rounds)


def _warn_of_code_that_is_not_found_again(experiment: Experiment) -> None:
    """Warn, before hours are spent, if no other process finds the method or the model by its name."""
    if experiment.method.name not in all_methods():
        text = f"method.name = {experiment.method.name!r}: will not be found by `orchard resume` and `orchard report`"
        warnings.warn(f"{text}; register it as an entry point of a package", ResumeWarning, stacklevel=3)
    if isinstance(experiment.model, str):
        return
    name = experiment.model_dump()["model"]
    try:
        found = find_factory(name) is experiment.model and not name.startswith("__main__:")
    except UserError:
        found = False
    if not found:
        text = f"model = {name!r}: will not be found by `orchard resume` and `orchard export`"
        warnings.warn(f"{text}; put it into a module of its own", ResumeWarning, stacklevel=3)


def _check_device(name: str) -> None:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"device = {name!r}: is not available here: {str(error).splitlines()[0]}") from None
