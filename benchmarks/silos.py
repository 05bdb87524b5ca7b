"""What separate processes cost: twelve sites and a server over mutual TLS, all on this machine.

Every site has a part of the digits, the paper's CNN and no budget, so that it downloads 11 models a round. What is
left after the same rounds in one process, trained with the same two cores, is what the network, the processes and the
records take. Needs the extra [deploy] and the tests' federation.
"""

import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from federation import Federation, digits, ended
from measuring import Figure
from orchard.experiment import load_experiment
from orchard.runs.folder import RunFolder
from orchard.runs.run import run

CLIENTS, ROUNDS = 12, 12
EXPERIMENT: dict[str, Any] = {"model": "cnn", "epochs": 1, "batch_size": 64, "rounds": ROUNDS, "method": "apple"}


def together() -> list[float]:
    """Return the seconds of each round in one process."""
    experiment = load_experiment(overrides={"dataset": "arrays", "clients": CLIENTS, **EXPERIMENT})
    return [entry.seconds for entry in run(experiment, digits(CLIENTS)).rounds]


def apart(home: Path) -> tuple[list[float], float]:
    """Return the seconds of each round between sites, and the most memory in MB that the server's job had."""
    peak, over = 0, threading.Event()

    def watch(federation: Federation) -> None:
        nonlocal peak
        while not over.wait(0.2):
            peak = max(peak, federation.memory("localhost"))

    with Federation(home, [f"site-{i}" for i in range(CLIENTS)], digits(CLIENTS)) as federation:
        federation.start_all()
        watching = threading.Thread(target=watch, args=[federation])
        watching.start()
        try:
            ended(federation.run(**EXPERIMENT), 900)
        finally:
            over.set()
            watching.join()
    return [entry.seconds for entry in RunFolder(home / "run").result().rounds], peak / 1e6


def measure() -> list[Figure]:
    before = together()
    with tempfile.TemporaryDirectory() as home:
        seconds, memory = apart(Path(home))
    within = sorted(before + together())[ROUNDS]
    # The first round has models to build, the last an exchange more.
    rounds = seconds[1:-1]
    return [
        Figure("12 sites: a round / the same in one process", tuple(s / within for s in rounds)),
        Figure("12 sites: seconds a round beyond training", tuple(s - within for s in rounds), at_most=3),
        Figure("12 sites: MB of the server's process", (memory,), at_most=500),
    ]
