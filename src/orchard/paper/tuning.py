"""Parameters chosen as the paper chose them: by a grid, on validation accuracy.

Every method: learning rate × its decay. APPLE then, with these, scheduler × μ × L. (The paper does not say whether its
grid was searched at once; this order takes 27 runs instead of 162.) Ties go to the first of the grid. The runs are
kept like any others, so that tuning can be interrupted and repeated.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from orchard.comparison import Contender, Watcher, run_grid
from orchard.experiment import Experiment
from orchard.runs import Stop

RATES = (1e-2, 1e-3, 1e-4)
DECAYS = (1.0, 0.9964, 0.9)
SCHEDULERS = ("cos", "exp")
MUS = (1.0, 0.1, 0.01)
FRACTIONS = (0.1, 0.2, 0.3)

Search = Callable[[Sequence[Contender]], Contender]


def tuned(
    base: Experiment, rows: Sequence[Contender], seed: int, root: Path, watcher: Watcher, stop: Stop | None
) -> list[Contender]:
    """Return the same rows with the parameters that validation chooses, tried with one seed."""

    def best(candidates: Sequence[Contender]) -> Contender:
        summaries = run_grid(base, candidates, [seed], root, watcher, stop)
        return max(candidates, key=lambda one: _validation(one, summaries[one.label, seed]))

    return [_tuned(row, best) for row in rows]


def _validation(contender: Contender, summary: dict[str, object]) -> float:
    figures = summary["figures"]
    assert isinstance(figures, dict)  # noqa: S101 (for the type checker)
    return float(figures[contender.settings.moment]["validation"])


def _tuned(row: Contender, best: Search) -> Contender:
    rates = [
        replace(row, label=f"{row.label} lr={lr:g} decay={decay:g}", changes={"lr": lr, "lr_decay": decay})
        for lr, decay in product(RATES, DECAYS)
    ]
    chosen = best(rates)
    if row.settings.name == "apple":
        mus = MUS if row.settings.model_dump()["mu"] else (0.0,)
        chosen = best(
            [
                replace(
                    chosen,
                    label=f"{row.label} mu={mu:g} {scheduler} L={fraction:g}",
                    settings=chosen.settings.model_copy(
                        update={"mu": mu, "scheduler": scheduler, "scheduler_fraction": fraction}
                    ),
                )
                for mu, scheduler, fraction in product(mus, SCHEDULERS if any(mus) else ("cos",), FRACTIONS)
            ]
        )
    return replace(chosen, label=row.label)
