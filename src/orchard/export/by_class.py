"""How good a model is class by class, or finding by finding, on its client's own test samples."""

import re
from collections.abc import Sequence
from html import escape

import torch
from torch import Tensor

from orchard.core.evaluation import evaluation_batch
from orchard.export.trained_model import TrainedModel
from orchard.tasks.classification import Classification, confusion_matrix
from orchard.tasks.multilabel import Multilabel
from orchard.tasks.task import Task, finite_rows

MOST_COLUMNS = 12
"""A confusion matrix of more classes is too wide to be read."""
MISSING = "There are no figures by {}: the test data were not at hand, or had changed, when this card was written."
RECALL = (
    "Recall: of the test samples of a class, the share that is predicted as it. "
    "Precision: of those predicted as a class, the share that is of it."
)


def has_classes(task: Task) -> bool:
    """Tell whether figures by class can be given."""
    return isinstance(task, Classification | Multilabel)


def by_class(trained: TrainedModel) -> list[str]:
    """Return a table for the model card; nothing if the task has no classes or an output is not finite."""
    task = trained.task
    if not has_classes(task):
        return []
    if trained.test is None:
        return ["", MISSING.format(task.nouns[0])]
    outputs, y = _outputs(trained, trained.test.x), trained.test.y
    if not bool(finite_rows(outputs).all()):
        return []
    return ["", *(_findings(task, outputs, y) if isinstance(task, Multilabel) else _classes(task, outputs, y))]


@torch.inference_mode()
def _outputs(trained: TrainedModel, x: Tensor) -> Tensor:
    module, x = trained.module().eval(), x.to(trained.model[0].dtype)
    return torch.cat([module(batch) for batch in torch.split(x, evaluation_batch(x.shape))])


def _classes(task: Task, outputs: Tensor, y: Tensor) -> list[str]:
    """Return recall and precision of each class and, of few classes, the confusion matrix."""
    table = confusion_matrix(outputs, y, len(task.classes))
    names, shown = [cell(name) for name in task.classes], len(task.classes) <= MOST_COLUMNS
    head = [*(["true ↓ predicted →", *names] if shown else ["class"]), "samples", "recall", "precision"]
    rows = []
    for k, name in enumerate(names):
        hits, held, given = int(table[k, k]), int(table[k].sum()), int(table[:, k].sum())
        counts = [str(count) for count in table[k].tolist() if shown]
        rows.append([name, *counts, str(held), _share(hits, held), _share(hits, given)])
    return [*_table(head, rows), "", RECALL]


def _findings(task: Multilabel, outputs: Tensor, y: Tensor) -> list[str]:
    """Return the measures of each finding."""
    having = zip(task.classes, task.counts(y), *task.by_finding(outputs, y), strict=True)
    rows = [[cell(name), str(count), _figure(auroc), _figure(precision)] for name, count, auroc, precision in having]
    return _table(["finding", "test samples that have it", "AUROC", "average precision"], rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    first, *rest = (f"| {' | '.join(row)} |" for row in (head, *rows))
    return [first, f"|{'---|' * len(head)}", *rest]


def _share(some: int, of: int) -> str:
    return _figure(some / of if of else None)


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def cell(text: str) -> str:
    """Return a text that stays text, in its cell of a Markdown table: no HTML, link, image or code."""
    return re.sub(r"([|\[\]`\\])", r"\\\1", escape(text, quote=False)).replace("\n", " ")
