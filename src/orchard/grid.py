"""A grid of runs: every contender with every seed, on the same data and batches.

Finished runs of the same are taken from where they are, interrupted ones go on, so that a grid can be stopped and
asked for again.
"""

import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from orchard.data import FederatedData
from orchard.environment import code_fingerprint
from orchard.errors import NothingToGoOnFrom, Refusal, ResumeWarning, RunFailed, Stopped
from orchard.experiment import Experiment, MethodSettings, Moment, load_experiment
from orchard.folder import RunFolder, State, free_folder
from orchard.results import Figures, Result
from orchard.runs import Progress as OnExchange
from orchard.runs import Stop, load_data, resume, run
from orchard.settings import explain
from orchard.training import NotFinite


@dataclass(frozen=True)
class Contender:
    """A method with its parameters, the name of its row, and what else of the experiment is its own."""

    label: str
    settings: MethodSettings
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """What a contender gave with one seed: a run, and the moment of it that is the contender's."""

    folder: RunFolder
    result: Result
    moment: Moment

    @property
    def figures(self) -> Figures:
        """The run in a few figures."""
        return self.result.figures(self.moment)

    @property
    def curve(self) -> list[float]:
        """Mean client test accuracy, round by round."""
        return [float(row.mean()) for row in self.result.accuracy("test", self.moment)]


@dataclass
class Failures:
    """What went wrong in a grid: in words, and the first error that somebody has to look into."""

    reasons: list[str] = field(default_factory=list)
    cause: BaseException | None = None

    def add(self, which: str, failure: RunFailed) -> None:
        """Take note of a failure, without keeping alive what the run held."""
        self.reasons.append(f"{which}: {failure}")
        if self.cause is None and not isinstance(failure.__cause__, NotFinite):
            self.cause = failure.__cause__


class GridFailed(RunFailed):
    """A grid some of whose runs failed; what the others gave is there."""

    def __init__(self, failures: Failures, measured: Mapping[tuple[str, int], Measured]) -> None:
        super().__init__("\n".join(failures.reasons))
        self.measured = measured


class Watcher(Protocol):
    """Is told how the grid goes on."""

    def plan(self, runs: int, rounds: int) -> None:
        """Expect so many runs of so many rounds, new or kept from before."""

    def begin(self, label: str, seed: int) -> OnExchange | None:
        """Follow a run that begins; its exchanges go to what this returns."""

    def end(self, label: str, seed: int, result: Result, kept: Path | None) -> None:
        """Take note of a run that has ended, or was kept from before."""

    def fail(self, label: str, seed: int, reason: str) -> None:
        """Take note of a run that failed."""


def parse_contender(text: str, base: Experiment) -> Contender:
    """Read ``name`` or ``name:parameter=value:...``; a method that the experiment sets up is taken as it is there."""
    name, *assignments = text.split(":")
    if not assignments and name == base.method.name:
        return Contender(text, base.method)
    settings = [f"method.name={name}", *(f"method.{assignment}" for assignment in assignments)]
    shared = {key: value for key, value in base if key != "method"}
    return Contender(text, load_experiment(overrides=shared, assignments=settings).method)


def run_grid(
    base: Experiment,
    contenders: Sequence[Contender],
    seeds: Sequence[int],
    root: Path,
    watcher: Watcher,
    stop: Stop | None = None,
) -> dict[tuple[str, int], Measured]:
    """Return what every contender gave with every seed, by label and seed; if a run failed, say so after the others."""
    hosts = {contender.label: _host(contender, contenders) for contender in contenders}
    runners = {host.label: host for host, _ in hosts.values()}
    # All experiments are made, and so checked, before the first one runs.
    grid = {(label, seed): _variant(base, runner, seed) for seed in seeds for label, runner in runners.items()}
    watcher.plan(len(grid), base.rounds)
    data = load_data(base)
    runs, failures = dict[tuple[str, int], tuple[RunFolder, Result]](), Failures()
    for (label, seed), experiment in grid.items():
        try:
            if runs and stop and stop():  # asked for in the last round of the run before
                raise Stopped
            runs[label, seed] = _finished_or_run(label, experiment, data, root, watcher, stop)
        except RunFailed as failure:
            watcher.fail(label, seed, str(failure))
            failures.add(f"{label}, seed {seed}", failure)
        except Stopped:
            done = f"stopped at {label}, seed {seed}; what was saved is safe; the same again goes on"
            raise Stopped("\n".join([*failures.reasons, done])) from None
    measured = {
        (label, seed): Measured(*runs[host.label, seed], moment)
        for label, (host, moment) in hosts.items()
        for seed in seeds
        if (host.label, seed) in runs
    }
    if failures.reasons:
        raise GridFailed(failures, measured) from failures.cause
    return measured


def _host(contender: Contender, contenders: Sequence[Contender]) -> tuple[Contender, Moment]:
    """Return whose run gives this contender's figures, and at which moment: another's where one gives both."""
    givers = [
        other
        for other in contenders
        if contender.settings.name in other.settings.gives and contender.changes == other.changes
    ]
    if not givers:
        return contender, contender.settings.moment
    host = max(givers, key=lambda other: len(other.settings.gives))
    return host, host.settings.gives[contender.settings.name]


def _variant(base: Experiment, contender: Contender, seed: int) -> Experiment:
    own = {**contender.changes, "method": contender.settings, "seed": seed, "out": None}
    try:
        return Experiment.model_validate({**dict(base), **own})
    except ValidationError as error:
        raise Refusal(explain(error)) from None


def _finished_or_run(
    label: str, experiment: Experiment, data: FederatedData, root: Path, watcher: Watcher, stop: Stop | None
) -> tuple[RunFolder, Result]:
    found = find_runs(experiment, data.fingerprint(), root)
    if found["running"] and not found["finished"]:
        _wait_for(found["running"][0])
        found = find_runs(experiment, data.fingerprint(), root)
    for folder in found["finished"]:
        result = _whole_result(folder, experiment.rounds)
        if result:
            watcher.end(label, experiment.seed, result, folder.path)
            return folder, result
    progress = watcher.begin(label, experiment.seed)
    resumed = _resumed(found["interrupted"], data, progress, stop)
    if resumed:
        folder, result = resumed
    else:
        folder = RunFolder(free_folder(root, experiment))
        result = run(experiment.model_copy(update={"out": folder.path}), data, progress=progress, stop=stop)
    result.models = ()  # they are in the folder; a grid's together would fill the memory
    watcher.end(label, experiment.seed, result, None)
    return folder, result


def _wait_for(folder: RunFolder) -> None:
    """Let a passing look at a run go by; what another process is running is not run twice."""
    try:
        with folder.held():
            pass
    except Refusal as busy:
        raise RunFailed(str(busy)) from None


def _whole_result(folder: RunFolder, rounds: int) -> Result | None:
    """Return a finished run's figures, summed up anew from what was measured; None if some of it is lost."""
    try:
        result = folder.result()
        if len(result.rounds) != rounds:
            raise Refusal(f"{folder.path}: lacks rounds")
    except Refusal as damage:
        warnings.warn(f"{damage}; it is run again", ResumeWarning, stacklevel=2)
        return None
    return result


def _resumed(
    interrupted: Sequence[RunFolder], data: FederatedData, progress: OnExchange | None, stop: Stop | None
) -> tuple[RunFolder, Result] | None:
    """Go on with the first of these runs that can go on."""
    for folder in interrupted:
        try:
            return folder, resume(folder.path, data, progress=progress, stop=stop)
        except NothingToGoOnFrom as lost:
            warnings.warn(str(lost), ResumeWarning, stacklevel=2)
    return None


def find_runs(experiment: Experiment, data: str, root: Path) -> dict[State, list[RunFolder]]:
    """Return the folders of runs of the same experiment, by the same code on the same data, by how they stand.

    One that was extended is not the same: some methods plan by the number of rounds.
    """
    code = code_fingerprint(experiment)
    found: dict[State, list[RunFolder]] = defaultdict(list)
    for file in sorted(root.glob("*/environment.json")):
        folder = RunFolder(file.parent)
        try:
            about = folder.read("environment.json")
            legs = [about, *about.get("resumed", [])]
            same = (
                all(leg["code"] == code and leg["rounds"] == experiment.rounds for leg in legs)
                and about["data"] == data
                and folder.experiment().identity() == experiment.identity()
            )
            if same:
                found[folder.state()].append(folder)
        except (OSError, ValueError, KeyError, TypeError, Refusal):  # somebody else's, or damaged: not to build on
            continue
    return found
