"""Peak memory of a run, in a process of its own, as the federation grows.

Every client has a handful of images, so what grows with N is models. With a budget clients hold copies of different
ages, which are different models: how many of them are alive is counted beside. Needs Linux's /proc; elsewhere it
measures nothing.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from measuring import Figure

PARAMETERS = 431_080
CLIENTS = (12, 24, 48, 96)
BUDGET, ROUNDS = 5, 12
STATUS = Path("/proc/self/status")


def peak(clients: int, budget: int | None) -> dict[str, float]:
    """Run in a process of its own; return its peak memory, and the cores that were alive at the end, both in N·P."""
    command = [sys.executable, str(Path(__file__)), str(clients), str(budget or 0)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603
    found: dict[str, float] = json.loads(printed)
    return found


def measure() -> list[Figure]:
    if not STATUS.exists():
        return []
    figures = []
    for budget in (None, BUDGET):
        found = {clients: peak(clients, budget) for clients in CLIENTS}
        few, many = CLIENTS[0], CLIENTS[-1]
        growth = (found[many]["bytes"] - found[few]["bytes"]) / (4 * PARAMETERS * (many - few))
        megabytes = ", ".join(f"{found[n]['bytes'] / 1e6:.0f}" for n in CLIENTS)
        about = f"{megabytes} MB for N = {', '.join(map(str, CLIENTS))}"
        if budget:
            about += f"; versions of a core alive: {', '.join(format(found[n]['versions'], '.1f') for n in CLIENTS)}"
        name = f"peak memory, models per client, {f'budget {budget}' if budget else 'no budget'}"
        figures.append(Figure(name, (growth,), about=about))
    return figures


def _run(clients: int, budget: int | None) -> None:
    import tempfile

    import orchard
    from federations import random_images
    from orchard.methods.apple import Apple, AppleClient

    versions: list[float] = []

    def count(result: orchard.Result) -> None:
        import gc

        parties = [party for party in gc.get_objects() if isinstance(party, AppleClient)]
        alive = {id(copy) for party in parties for copy in party.copies if copy is not None}
        versions.append(len(alive) / clients)

    settings: dict[str, Any] = {"clients": clients, "rounds": ROUNDS, "epochs": 1, "method": Apple(budget=budget)}
    with tempfile.TemporaryDirectory() as folder:
        images = random_images([20] * clients)
        orchard.run(data=images, dataset="arrays", out=Path(folder) / "run", progress=count, **settings)
    print(json.dumps({"bytes": _most_memory(), "versions": max(versions)}))


def _most_memory() -> int:
    """Return the most memory that this process had, in bytes. (A child's `ru_maxrss` begins at its parent's.)"""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    _run(int(sys.argv[1]), int(sys.argv[2]) or None)
