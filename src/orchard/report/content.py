"""Reads what a report shows; no other file of this package reads run folders, but for audits in `leaks.py`."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from orchard.errors import UserError
from orchard.experiment import Experiment, to_toml
from orchard.method import Moment
from orchard.report.command import DEPLOYED, command_of
from orchard.report.leaks import leaks_of
from orchard.report.views import (
    SELECTED,
    Content,
    MethodView,
    Relationships,
    Values,
    mean_view,
    plain,
)
from orchard.runs.by_class import read_by_class
from orchard.runs.comparison import Spread
from orchard.runs.figures import Figures, strongest_helpers
from orchard.runs.folder import RunFolder
from orchard.runs.grid import method_label
from orchard.runs.listing import differing
from orchard.runs.result import Result
from orchard.text import readable

MATRIX_CELLS = 600_000
"""Limit on matrix entries on one page, all runs together; rounds are left out evenly to stay below it."""


@dataclass(frozen=True)
class Entry:
    """A run, and the other method whose figures are shown from it; None for the run's own method."""

    folder: RunFolder
    result: Result
    given: str | None = None

    @property
    def experiment(self) -> Experiment:
        """Return what was run."""
        return self.result.experiment


def contents_of(folders: Sequence[RunFolder], *, live: bool = False) -> list[Content]:
    """Read runs; those on other data stand apart, the most runs first. `live` allows a run without any figures yet."""
    entries, left_out = _usable(folders, live)
    groups: list[list[Entry]] = []
    for entry in entries:
        home = next((group for group in groups if _on_same_data(group[0], entry)), None)
        if home is None:
            groups.append([entry])
        else:
            home.append(entry)
    contents = [_content(group) for group in sorted(groups, key=len, reverse=True)]
    left_out += [note for content in contents for note in content.left_out]
    titles = _unlike_titles(contents)
    return [replace(content, title=title, left_out=left_out) for content, title in zip(contents, titles, strict=True)]


def _on_same_data(one: Entry, other: Entry) -> bool:
    """Tell whether clients hold the same; sites have no common hash of their samples."""
    marks = [entry.folder.read("environment.json").get("data") for entry in (one, other)]
    return one.result.distribution == other.result.distribution and (None in marks or marks[0] == marks[1])


def _content(entries: list[Entry]) -> Content:
    """Return runs on the same data."""
    distribution = entries[0].result.distribution
    groups, repeated = _by_method(entries + _given_by_others(entries))
    several = sum(len(group) > 1 for group in groups)
    cells = MATRIX_CELLS // (sum(map(len, groups)) + several)
    views = [[_shown(entry, cells) for entry in group] for group in groups]
    alone = next((group for group in views if group[0].method == "separate" and group[0].best), None)
    beside = [[_beside_alone(run, alone) for run in group] for group in views]
    summed = distribution.task == "classification"
    labelled = zip(_labels([group[0] for group in groups]), beside, strict=True)
    methods = [mean_view(label, runs, distribution.clients, summed=summed) for label, runs in labelled]
    first = entries[0].experiment
    shift = f", shift: {first.shift.kind}" if first.shift else ""
    title = f"{readable(Path(first.dataset).name)}, {first.partition.name} split{shift}"
    return Content(title, distribution, methods, repeated, leaks_of([entry.folder for entry in entries]))


def _unlike_titles(contents: Sequence[Content]) -> list[str]:
    """Return the titles; where some are alike, with what the data hold."""
    titles = [content.title for content in contents]
    said = []
    for content in contents:
        held = content.distribution
        more = f", {len(held.clients)} silos with {int(held.sizes().sum()):,} samples"
        said.append(content.title + (more if titles.count(content.title) > 1 else ""))
    return [f"{title} ({k})" if said.count(title) > 1 else title for k, title in enumerate(said, 1)]


def _usable(folders: Sequence[RunFolder], live: bool) -> tuple[list[Entry], list[str]]:
    """Return the runs that can be shown, and why others cannot; raise if none can."""
    entries, reasons = list[Entry](), list[str]()
    for folder in folders:
        try:
            result = folder.result()
        except UserError as refusal:
            reasons.append(str(refusal))
            continue
        if live or not np.isnan(result.scores()).all():
            entries.append(Entry(folder, result))
        else:
            waiting = "no round has been measured yet; orchard watch shows it while it goes on"
            if result.figures_stay:
                waiting = "its figures stay at the sites, under [privacy]; each has `orchard site report`"
            reasons.append(f"{folder.path}: {waiting}")
    if not entries:
        raise UserError("\n".join(reasons))
    failed = [entry for entry in entries if entry.folder.state() == "failed"]
    if len(failed) < len(entries):  # what failed is shown only if there is nothing else
        entries = [entry for entry in entries if entry not in failed]
        reasons += [f"{entry.folder.path}: the run failed" for entry in failed]
    return entries, [readable(reason) for reason in reasons]


def _given_by_others(entries: Sequence[Entry]) -> list[Entry]:
    """Return entries for methods that have no run of their own but are reported by another run, as in a comparison."""
    if len({_kind(entry) for entry in entries}) == 1:
        return []
    known = {(entry.experiment.method.name, entry.experiment.seed) for entry in entries}
    given: dict[tuple[str, int], Entry] = {}
    for entry in entries:
        for name in entry.experiment.method.also_reports:
            key = name, entry.experiment.seed
            if key not in known:
                given.setdefault(key, replace(entry, given=name))
    return list(given.values())


def _kind(entry: Entry) -> str:
    """Return what runs that differ in the seed alone have in common: the settings, and how far they got."""
    return json.dumps([entry.given, len(entry.result.rounds), entry.experiment.identity() | {"seed": None}])


def _by_method(entries: Sequence[Entry]) -> tuple[list[list[Entry]], list[str]]:
    """Return the entries that differ in the seed alone together; of the same run twice, the first, and a note."""
    groups: dict[str, dict[int, Entry]] = {}
    repeated = []
    for entry in entries:
        group, seed = groups.setdefault(_kind(entry), {}), entry.experiment.seed
        if seed in group:
            repeated.append(readable(f"{entry.folder.path}: repeats {group[seed].folder.path}"))
        group.setdefault(seed, entry)
    return [list(group.values()) for group in groups.values()], repeated


def _labels(entries: Sequence[Entry]) -> list[str]:
    """Return a unique name for each entry: its method, then what tells it from the others."""
    labels = [entry.given or method_label(entry.experiment.method) for entry in entries]
    alike = [[e for e, other in zip(entries, labels, strict=True) if other == label] for label in labels]
    labels = [
        ", ".join([label, *(_differing(entry, group) if len(group) > 1 else [])])
        for label, entry, group in zip(labels, entries, alike, strict=True)
    ]
    unique: list[str] = []
    for label in labels:
        names = (label if k == 1 else f"{label} ({k})" for k in count(1))
        unique.append(next(name for name in names if name not in unique))
    return unique


def _differing(entry: Entry, alike: Iterable[Entry]) -> list[str]:
    """Return the settings by which an entry differs from others of the same method, and how far it got."""
    words = differing(entry.experiment, [other.experiment for other in alike], but="seed")
    done = len(entry.result.rounds)
    if done < entry.experiment.rounds:
        words.append(f"{done} of {entry.experiment.rounds} rounds")
    return words


def _shown(entry: Entry, cells: int) -> MethodView:
    folder, result, given = entry.folder, entry.result, entry.given
    experiment, rounds = result.experiment, result.rounds
    moment: Moment = experiment.method.also_reports[given] if given else experiment.method.moment
    figures = result.figures(moment) if rounds else None
    up, down = (np.array([getattr(r, name) for r in rounds]) for name in ("bytes_up", "bytes_down"))
    deployed = (folder.path / "plan.json").is_file()
    relationships, command = result.relationships, DEPLOYED if deployed else command_of(experiment)
    names = result.distribution.clients
    return MethodView(
        label="",
        method=given or experiment.method.name,
        seeds=[experiment.seed],
        folders=[] if folder.read("environment.json").get("in_memory") else [readable(folder.path.resolve().name)],
        state=folder.state(),
        planned=experiment.rounds,
        loss=plain(result.training_loss, 6),
        scores=plain(result.scores("test", moment), 5),
        **_selected(figures),
        clients=plain(np.array(figures.clients), 5) if figures else [None] * len(names),
        balanced_clients=_balanced(result, moment, figures),
        by_class=read_by_class(folder, result) if figures and not given else None,
        relationships=Relationships.thinned(relationships, cells),
        helpers=strongest_helpers(relationships[-1], names) if relationships is not None else [[] for _ in names],
        traffic=(up + down).mean(axis=1).cumsum().tolist() if rounds else [],
        bytes_up=float(up.mean()) if rounds else 0.0,
        bytes_down=float(down.mean()) if rounds else 0.0,
        seconds=sum(r.seconds for r in rounds),
        commands=[command] if command else [],
        settings=to_toml(experiment),
        deployed=deployed,
        privacy="" if experiment.privacy is None else str(experiment.privacy),
    )


def _selected(figures: Figures | None) -> dict[str, Any]:
    """Return the mean scores at the best, the last and the validation round; None if some client's is missing."""
    if not figures:
        return dict.fromkeys(SELECTED)
    chosen = {"best": figures.best, "last": figures.last, "validation": figures.validation_selected}
    scores: dict[str, float | None] = {name: one.score for name, one in chosen.items()}
    known = [score for score in figures.clients if not np.isnan(score)]
    scores |= {"worst": min(known, default=None), "balanced": figures.best.measures.get("balanced_accuracy")}
    return {name: None if s is None or np.isnan(s) else Spread(s, None) for name, s in scores.items()}


def _balanced(result: Result, moment: Moment, figures: Figures | None) -> Values | None:
    if not figures or "balanced_accuracy" not in result.task.measures:
        return None
    values: Values = plain(result.scores("test", moment, "balanced_accuracy")[figures.best.round], 5)
    return values


def _beside_alone(run: MethodView, alone: Sequence[MethodView] | None) -> MethodView:
    """Return a run compared with training alone, with the same seed if there is such a run."""
    if not alone or not run.best or run.method == "separate":
        return run
    other = next((one for one in alone if one.seeds == run.seeds), alone[0])
    gains: Any = np.subtract(np.array(run.clients, dtype=np.float64), np.array(other.clients, dtype=np.float64))
    return replace(run, gains=plain(gains, 5), alone=other.best.mean if other.best else None)
