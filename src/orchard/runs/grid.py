"""A grid of runs: every contender with every seed, on the same data and batches.

Finished runs are reused and interrupted ones resumed, so that a grid can be stopped and repeated.
"""

import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from orchard.core.training import NotFinite
from orchard.data.clients import FederatedData
from orchard.errors import NoUsableCheckpoint, ResumeWarning, RunFailed, Stopped, UserError
from orchard.experiment import Experiment, RunOptions, load_experiment
from orchard.method import MethodSettings, Moment
from orchard.runs.environment import RESULTS_VERSION, own_code
from orchard.runs.figures import Figures, mean_over_clients
from orchard.runs.folder import RunFolder, State, new_folder
from orchard.runs.loop import Progress, Stop
from orchard.runs.result import Result
from orchard.runs.run import check_options, load_data, resume, run


@dataclass(frozen=True)
class Grid:
    """What all runs of a grid share: experiment and options, the seeds, and the folder that holds their folders."""

    base: Experiment
    options: RunOptions
    seeds: Sequence[int]
    root: Path
    data: FederatedData | None = None
    """The experiment's data, if they are loaded already."""
    stage: str = ""
    """Which of several grids this is, for people to read; empty if it is the only one."""


@dataclass(frozen=True)
class Contender:
    """A method with its parameters, a label for its row, and its other changes to the experiment."""

    label: str
    settings: MethodSettings
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """A contender's result for one seed: a run, and the moment at which the contender is evaluated."""

    folder: RunFolder
    result: Result
    moment: Moment

    @property
    def figures(self) -> Figures:
        """The run in a few figures."""
        return self.result.figures(self.moment)

    @property
    def curve(self) -> list[float]:
        """Mean client test score, round by round."""
        curve: list[float] = mean_over_clients(self.result.scores("test", self.moment)).tolist()
        return curve


Runs = dict[tuple[str, int], tuple[RunFolder, Result]]
"""The folder and the figures of runs, by label and seed."""


@dataclass
class Failures:
    """The failures in a grid: their reasons, and the first error that may be a bug."""

    reasons: list[str] = field(default_factory=list)
    cause: BaseException | None = None

    def add(self, which: str, failure: RunFailed) -> None:
        """Add a failure, without keeping the run's objects alive."""
        self.reasons.append(f"{which}: {failure}")
        if self.cause is None and not isinstance(failure.__cause__, NotFinite):
            self.cause = failure.__cause__


class GridFailed(RunFailed):
    """Some runs of a grid failed; `measured` has the results of the others."""

    def __init__(self, failures: Failures, measured: Mapping[tuple[str, int], Measured]) -> None:
        super().__init__("\n".join(failures.reasons))
        self.measured = measured


class Watcher(Protocol):
    """Shows the progress of a grid."""

    def plan(self, runs: int, rounds: int, stage: str) -> None:
        """Prepare for this many runs, new or reused, of this many rounds each; `stage` is the grid's."""

    def begin(self, label: str, seed: int) -> Progress | None:
        """Note that a run begins; the returned function is called after each of its rounds."""

    def end(self, label: str, seed: int, result: Result, reused: Path | None) -> None:
        """Note that a run has finished; `reused` is its folder if it was reused."""

    def fail(self, label: str, seed: int, reason: str) -> None:
        """Note that a run failed."""


def method_label(method: MethodSettings) -> str:
    """Return a method's name and its parameters that are not defaults, in the form that `compare` takes."""
    fields = type(method).model_fields
    changed = [f"{key}={value}" for key, value in method if key != "name" and value != fields[key].default]
    return ":".join([method.name, *changed])


def parse_contender(text: str, base: Experiment) -> Contender:
    """Parse ``name`` or ``name:parameter=value:...``; the name of the experiment's own method keeps its parameters."""
    name, *assignments = text.split(":")
    if not assignments and name == base.method.name:
        return Contender(text, base.method)
    if not all("=" in assignment for assignment in assignments):
        raise UserError(f"{text}: expected NAME:PARAMETER=VALUE, e.g. apple:mu=0")
    settings = [f"method.name={name}", *(f"method.{assignment}" for assignment in assignments)]
    shared = {key: value for key, value in base if key != "method"}
    return Contender(text, load_experiment(overrides=shared, assignments=settings).method)


def run_grid(
    grid: Grid, contenders: Sequence[Contender], watcher: Watcher, stop: Stop | None = None
) -> dict[tuple[str, int], Measured]:
    """Run every contender with every seed; return results by label and seed. Raise at the end if a run failed."""
    check_options(grid.options)
    hosts = {contender.label: _host(contender, contenders) for contender in contenders}
    runners = {host.label: host for host, _ in hosts.values()}
    # Make, and so check, all experiments before the first one runs.
    runs_to_make = {
        (label, seed): grid.base.changed(**runner.changes, method=runner.settings, seed=seed)
        for seed in grid.seeds
        for label, runner in runners.items()
    }
    watcher.plan(len(runs_to_make), grid.base.rounds, grid.stage)
    data = load_data(grid.base, grid.data, grid.options.data_dir)
    every = _one_by_one
    if grid.options.engine == "ray":
        from orchard.runs.cluster import many_at_once as every  # late: it imports this module
    runs, failures = every(runs_to_make, data, grid, watcher, stop)
    measured = {
        (label, seed): Measured(*runs[host.label, seed], moment)
        for label, (host, moment) in hosts.items()
        for seed in grid.seeds
        if (host.label, seed) in runs
    }
    if failures.reasons:
        raise GridFailed(failures, measured) from failures.cause
    return measured


def _one_by_one(
    runs_to_make: Mapping[tuple[str, int], Experiment],
    data: FederatedData,
    grid: Grid,
    watcher: Watcher,
    stop: Stop | None,
) -> tuple[Runs, Failures]:
    """Run or reuse all experiments in this process."""
    runs, failures = Runs(), Failures()
    for (label, seed), experiment in runs_to_make.items():
        try:
            if runs and stop and stop():  # requested in the last round of the previous run
                raise Stopped
            runs[label, seed] = _reused_or_run(label, experiment, data, grid, watcher, stop)
        except RunFailed as failure:
            watcher.fail(label, seed, str(failure))
            failures.add(f"{label}, seed {seed}", failure)
        except Stopped:
            done = f"stopped at {label}, seed {seed}; what was saved is safe; the same command goes on"
            raise Stopped("\n".join([*failures.reasons, done])) from None
    return runs, failures


def _host(contender: Contender, contenders: Sequence[Contender]) -> tuple[Contender, Moment]:
    """Return whose run has this contender's figures, and at which moment; one run may serve several contenders."""
    givers = [
        other
        for other in contenders
        if contender.settings.name in other.settings.also_reports
        and contender.changes == other.changes
        and _agree(contender.settings, other.settings)
    ]
    if not givers:
        return contender, contender.settings.moment
    host = max(givers, key=lambda other: len(other.settings.also_reports))
    return host, host.settings.also_reports[contender.settings.name]


def _agree(one: MethodSettings, other: MethodSettings) -> bool:
    """Tell whether the parameters of one method have the same values in another."""
    return one.model_dump(exclude={"name"}).items() <= other.model_dump().items()


def _reused_or_run(
    label: str, experiment: Experiment, data: FederatedData, grid: Grid, watcher: Watcher, stop: Stop | None
) -> tuple[RunFolder, Result]:
    finished, interrupted = reusable(experiment, data.fingerprint(), grid.root)
    if finished:
        watcher.end(label, experiment.seed, finished[1], finished[0].path)
        return finished
    progress = watcher.begin(label, experiment.seed)
    resumed = _resumed(interrupted, data, progress, stop)
    if resumed:
        folder, result = resumed
    else:
        with new_folder(grid.root, experiment) as path:
            folder = RunFolder(path)
            result = run(experiment, data, options=grid.options, out=path, progress=progress, stop=stop)
    result.models = ()  # they are in the folder; those of a whole grid would fill the memory
    watcher.end(label, experiment.seed, result, None)
    return folder, result


def reusable(
    experiment: Experiment, fingerprint: str, root: Path
) -> tuple[tuple[RunFolder, Result] | None, list[RunFolder]]:
    """Return a finished run of this experiment, if there is one, and the interrupted ones."""
    found = find_runs(experiment, fingerprint, root)
    if found["running"] and not found["finished"]:
        _wait_for(found["running"][0])
        found = find_runs(experiment, fingerprint, root)
    for folder in found["finished"]:
        result = _whole_result(folder, experiment.rounds)
        if result:
            return (folder, result), found["interrupted"]
    return None, found["interrupted"]


def _wait_for(folder: RunFolder) -> None:
    """Wait a moment for another process's lock; raise if that process is really running the run."""
    try:
        with folder.locked():
            pass
    except UserError as busy:
        raise RunFailed(str(busy)) from None


def _whole_result(folder: RunFolder, rounds: int) -> Result | None:
    """Return a finished run's figures, read from its metrics; None if some are missing."""
    try:
        result = folder.result()
        if len(result.rounds) != rounds:
            raise UserError(f"{folder.path}: lacks rounds")
    except UserError as damage:
        warnings.warn(f"{damage}; it is run again", ResumeWarning, stacklevel=2)
        return None
    return result


def _resumed(
    interrupted: Sequence[RunFolder], data: FederatedData, progress: Progress | None, stop: Stop | None
) -> tuple[RunFolder, Result] | None:
    """Resume the first of these runs that can be resumed; return None if there is none."""
    for folder in interrupted:
        try:
            return folder, resume(folder.path, data, progress=progress, stop=stop)
        except NoUsableCheckpoint as lost:
            warnings.warn(str(lost), ResumeWarning, stacklevel=2)
    return None


def find_runs(experiment: Experiment, data: str, root: Path) -> dict[State, list[RunFolder]]:
    """Return the folders of runs of this experiment with the same code and data, by state.

    An extended run does not count: some methods depend on the planned number of rounds.
    """
    code = RESULTS_VERSION, own_code(experiment)
    found: dict[State, list[RunFolder]] = defaultdict(list)
    for file in sorted(root.glob("*/environment.json")):
        folder = RunFolder(file.parent)
        try:
            about = folder.read("environment.json")
            legs = [about, *about.get("resumed", [])]
            same = (
                all(
                    (leg["results_version"], leg["own_code"]) == code and leg["rounds"] == experiment.rounds
                    for leg in legs
                )
                and about["data"] == data
                and folder.experiment().identity() == experiment.identity()
            )
            if same:
                found[folder.state()].append(folder)
        except (OSError, ValueError, KeyError, TypeError, UserError):  # not a run of ours, or damaged
            continue
    return found
