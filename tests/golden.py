"""Golden results: what every method gives on tiny federations, in figures that do not depend on the processor.

``python tests/golden.py`` adds those of new methods; with another RESULTS_VERSION in `orchard/runs/environment.py` it
writes all of them anew.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import orchard
from helpers import method, small_run
from orchard.methods.registry import BUILT_IN
from orchard.runs.environment import RESULTS_VERSION
from orchard.runs.result import Result

FILE = Path(__file__).with_suffix(".json")

VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in BUILT_IN},
    "apple, budget 1": {"method": method("apple", budget=1, relationship_lr=0.05)},
    "fedfomo, budget 2": {"method": method("fedfomo", budget=2)},
    "fedprox-ft, strong": {"method": method("fedprox-ft", mu=0.7, tuning_epochs=1)},
    "apple, decay and no momentum": {"method": "apple", "lr_decay": 0.7, "momentum": 0.0},
}


def wide() -> nn.Module:
    """Return a small network in float64: over a few rounds processors agree to six digits."""
    return nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.Tanh(), nn.Linear(10, 3)).double()


def run_variant(name: str) -> Result:
    """Run one of them."""
    return small_run(model=wide, rounds=4, batch_size=6, **VARIANTS[name])


def figures(result: Result) -> dict[str, Any]:
    """Return a few figures that a change of any weight changes."""
    vectors = torch.stack([vector for vector, _ in result.models]).double().numpy()
    probe = np.cos(np.arange(vectors.shape[1]))
    return {
        "models": (vectors @ probe).tolist(),
        "norms": np.linalg.norm(vectors, axis=1).tolist(),
        "losses": [entry.loss for entry in result.rounds],
    }


def cnn_losses() -> list[Any]:
    """Return the losses of the paper's network on the embedded digits."""
    result = orchard.run(dataset="digits", method="apple", clients=4, rounds=2, epochs=1, batch_size=32)
    return [entry.loss for entry in result.rounds]


def write() -> None:
    """Write the file; keep what it has of this version."""
    old = json.loads(FILE.read_text("utf-8"))
    kept = old if old["results_version"] == RESULTS_VERSION else {}
    known = kept.get("small", {})
    small = {name: known.get(name) or figures(run_variant(name)) for name in VARIANTS}
    content = {"results_version": RESULTS_VERSION, "small": small, "cnn": kept.get("cnn") or cnn_losses()}
    FILE.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    write()
