"""Parameters chosen from the paper's grid, on validation accuracy.

Every method: learning rate × its decay. With the best of these, APPLE: scheduler × μ × L, and FedProx-FT: μ, beside
what they had. (The paper does not say whether its grid was searched at once; in this order APPLE takes 27 runs instead
of 162.) Ties go to the first; who fails loses. The runs are kept like any others, so that tuning can be interrupted
and repeated. FedAvg and its relatives share their runs, and are run apart once more if they choose different rates.

What the paper leaves open, or says in two ways, is chosen so. By which data it chose it does not say. APPLE's η2 has no
grid in the paper and stays the published one of the dataset; its μ is searched in the published grid, which lacks the
0.001 of three published cells; FedProx's μ, of which nothing is published, in {0.001, 0.01, 0.1, 1}.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from orchard.experiment import Experiment
from orchard.grid import Contender, GridFailed, Measured, Watcher, run_grid
from orchard.runs import Stop

RATES: Mapping[str, Sequence[Any]] = {"lr": (1e-2, 1e-3, 1e-4), "lr_decay": (1.0, 0.9964, 0.9)}
PARAMETERS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "apple": {"mu": (1.0, 0.1, 0.01), "scheduler": ("cos", "exp"), "scheduler_fraction": (0.1, 0.2, 0.3)},
    "fedprox-ft": {"mu": (1.0, 0.1, 0.01, 0.001)},
}


def searched(method: str, parameters: Mapping[str, Any]) -> Mapping[str, Sequence[Any]]:
    """Return the grid of a method's own parameters; without its penalty APPLE has none to choose."""
    return PARAMETERS.get(method, {}) if parameters.get("mu") else {}


def tuned(
    base: Experiment, rows: Sequence[Contender], seed: int, root: Path, watcher: Watcher, stop: Stop | None
) -> list[Contender]:
    """Return the same rows with the parameters that validation chooses, tried with one seed."""

    def best(candidates: Mapping[str, Sequence[Contender]]) -> dict[str, Contender]:
        """Return the best of the candidates for each row; all are run as one grid, in which rows may share runs."""
        every = [one for these in candidates.values() for one in these]
        failure: GridFailed | None = None
        runs: Mapping[tuple[str, int], Measured]
        try:
            runs = run_grid(base, every, [seed], root, watcher, stop)
        except GridFailed as failed:
            failure, runs = failed, failed.measured
        chosen = {}
        for label, these in candidates.items():
            sound = [one for one in these if (one.label, seed) in runs]
            if failure and not sound:
                raise failure
            chosen[label] = max(sound, key=lambda one: runs[one.label, seed].figures.validation)
        return chosen

    chosen = best({row.label: with_rates(row) for row in rows})
    grids = {label: [row, *with_parameters(row)] for label, row in chosen.items() if with_parameters(row)}
    if grids:
        chosen |= best(grids)
    return [replace(chosen[row.label], label=row.label) for row in rows]


def with_rates(row: Contender) -> list[Contender]:
    """Return a row with every learning rate and decay."""
    return [
        replace(row, label=_named(row.label, values), changes={**row.changes, **values}) for values in _product(RATES)
    ]


def with_parameters(row: Contender) -> list[Contender]:
    """Return a row with all other values of its method's own parameters."""
    grid = _product(searched(row.settings.name, row.settings.model_dump()))
    rows = [
        replace(row, label=_named(row.label, values), settings=row.settings.model_copy(update=values))
        for values in grid
    ]
    return [one for one in rows if one.settings != row.settings]


def _product(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def _named(label: str, values: Mapping[str, Any]) -> str:
    return " ".join([label, *(f"{name}={value}" for name, value in values.items())])
