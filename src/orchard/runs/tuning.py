"""Choose each method's parameters by validation, with successive halving over rounds.

K. Jamieson, A. Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS 2016,
    https://arxiv.org/abs/1502.07943

A method's candidates are all combinations of three learning rates (the experiment's own, a third of it and three times
it) and the values of the method's own grid; a parameter that was set stays as it is. They all run for a few rounds, the
best third of them for three times as many, and so on; the last three run for all rounds, and the best of these is
chosen. What counts is the best mean validation score of a run; the first of equals wins, and a candidate that fails is
out. The runs are kept like any others, so that tuning can be interrupted and repeated, and a comparison reuses them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, inf, isnan, log
from statistics import mean
from typing import Any

from orchard.errors import UserError
from orchard.experiment import Experiment
from orchard.runs.grid import Contender, Grid, GridFailed, Measured, Watcher, run_grid
from orchard.runs.loop import Stop

REDUCTION = 3
"""How many times fewer candidates run for how many times more rounds."""
RATES = (1.0, 1 / 3, 3.0)
"""Learning rates to try, as multiples of the experiment's."""


@dataclass(frozen=True)
class Choice:
    """What tuning found for a method."""

    contender: Contender
    """The method with the values that were chosen; its label names them."""
    validation: float
    """The best mean validation score of its run, averaged over seeds."""
    candidates: int
    edge: str | None
    """Whether its learning rate is the "smallest" or the "largest" that was tried."""


def tune(grid: Grid, contenders: Sequence[Contender], watcher: Watcher, stop: Stop | None = None) -> list[Choice]:
    """Choose the parameters of every contender."""
    every = {contender.label: candidates(contender, grid.base) for contender in contenders}
    rungs = {label: ceil(log(max(2, len(these)), REDUCTION) - 1e-9) for label, these in every.items()}
    left, scores = dict(every), dict[str, float]()
    stages = max(rungs.values())
    for rung in reversed(range(stages)):
        rounds = ceil(grid.base.rounds / REDUCTION**rung)
        running = {label: these for label, these in left.items() if rungs[label] > rung}
        stage = f"tuning, stage {stages - rung} of {stages}"
        this = replace(grid, base=grid.base.changed(rounds=rounds), stage=stage)
        scores = validation_scores(this, running, watcher, stop)
        left |= {label: best_first(these, scores)[: REDUCTION**rung] for label, these in running.items()}
    return [
        Choice(best, scores[best.label], len(every[label]), _edge(best, grid.base)) for label, (best,) in left.items()
    ]


def candidates(contender: Contender, base: Experiment) -> list[Contender]:
    """Return the contender with every combination of values to try, the present ones first."""
    settings = contender.settings
    own = {name: values for name, values in settings.grid.items() if name not in settings.model_fields_set}
    now = [base.lr, *(getattr(settings, name) for name in own)]
    found, refused = list[Contender](), list[UserError]()
    every = product([_rate(base, factor) for factor in RATES], *own.values())
    for lr, *values in sorted(every, key=lambda these: list(these) != now):
        chosen = dict(zip(own, values, strict=True))
        try:
            tried = settings.changed(**chosen)
            base.changed(**contender.changes, lr=lr, method=tried)
        except UserError as refusal:  # e.g. too strong a pull for this learning rate
            refused.append(refusal)
            continue
        found.append(Contender(named(contender.label, {"lr": lr, **chosen}), tried, {**contender.changes, "lr": lr}))
    if not found:
        raise refused[0]
    return found


def validation_scores(
    grid: Grid, running: Mapping[str, Sequence[Contender]], watcher: Watcher, stop: Stop | None
) -> dict[str, float]:
    """Run all candidates as one grid, so that methods can share runs; return their scores by label.

    A candidate that fails has none; raise if all of a contender's fail.
    """
    failure: GridFailed | None = None
    runs: Mapping[tuple[str, int], Measured]
    try:
        runs = run_grid(grid, [one for these in running.values() for one in these], watcher, stop)
    except GridFailed as failed:
        failure, runs = failed, failed.measured
    found: dict[str, list[float]] = defaultdict(list)
    for (label, _), run in runs.items():
        found[label].append(run.figures.validation)
    scores = {label: mean(values) for label, values in found.items() if len(values) == len(grid.seeds)}
    if failure and not all(any(one.label in scores for one in these) for these in running.values()):
        raise failure
    return {label: -inf if isnan(score) else score for label, score in scores.items()}


def named(label: str, values: Mapping[str, Any]) -> str:
    """Name a candidate by its values."""
    return " ".join([label, *(f"{name}={value}" for name, value in values.items())])


def best_first(these: Sequence[Contender], scores: Mapping[str, float]) -> list[Contender]:
    """Return the candidates that did not fail, the best first."""
    return sorted((one for one in these if one.label in scores), key=lambda one: -scores[one.label])


def _rate(base: Experiment, factor: float) -> float:
    return base.lr if factor == 1 else float(f"{base.lr * factor:.2g}")


def _edge(best: Contender, base: Experiment) -> str | None:
    ends = {_rate(base, min(RATES)): "smallest", _rate(base, max(RATES)): "largest"}
    return ends.get(best.changes["lr"])
