"""Choose parameters from the paper's grid by validation accuracy.

First, every method tries all pairs of learning rate and decay. Then, with the best pair, APPLE tries all combinations
of scheduler, μ and L, and FedProx-FT all μ; both also keep the values that they had as a candidate. (The paper does not
say whether it searched its whole grid; in two steps APPLE takes 27 runs instead of 162.) The first of equal candidates
wins; a candidate whose run fails is out. The runs are kept like any others, so tuning can be interrupted and repeated.
FedAvg and its relatives share runs; if they choose different rates, they are run separately once more.

The paper leaves some choices open. It does not say on which data it chose; here it is the validation data. It has no
grid for APPLE's η2, which keeps the dataset's published value. Its grid for APPLE's μ is used as published, although
three published cells use 0.001, which is not in it. It says nothing about FedProx's μ, which is searched in
{0.001, 0.01, 0.1, 1}.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from orchard.runs.grid import Contender, Grid, Watcher
from orchard.runs.loop import Stop
from orchard.runs.tuning import best_first, named, validation_scores

RATES: Mapping[str, Sequence[Any]] = {"lr": (1e-2, 1e-3, 1e-4), "lr_decay": (1.0, 0.9964, 0.9)}
PARAMETERS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "apple": {"mu": (1.0, 0.1, 0.01), "scheduler": ("cos", "exp"), "scheduler_fraction": (0.1, 0.2, 0.3)},
    "fedprox-ft": {"mu": (1.0, 0.1, 0.01, 0.001)},
}


def searched(method: str, parameters: Mapping[str, Any]) -> Mapping[str, Sequence[Any]]:
    """Return the grid of a method's own parameters; it is empty for APPLE with μ = 0."""
    return PARAMETERS.get(method, {}) if parameters.get("mu") else {}


def tuned(grid: Grid, rows: Sequence[Contender], watcher: Watcher, stop: Stop | None) -> list[Contender]:
    """Return the same rows with the parameters that do best on validation data, with the first seed."""

    def best(candidates: Mapping[str, Sequence[Contender]], stage: str) -> dict[str, Contender]:
        """Return the best candidate of each row, the first of equals; one that fails is out."""
        with_first_seed = replace(grid, seeds=grid.seeds[:1], stage=f"tuning {stage}")
        scores = validation_scores(with_first_seed, candidates, watcher, stop)
        return {label: best_first(these, scores)[0] for label, these in candidates.items()}

    chosen = best({row.label: with_rates(row) for row in rows}, "learning rates")
    grids = {label: [row, *with_parameters(row)] for label, row in chosen.items() if with_parameters(row)}
    if grids:
        chosen |= best(grids, "parameters")
    return [replace(chosen[row.label], label=row.label) for row in rows]


def with_rates(row: Contender) -> list[Contender]:
    """Return the row once for every pair of learning rate and decay."""
    return [
        replace(row, label=named(row.label, values), changes={**row.changes, **values}) for values in _product(RATES)
    ]


def with_parameters(row: Contender) -> list[Contender]:
    """Return the row once for every other combination of its method's own parameters."""
    grid = _product(searched(row.settings.name, row.settings.model_dump()))
    rows = [
        replace(row, label=named(row.label, values), settings=row.settings.model_copy(update=values)) for values in grid
    ]
    return [one for one in rows if one.settings != row.settings]


def _product(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
