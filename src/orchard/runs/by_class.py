"""How good each client's model is class by class on its own test samples, at the round with the best mean test score.

Kept in `by_class.json`: of classes, how many test samples of one were taken for which, as rows (true, predicted,
samples) of what occurs; of findings, a row (samples that have it, AUROC, average precision) for each.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from orchard.core.evaluation import outputs_of
from orchard.core.federation import Federation
from orchard.core.vector import Model
from orchard.data.clients import ClientData
from orchard.data.samples import Samples
from orchard.errors import UserError
from orchard.runs.files import to_json
from orchard.runs.folder import RunFolder
from orchard.runs.result import Result
from orchard.tasks.classification import Classification, confusion_matrix
from orchard.tasks.multilabel import Multilabel
from orchard.tasks.task import finite_rows
from orchard.whole import write_durably

FILE = "by_class.json"
Rows = list[list[float | None]]


def write_by_class(folder: RunFolder, result: Result, clients: Sequence[ClientData]) -> None:
    """Evaluate the models that are kept of the best round once more, and write what they do by class."""
    if not isinstance(result.task, Classification | Multilabel):
        return
    best = result.figures().best.round
    models = (folder.models.read(best, i) for i in range(len(clients)))
    found = _by_class(result.federation, models, clients)
    write_durably(folder.path / FILE, to_json({"round": best, "clients": found}) + "\n")


def _by_class(federation: Federation, models: Iterable[Model], clients: Sequence[ClientData]) -> list[Rows | None]:
    network, found = federation.network(), []
    for (vector, buffers), client in zip(models, clients, strict=True):
        network.load_buffers(buffers)
        test = Samples(client.test.x.to(network.vector), client.test.y)
        outputs = outputs_of(network, vector.to(network.vector), test.x).cpu()
        finite = bool(finite_rows(outputs).all())
        found.append(_rows(federation, outputs, test.y.cpu()) if finite else None)
    return found


def _rows(federation: Federation, outputs: torch.Tensor, y: torch.Tensor) -> Rows:
    task = federation.task
    if isinstance(task, Multilabel):
        return [list(row) for row in zip(task.counts(y), *task.by_finding(outputs, y), strict=True)]
    table = confusion_matrix(outputs, y, len(task.classes))
    return [[true, given, int(table[true, given])] for true, given in table.nonzero().tolist()]


def read_by_class(folder: RunFolder, result: Result) -> list[Rows | None] | None:
    """Return each client's rows; None if the run has none of its best round, or they are damaged."""
    try:
        kept: dict[str, Any] = folder.read(FILE)
    except UserError:
        return None
    clients = kept.get("clients")
    if kept.get("round") != result.figures().best.round or not isinstance(clients, list):
        return None
    whole = len(clients) == result.federation.clients and all(_fits(result, rows) for rows in clients)
    return clients if whole else None


def _fits(result: Result, rows: object) -> bool:
    """Tell whether rows that were read are of the right form."""
    if rows is None:
        return True
    numbers = isinstance(rows, list) and all(
        isinstance(row, list) and len(row) == 3 and all(isinstance(v, int | float | None) for v in row) for row in rows
    )
    if not numbers or not isinstance(rows, list):
        return False
    known = range(len(result.task.classes))
    if isinstance(result.task, Multilabel):
        return len(rows) == len(known)
    return all(true in known and given in known and count is not None for true, given, count in rows)
