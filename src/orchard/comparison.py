"""Methods side by side: a grid of runs on the same data and batches, and one table of what they gave."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Protocol

from pydantic import ValidationError

from orchard.data import FederatedData
from orchard.environment import code_fingerprint
from orchard.errors import NothingToGoOnFrom, Refusal, ResumeWarning
from orchard.experiment import Experiment, MethodSettings, Moment, load_experiment
from orchard.folder import RunFolder, free_folder
from orchard.results import Result
from orchard.runs import Progress as OnExchange
from orchard.runs import Stop, load_data, resume, run
from orchard.settings import explain

Summary = dict[str, Any]


@dataclass(frozen=True)
class Contender:
    """A method with its parameters, the name of its row, and what else of the experiment is its own."""

    label: str
    settings: MethodSettings
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Spread:
    """A figure over seeds; no deviation where there is one seed only."""

    mean: float
    deviation: float | None

    def __str__(self) -> str:
        """In percent."""
        spread = "" if self.deviation is None else f" ± {100 * self.deviation:.2f}"
        return f"{100 * self.mean:.2f}{spread}"

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return mean and standard deviation."""
        return cls(mean(values), stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class Row:
    """What one method gave, over all seeds; accuracies are means over clients unless said otherwise."""

    label: str
    bmcta: Spread
    last: Spread
    validation_selected: Spread
    worst_client: Spread
    worse_than_alone: float | None
    """How many clients, on average, did worse than by training alone; None where nobody trained alone."""
    bytes_up: float
    """Sent by one client in one round, on average."""
    bytes_down: float
    seconds: float
    clients: list[float]
    """Each client's test accuracy at the round of the BMCTA, mean over seeds."""


@dataclass(frozen=True)
class Comparison:
    """A row for every contender, and the clients they were compared on."""

    rows: list[Row]
    clients: list[str]
    alone: Row | None
    """The row of training alone, where somebody did."""


class Watcher(Protocol):
    """Is told how the grid goes on."""

    def plan(self, runs: int, rounds: int) -> None:
        """Expect so many runs of so many rounds, new or kept from before."""

    def begin(self, label: str, seed: int) -> OnExchange | None:
        """Follow a run that begins; its exchanges go to what this returns."""

    def end(self, label: str, seed: int, summary: Summary, kept: Path | None) -> None:
        """Take note of a run that has ended, or was kept from before."""


def parse_contender(text: str, base: Experiment) -> Contender:
    """Read ``name`` or ``name:parameter=value:...``; a method that the experiment sets up is taken as it is there."""
    name, *assignments = text.split(":")
    if not assignments and name == base.method.name:
        return Contender(text, base.method)
    settings = [f"method.name={name}", *(f"method.{assignment}" for assignment in assignments)]
    shared = {key: value for key, value in base if key != "method"}
    return Contender(text, load_experiment(overrides=shared, assignments=settings).method)


def compare(
    base: Experiment,
    contenders: Sequence[Contender],
    seeds: Sequence[int],
    root: Path,
    watcher: Watcher,
    stop: Stop | None = None,
) -> Comparison:
    """Run every contender with every seed and sum up; finished runs of the same are taken, unfinished ones go on."""
    hosts = {contender.label: _host(contender, contenders) for contender in contenders}
    summaries = run_grid(base, [host for host, _ in hosts.values()], seeds, root, watcher, stop)
    loner = next((contender.label for contender in contenders if contender.settings.name == "separate"), None)
    alone = [summaries[loner, seed] for seed in seeds] if loner else None
    rows = {
        label: _row(label, moment, [summaries[host.label, seed] for seed in seeds], alone)
        for label, (host, moment) in hosts.items()
    }
    clients = [client["name"] for client in next(iter(summaries.values()))["clients"]]
    return Comparison(list(rows.values()), clients, rows[loner] if loner else None)


def run_grid(
    base: Experiment,
    contenders: Sequence[Contender],
    seeds: Sequence[int],
    root: Path,
    watcher: Watcher,
    stop: Stop | None = None,
) -> dict[tuple[str, int], Summary]:
    """Return the summary of every contender's run with every seed, by label and seed."""
    # All experiments are made, and so checked, before the first one runs.
    grid = {(contender.label, seed): _variant(base, contender, seed) for seed in seeds for contender in contenders}
    watcher.plan(len(grid), base.rounds)
    data = load_data(base)
    return {
        (label, seed): _finished_or_run(label, experiment, data, root, watcher, stop)
        for (label, seed), experiment in grid.items()
    }


def grid_folders(base: Experiment, contenders: Sequence[Contender], seeds: Sequence[int], root: Path) -> list[Path]:
    """Return the folders of the runs of a grid that are there, one for each run."""
    hosts = dict.fromkeys(_host(contender, contenders)[0].label for contender in contenders)
    data = load_data(base).fingerprint()
    found = [
        find_runs(_variant(base, contender, seed), data, root)
        for seed in seeds
        for contender in contenders
        if contender.label in hosts
    ]
    return [folders[0].path for folders in found if folders]


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
) -> Summary:
    found = find_runs(experiment, data.fingerprint(), root)
    if found and found[0].state() == "finished":
        summary, kept = found[0].read("summary.json"), found[0].path
    else:
        progress, kept = watcher.begin(label, experiment.seed), None
        result = _resumed(found, data, progress, stop)
        if result is None:
            placed = experiment.model_copy(update={"out": free_folder(root, experiment)})
            result = run(placed, data, progress=progress, stop=stop)
        summary = result.summary()
    watcher.end(label, experiment.seed, summary, kept)
    return summary


def _resumed(
    interrupted: Sequence[RunFolder], data: FederatedData, progress: OnExchange | None, stop: Stop | None
) -> Result | None:
    """Go on with the first of these runs that can go on."""
    for folder in interrupted:
        try:
            return resume(folder.path, data, progress=progress, stop=stop)
        except NothingToGoOnFrom as lost:
            warnings.warn(str(lost), ResumeWarning, stacklevel=2)
    return None


def find_runs(experiment: Experiment, data: str, root: Path) -> list[RunFolder]:
    """Return the folders of runs of the same experiment, by the same code on the same data; finished ones first.

    One that was extended is not the same: some methods plan by the number of rounds.
    """
    code = code_fingerprint(experiment)
    found: dict[str, list[RunFolder]] = {"finished": [], "interrupted": []}
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
            if same and folder.state() in found:
                found[folder.state()].append(folder)
        except (OSError, ValueError, KeyError, TypeError, Refusal):  # somebody else's, or damaged: not to build on
            continue
    return [*found["finished"], *found["interrupted"]]


def _row(label: str, moment: Moment, summaries: list[Summary], alone: list[Summary] | None) -> Row:
    figures = [summary["figures"][moment] for summary in summaries]
    rounds = [summary["rounds"] * len(summary["clients"]) for summary in summaries]
    worse = None
    if alone:
        baseline = [summary["figures"]["trained"]["clients"] for summary in alone]
        worse = mean(
            sum(mine < theirs for mine, theirs in zip(f["clients"], b, strict=True))
            for f, b in zip(figures, baseline, strict=True)
        )
    return Row(
        label=label,
        bmcta=Spread.of([f["best"]["accuracy"] for f in figures]),
        last=Spread.of([f["last"]["accuracy"] for f in figures]),
        validation_selected=Spread.of([f["validation_selected"]["accuracy"] for f in figures]),
        worst_client=Spread.of([min(f["clients"]) for f in figures]),
        worse_than_alone=worse,
        bytes_up=mean(s["bytes_up"] / n for s, n in zip(summaries, rounds, strict=True)),
        bytes_down=mean(s["bytes_down"] / n for s, n in zip(summaries, rounds, strict=True)),
        seconds=mean(summary["seconds"] for summary in summaries),
        clients=[mean(values) for values in zip(*(f["clients"] for f in figures), strict=True)],
    )
