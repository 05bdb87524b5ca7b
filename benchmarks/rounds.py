"""What a round costs beside its training steps: evaluation, figures, exchange, checkpoints, and a method's own work.

Real runs of the 12 clients of a practical split, the paper's CNN, batch 256, 5 epochs, one worker. They have a
fifth of MNIST's samples, which makes all that does not grow with the data count five times as much. Everything is
timed inside the run, so that each share is of the same rounds. The first round, which has no models of others to
evaluate yet, and the last exchange, which has no training, are left out.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from federations import CLIENTS, practical_images
from measuring import Clock, Figure
from orchard.core import training
from orchard.core.training import ClientContext
from orchard.data.client_arrays import ClientArrays
from orchard.engines import client_round
from orchard.methods import apple
from orchard.methods.fedfomo import FedFomoClient, FedFomoServer
from orchard.methods.graft import GraftClient, GraftServer
from orchard.methods.heurfedamp import HeurFedAMPClient, HeurFedAMPServer
from orchard.runs.folder import RunFolder
from orchard.runs.model_store import ModelStore
from orchard.runs.result import Result
from orchard.runs.run import run
from orchard.tasks.classification import Classification

SAMPLES, ROUNDS = 12_000, 10

Shares = dict[str, tuple[float, ...]]

WORK: list[tuple[object, str, str]] = [
    (client_round, "evaluate", "evaluation"),
    (Classification, "measure", "measures"),
    (RunFolder, "append", "saving"),
    (RunFolder, "write_checkpoint", "saving"),
    (ModelStore, "stage", "saving"),
]

OWN_WORK: dict[str, list[tuple[object, str]]] = {
    "fedfomo": [(FedFomoClient, "receive"), (FedFomoServer, "send"), (FedFomoServer, "aggregate")],
    "heurfedamp": [(HeurFedAMPClient, "receive"), (HeurFedAMPServer, "send"), (HeurFedAMPServer, "aggregate")],
    "graft": [(GraftClient, "receive"), (GraftServer, "send"), (GraftServer, "aggregate")],
}


@contextmanager
def replaced(owner: object, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def shares(method: str, arrays: list[ClientArrays]) -> Shares:
    """Run a method; return what each kind of work took of every round, and the whole round."""
    clocks = {kind: Clock() for kind in ("steps", "evaluation", "measures", "saving", "own")}
    run_epochs = training.run_epochs

    def timed_epochs(context: ClientContext, round: int, step: Any, *which: Any) -> float:
        return run_epochs(context, round, clocks["steps"].timed(step), *which)

    marks: list[dict[str, float]] = []

    def mark(result: Result) -> None:
        marks.append({kind: clock.spent for kind, clock in clocks.items()} | {"round": time.perf_counter()})

    timed = [*WORK, *((owner, name, "own") for owner, name in OWN_WORK.get(method, []))]
    with ExitStack() as stack:
        for module in (training, apple):
            stack.enter_context(replaced(module, "run_epochs", timed_epochs))
        for owner, name, kind in timed:
            stack.enter_context(replaced(owner, name, clocks[kind].timed(getattr(owner, name))))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings: dict[str, Any] = {"dataset": "arrays", "clients": CLIENTS, "rounds": ROUNDS, "method": method}
        run(data=arrays, workers=1, out=folder / "run", progress=mark, **settings)
    rounds = [{kind: after[kind] - before[kind] for kind in after} for before, after in pairwise(marks)][:-1]
    return {kind: tuple(spent[kind] for spent in rounds) for kind in rounds[0]}


def measure() -> list[Figure]:
    arrays = practical_images(SAMPLES)

    def part(spent: Shares, kind: str, of: str = "round") -> tuple[float, ...]:
        return tuple(a / b for a, b in zip(spent[kind], spent[of], strict=True))

    spent = shares("apple", arrays)
    figures = [
        Figure("whole round / its training steps", part(spent, "round", "steps"), at_most=1.08),
        Figure("evaluation, share of a round", part(spent, "evaluation"), at_most=0.1),
        Figure("of it balanced accuracy and AUROC, share of a round", part(spent, "measures")),
        Figure("saving, share of a round", part(spent, "saving"), about="metrics, models and checkpoints"),
    ]
    for method in OWN_WORK:
        own = part(shares(method, arrays), "own")
        figures.append(Figure(f"{method}'s own work, share of a round", own, at_most=0.05))
    return figures
