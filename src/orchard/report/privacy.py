"""The page on privacy of the documentation: what is written by hand, with the measured cost in it.

python -m orchard.report.privacy results docs/privacy.md
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from orchard.report.panel import markdown
from orchard.runs.comparison import Spread
from orchard.whole import write_output


@dataclass(frozen=True)
class Cost:
    """What a method reaches at one ε: `benchmarks/privacy_curve.py` measures it."""

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


def measured(file: Path) -> list[Cost]:
    """Return what is kept in a file; nothing if there is none."""
    return TypeAdapter(list[Cost]).validate_json(file.read_bytes()) if file.exists() else []


def keep(file: Path, new: Sequence[Cost]) -> None:
    """Put costs into a file, in place of what was measured of the same before."""
    kept = {(cost.federation, cost.method, cost.epsilon): cost for cost in [*measured(file), *new]}
    write_output(file, json.dumps([asdict(cost) for cost in kept.values()], indent=1) + "\n")


def cost_rows(costs: Sequence[Cost]) -> list[list[str]]:
    """Return a row for every federation and method, with a column for every ε, the smallest first."""
    epsilons = sorted({cost.epsilon for cost in costs if cost.epsilon is not None})
    head = ["federation", "method", *(f"ε = {epsilon:g}" for epsilon in epsilons), "without"]
    rows = []
    for federation, method in dict.fromkeys((cost.federation, cost.method) for cost in costs):
        theirs = {cost.epsilon: cost for cost in costs if (cost.federation, cost.method) == (federation, method)}
        cells = [str(theirs[epsilon].accuracy) if epsilon in theirs else "–" for epsilon in (*epsilons, None)]
        rows.append([f"`{federation}`", f"`{method}`", *cells])
    return [head, *rows]


def noise_rows(costs: Sequence[Cost]) -> list[list[str]]:
    """Return what noise that took: σ at the largest and at the smallest client of each federation."""
    epsilons = sorted({cost.epsilon for cost in costs if cost.epsilon is not None})
    head = ["federation", "training samples", *(f"σ at ε = {epsilon:g}" for epsilon in epsilons)]
    rows = []
    for federation in dict.fromkeys(cost.federation for cost in costs):
        theirs = {c.epsilon: c for c in costs if c.federation == federation and c.method == "fedavg-local"}
        few, many = next(iter(theirs.values())).samples
        found = [theirs[epsilon].multiplier if epsilon in theirs else None for epsilon in epsilons]
        rows.append([f"`{federation}`", f"{few} to {many}", *(_range(one) for one in found)])
    return [head, *rows]


def _range(multipliers: Sequence[float] | None) -> str:
    return " to ".join(f"{sigma:.1f}" for sigma in multipliers) if multipliers else "–"


def document(folder: Path) -> str:
    """Return the page."""
    costs = measured(folder / "privacy.json")
    text = (folder / "privacy.md").read_text("utf-8")
    for name, rows in {"COST": cost_rows(costs), "NOISE": noise_rows(costs)}.items():
        text = text.replace(f"{{{name}}}\n", markdown(rows))
    return text


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(document(Path(sys.argv[1])), "utf-8")
