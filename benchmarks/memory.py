"""Peak memory of a run, in a process of its own, as the federation grows.

Every client has a handful of images, so what grows with N is models. With a budget clients hold copies of different
ages, which are different models: how many of them are alive is counted beside.
"""

import json
import subprocess
import sys
from pathlib import Path

from measuring import Figure

PARAMETERS = 431_080
CLIENTS = (12, 24, 48, 96)
BUDGET, ROUNDS = 5, 12


def peak(clients: int, budget: int | None) -> dict[str, float]:
    """Run in a process of its own; return its peak memory, and the cores that were alive at the end, both in N·P."""
    command = [sys.executable, str(Path(__file__)), str(clients), str(budget or 0)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603
    found: dict[str, float] = json.loads(printed)
    return found


def measure() -> list[Figure]:
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
    import resource
    import tempfile

    from federations import random_images
    from orchard.data import from_arrays
    from orchard.experiment import Experiment
    from orchard.methods.apple import Apple, AppleClient
    from orchard.rounds import Exchange
    from orchard.runs import run

    versions: list[float] = []

    def count(exchange: Exchange) -> None:
        import gc

        halves = [half for half in gc.get_objects() if isinstance(half, AppleClient)]
        alive = {id(copy) for half in halves for copy in half.copies if copy is not None}
        versions.append(len(alive) / clients)

    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(
            dataset="arrays",
            clients=clients,
            rounds=ROUNDS,
            epochs=1,
            method=Apple(budget=budget),
            out=Path(folder) / "run",
        )
        run(experiment, from_arrays(random_images([20] * clients), experiment), progress=count)
    bytes_ = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"bytes": bytes_, "versions": max(versions)}))


if __name__ == "__main__":
    _run(int(sys.argv[1]), int(sys.argv[2]) or None)
