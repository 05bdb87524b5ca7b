"""What privacy costs: accuracy against ε, measured on federations that differ in size.

``python benchmarks/privacy_curve.py results/privacy.json`` measures all of them, or those that are named. It can be
interrupted and repeated: finished runs are reused, and a method's figure is kept as soon as all its seeds have run.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from orchard.experiment import RunOptions, load_experiment
from orchard.privacy.accounting import account_of
from orchard.report.privacy import Cost, keep
from orchard.runs.comparison import Spread
from orchard.runs.grid import Grid, Measured, parse_contender, run_grid
from orchard.runs.loop import Progress
from orchard.runs.panel import DIGITS, LAST_ROUNDS, SMALL
from orchard.runs.result import Result

METHODS = ("separate", "fedavg-local", "apple", "graft")
EPSILONS = (1.0, 3.0, 8.0)

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


def measure(federation: str, seeds: Sequence[int], options: RunOptions, root: Path) -> Iterator[Cost]:
    """Run the methods at one ε after another, the weakest first; yield what each costs."""
    plain, private = FEDERATIONS[federation]
    for epsilon in (None, *reversed(EPSILONS)):
        changes = {} if epsilon is None else {**private, "privacy": {"epsilon": epsilon}}
        base = load_experiment(overrides={**plain, **changes})
        for method in METHODS:
            runs = run_grid(Grid(base, options, seeds, root), [parse_contender(method, base)], _Told())
            yield _cost(federation, method, [runs[method, seed] for seed in seeds], seeds)


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
    """Says which runs are done."""

    def plan(self, runs: int, rounds: int, stage: str) -> None:
        pass

    def begin(self, label: str, seed: int) -> Progress | None:
        return None

    def end(self, label: str, seed: int, result: Result, reused: Path | None) -> None:
        print(f"{label}, {result.experiment.privacy}, seed {seed}: {mean(result.scores()[-1]):.3f}", flush=True)

    def fail(self, label: str, seed: int, reason: str) -> None:
        print(f"{label}, seed {seed}: {reason}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("federations", nargs="*", choices=[[], *FEDERATIONS], help="none: all")
    parser.add_argument("--seeds", default="0,1,2")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    for federation in options.federations or FEDERATIONS:
        for cost in measure(federation, seeds, RunOptions(workers=1), Path("runs") / "privacy"):
            keep(options.results, [cost])


if __name__ == "__main__":
    main()
