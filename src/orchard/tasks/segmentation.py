"""Segmentation: every pixel (or voxel) is of one class, 0 being the background. Loss: cross-entropy, mean over pixels.

With the pixels of all samples together, and the classes other than background that targets or predictions hold:

    Dice   the mean over classes of 2·TP / (2·TP + FP + FN)
    IoU    the mean over classes of TP / (TP + FP + FN)

Both are undefined where neither targets nor predictions hold anything but background. A pixel with an output that is
not finite counts as background.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from orchard.errors import UserError
from orchard.tasks.classification import check_labels, confusion_matrix, is_whole
from orchard.tasks.task import Array, Measure, Measures, Rows, Task, share_loss

LARGEST_LABEL = 255
WHITE = 255
"""In masks of black and white only, what is white is of class 1."""


class Segmentation(Task):
    """A label for each pixel: n×h×w, or n×d×h×w for volumes."""

    name = "segmentation"
    score = "dice"
    measures: ClassVar = {"dice": Measure("Dice", percent=True), "iou": Measure("IoU", percent=True)}
    counted = "samples that hold each class"

    @classmethod
    def targets(cls, y: Array, place: str) -> Tensor:
        """Return a whole number for each pixel of each sample."""
        if y.dtype == np.bool_ or is_whole(y):
            y = y.astype(np.int64)
        if y.ndim not in (3, 4) or not np.issubdtype(y.dtype, np.integer):
            raise UserError(f"{place}: expected a whole number for each pixel, n×h×w, not {y.dtype} of shape {y.shape}")
        if y.min() < 0 or y.max() > LARGEST_LABEL:
            worst = y.min() if y.min() < 0 else y.max()
            raise UserError(f"{place}: label {worst} of a pixel; expected 0 (background) to {LARGEST_LABEL}")
        return torch.from_numpy(y.astype(np.int64))

    @classmethod
    def decoded(cls, targets: Sequence[Tensor]) -> list[Tensor]:
        """Return labels; if all masks are black and white, white is 1."""
        black_and_white = all(bool(((y == 0) | (y == WHITE)).all()) for y in targets)
        return [(y == WHITE).long() for y in targets] if black_and_white else list(targets)

    @classmethod
    def numbered(cls, y: Tensor) -> Self:
        """Return background, 1, 2 and so on."""
        return cls(("background", *map(str, range(1, max(1, int(y.max())) + 1))))

    def check(self, y: Tensor, place: str) -> None:
        """Raise if a pixel's label is none of the classes."""
        check_labels(y, len(self.classes), place)

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return a score for each class and pixel."""
        return (len(self.classes), *shape[1:])

    def loss(self, outputs: Tensor, y: Tensor, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
        """Return the cross-entropy, mean over pixels."""
        loss = functional.cross_entropy(outputs, y, reduction=reduction)
        return loss / y[0].numel() if reduction == "sum" else loss

    def guess_loss(self, y: Tensor) -> float:
        """Return the loss of guessing every pixel by the frequency of classes, with one more pixel of each."""
        counts = torch.bincount(y.cpu().flatten(), minlength=len(self.classes)).double()
        return float((counts / y.numel()) @ share_loss(counts, y.numel()))

    def measure(self, outputs: Tensor, y: Tensor) -> Measures:
        """Return Dice and IoU."""
        outputs, y = outputs.cpu(), y.cpu()
        background = torch.zeros_like(outputs)
        background[:, 0] = 1
        outputs = torch.where(outputs.isfinite().all(1, keepdim=True), outputs, background)
        table = confusion_matrix(outputs, y, len(self.classes)).double()
        hits, held = table.diagonal()[1:], (table.sum(0) + table.sum(1))[1:]
        found = held > 0
        if not bool(found.any()):
            return {"dice": None, "iou": None}
        hits, held = hits[found], held[found]
        return {"dice": float((2 * hits / held).mean()), "iou": float((hits / (held - hits)).mean())}

    def strata(self, y: Tensor) -> Tensor:
        """Return the class with most pixels but for the background; 0 if there is nothing else."""
        areas = torch.stack([(y == k).flatten(1).sum(1) for k in range(1, len(self.classes))], dim=1)
        return torch.where(areas.amax(1) > 0, areas.argmax(1) + 1, 0)

    def strata_names(self) -> list[str]:
        """Name the classes."""
        return list(self.classes)

    def counts(self, y: Tensor) -> list[int]:
        """Count the samples that hold a pixel of each class."""
        return [int((y == k).flatten(1).any(1).sum()) for k in range(len(self.classes))]

    def headings(self) -> list[str]:
        """Return the share of pixels of each class, predicted and true."""
        return [f"{kind}({name})" for kind in ("share", "true share") for name in self.classes]

    def predictions(self, outputs: Tensor, y: Tensor | None) -> Rows:
        """Return how large a share of the pixels each class takes."""
        mine = self._shares(outputs.argmax(1))
        known = [[""] * len(self.classes)] * len(outputs) if y is None else self._shares(y)
        return [shares + theirs for shares, theirs in zip(mine, known, strict=True)]

    def _shares(self, labels: Tensor) -> Rows:
        size = labels[0].numel()
        return [[f"{int((label == k).sum()) / size:.6g}" for k in range(len(self.classes))] for label in labels]
