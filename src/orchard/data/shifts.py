"""Kinds of difference between clients that no partition makes: what they see, and what they mean by a label.

Clients are dealt into groups. Group 0 stays as it is; group k gets

    labels   y ← (y + 3k) mod C          another coding convention
    invert   x ← −x                      inverted intensities
    rotate   images turned by k·90°
    blur     k times a mean of 5×5 pixels
    noise    x ← x + 0.3k·ε, ε normal, kept within [−1, 1]

in training, validation and test data alike. The groups are known to reports, and to no method.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from orchard.errors import UserError
from orchard.randomness import generator
from orchard.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

    from orchard.data.samples import Samples
    from orchard.tasks.task import Task

LABEL_STEP = 3
BLUR = 5
NOISE = 0.3


class ShiftSettings(Settings):
    """How groups of clients differ."""

    kind: Literal["labels", "invert", "rotate", "blur", "noise"] = Field(
        description="another coding of labels; or images inverted, turned, blurred or noisy"
    )
    groups: int = Field(default=2, ge=2, description="how many groups the clients are dealt into")


def _kind(value: Any) -> Any:
    """Let ``"invert"`` stand for ``{"kind": "invert"}``."""
    return {"kind": value} if isinstance(value, str) else value


Shift = Annotated[ShiftSettings, BeforeValidator(_kind)]


def groups_of(clients: int, shift: ShiftSettings, seed: int) -> list[int]:
    """Deal clients into groups whose sizes differ by one at most; return the group of each."""
    if shift.groups > clients:
        raise UserError(f"shift.groups = {shift.groups}: there are {clients} clients")
    groups = np.empty(clients, dtype=np.int64)
    groups[generator(seed, "shift").permutation(clients)] = np.arange(clients) % shift.groups
    return groups.tolist()


def shift_samples(
    samples: "Samples", shift: ShiftSettings, group: int, task: "Task", draw: np.random.Generator
) -> "Samples":
    """Return a client's samples as its group has them."""
    x, y = samples
    if group == 0:
        return samples
    if shift.kind == "labels":
        if task.name != "classification":
            raise UserError(f"shift.kind = 'labels': needs a label for each sample, which {task.name} has not")
        return type(samples)(x, (y + LABEL_STEP * group) % len(task.classes))
    if shift.kind == "invert":
        return type(samples)(-x, y)
    if x.dim() != 4:
        raise UserError(f"shift.kind = {shift.kind!r}: needs images, not samples of shape {tuple(x.shape[1:])}")
    if shift.kind == "rotate":
        turned = y.rot90(group, (1, 2)).contiguous() if y.dim() == 3 else y  # labels of pixels turn too
        return type(samples)(x.rot90(group, (2, 3)).contiguous(), turned)
    return type(samples)(_blurred(x, group) if shift.kind == "blur" else _noisy(x, group, draw), y)


def _blurred(x: "Tensor", times: int) -> "Tensor":
    from torch.nn import functional  # late: an experiment imports this file, and should not wait for PyTorch

    for _ in range(times):
        x = functional.avg_pool2d(x, BLUR, stride=1, padding=BLUR // 2, count_include_pad=False)
    return x


def _noisy(x: "Tensor", strength: int, draw: np.random.Generator) -> "Tensor":
    import torch

    noise = torch.from_numpy(draw.standard_normal(tuple(x.shape), dtype=np.float32))
    return (x + NOISE * strength * noise).clamp_(-1, 1)
