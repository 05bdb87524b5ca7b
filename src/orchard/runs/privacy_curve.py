"""What privacy costs: accuracy against ε, measured on federations that differ in size.

python -m orchard.runs.privacy_curve results/privacy.json [FEDERATION ...]

It can be interrupted and repeated: finished runs are reused, and figures are kept as soon as a federation has one.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from pydantic import TypeAdapter

from orchard.experiment import RunOptions, load_experiment
from orchard.privacy.accounting import account_of
from orchard.runs.comparison import Spread
from orchard.runs.grid import Grid, Measured, parse_contender, run_grid
from orchard.runs.loop import Progress
from orchard.runs.panel import DIGITS, LAST_ROUNDS, SMALL
from orchard.runs.result import Result

METHODS = ("separate", "fedavg-local", "apple", "graft")
EPSILONS = (1.0, 3.0, 8.0)
SEEDS = (0, 1, 2)

FEDERATIONS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "heart-all": ({"dataset": "heart-disease"}, {"batch_size": 64, "lr": 0.2}),
    "digits-dirichlet": (
        {**DIGITS, "partition": {"name": "dirichlet", "alpha": 0.5}, "model": "logistic"},
        {"batch_size": 64, "lr": 0.5, "epochs": 1},
    ),
    "mnist-practical": (
        {**SMALL, "dataset": "mnist", "partition": "practical", "fraction": 0.2},
        {"batch_size": 256, "lr": 0.2, "epochs": 1},
    ),
}
"""Settings without privacy, and what is changed with it: larger batches, since noise is added to each, and fewer."""


@dataclass(frozen=True)
class Cost:
    """A method at one ε."""

    federation: str
    method: str
    epsilon: float | None
    """None: without privacy."""
    accuracy: Spread
    """Mean client test accuracy over the last rounds, which nobody chooses; ± over seeds."""
    samples: tuple[int, int]
    """Training samples of the smallest and the largest client."""
    multiplier: tuple[float, ...] | None
    """σ of the largest and of the smallest client."""
    seeds: tuple[int, ...]


class Curve:
    """Measured costs, in a file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.costs = TypeAdapter(list[Cost]).validate_json(file.read_bytes()) if file.exists() else []

    def keep(self, new: Sequence[Cost]) -> None:
        """Replace what was measured before, and write the file."""
        fresh = {(c.federation, c.method, c.epsilon): c for c in new}
        kept = {(c.federation, c.method, c.epsilon): c for c in self.costs}
        self.costs = list({**kept, **fresh}.values())
        self.file.write_text(json.dumps([asdict(cost) for cost in self.costs], indent=1) + "\n", "utf-8")


def measure(federation: str, options: RunOptions, root: Path, seeds: Sequence[int] = SEEDS) -> Iterator[list[Cost]]:
    """Run all methods of a federation, one ε after another; yield their costs."""
    plain, private = FEDERATIONS[federation]
    for epsilon in (None, *reversed(EPSILONS)):
        changes = {} if epsilon is None else {**private, "privacy": {"epsilon": epsilon}}
        base = load_experiment(overrides={**plain, **changes})
        contenders = [parse_contender(method, base) for method in METHODS]
        runs = run_grid(Grid(base, options, seeds, root), contenders, _Told())
        yield [_cost(federation, method, [runs[method, seed] for seed in seeds], seeds) for method in METHODS]


def _cost(federation: str, method: str, runs: Sequence[Measured], seeds: Sequence[int]) -> Cost:
    experiment, samples = runs[0].result.experiment, sorted(runs[0].result.federation.samples)
    ends = (samples[0], samples[-1])
    private = experiment.privacy
    return Cost(
        federation=federation,
        method=method,
        epsilon=private.epsilon if private else None,
        accuracy=Spread.of([mean(run.curve[-LAST_ROUNDS:]) for run in runs]),
        samples=ends,
        multiplier=tuple(account_of(experiment, n).multiplier for n in reversed(ends)) if private else None,
        seeds=tuple(seeds),
    )


class _Told:
    """Says on standard error which runs are done."""

    def plan(self, runs: int, rounds: int, stage: str) -> None:
        """Say nothing."""

    def begin(self, label: str, seed: int) -> Progress | None:
        """Say nothing."""
        return None

    def end(self, label: str, seed: int, result: Result, reused: Path | None) -> None:
        """Say that a run has finished."""
        sys.stderr.write(f"{label}, seed {seed}: {mean(result.scores()[-1]):.3f}\n")

    def fail(self, label: str, seed: int, reason: str) -> None:
        """Say why a run failed."""
        sys.stderr.write(f"{label}, seed {seed}: {reason}\n")


def main() -> None:
    """Measure the federations that are named, or all."""
    curve = Curve(Path(sys.argv[1]))
    for federation in sys.argv[2:] or FEDERATIONS:
        for costs in measure(federation, RunOptions(workers=1), Path("runs") / "privacy"):
            curve.keep(costs)


if __name__ == "__main__":
    main()
