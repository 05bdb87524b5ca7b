"""Convert arrays to samples: float32 inputs, images in [−1, 1] with channels first, targets as the task has them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from orchard.data.axes import Layout, channels_first
from orchard.data.tables.encoding import Schema
from orchard.errors import UserError
from orchard.randomness import generator
from orchard.tasks.registry import TASKS, suitable_task
from orchard.tasks.task import Task

SPLIT_SEED = 42
"""Splits datasets without a test part into training and test data; fixed, so that every run splits alike."""
SCALED_BYTES = (np.arange(256, dtype=np.float32) / 255 - np.float32(0.5)) / np.float32(0.5)
"""Every byte's value after scaling; a look-up takes one pass over the images instead of four."""
AT_ONCE = 1024
"""How many images are prepared at a time, to limit the extra memory."""


class Samples(NamedTuple):
    """Inputs and their targets."""

    x: Tensor
    y: Tensor

    def take(self, rows: NDArray[np.int64]) -> "Samples":
        """Return some of the samples."""
        chosen = torch.from_numpy(rows)
        return Samples(self.x[chosen], self.y[chosen])


@dataclass(frozen=True)
class Dataset:
    """A prepared dataset with its train/test split."""

    train: Samples
    test: Samples
    task: Task
    owners: tuple[NDArray[Any], NDArray[Any]] | None = None
    """The owners of the training and of the test samples, if they are known."""
    schema: Schema | None = None
    """How rows of a table became features, NaN where a number is missing; they are not standardised yet."""


def image_inputs(images: NDArray[np.uint8], size: int) -> Tensor:
    """Return inputs made from images of unsigned bytes, n×h×w or n×h×w×channels."""
    return _scaled_and_resized(images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2), size)


def find_task(named: str | None, targets: Sequence[NDArray[Any]], place: str) -> type[Task]:
    """Return the task that is named, or that which all of a user's targets are obviously for."""
    if named:
        return TASKS[named]
    shapes = {y.shape[1:] for y in targets if y.ndim}
    if len(shapes) > 1:
        raise UserError(f"{place}: targets differ in shape: {sorted(shapes)}")
    return suitable_task(np.concatenate([np.atleast_1d(y) for y in targets]), place)


def as_samples(
    x: NDArray[Any],
    y: NDArray[Any],
    size: int,
    task: type[Task],
    place: str,
    targets_place: str | None = None,
    layout: Layout | None = None,
) -> Samples:
    """Return samples made from a user's arrays, prepared as `ClientArrays` says; raise if they do not fit."""
    x, y = np.asarray(x), np.asarray(y)
    if x.ndim < 2 or y.ndim < 1 or len(x) == 0:
        raise UserError(f"{place}: expected samples and targets, got arrays of shape {x.shape} and {y.shape}")
    if len(x) != len(y):
        where = f" in {targets_place}" if targets_place else ""
        raise UserError(f"{place}: {len(x)} samples but {len(y)} {task.targets_are}{where}")
    targets, inputs = task.targets(y, targets_place or place), as_inputs(x, size, place, layout)
    return Samples(inputs, _as_large(targets, inputs, x, place) if targets.dim() > 2 else targets)


def _as_large(labels: Tensor, inputs: Tensor, x: NDArray[Any], place: str) -> Tensor:
    """Return labels of pixels, resized as the images were."""
    sides, dimensions = tuple(labels.shape[1:]), labels.dim() - 1
    if sides not in (x.shape[1 : 1 + dimensions], x.shape[x.ndim - dimensions :]):
        raise UserError(f"{place}: samples of shape {x.shape[1:]}, but labels of pixels of shape {sides}")
    if sides == tuple(inputs.shape[2:]):
        return labels
    return functional.interpolate(labels[:, None].float(), size=inputs.shape[2:], mode="nearest-exact")[:, 0].long()


def as_inputs(x: NDArray[Any], size: int, place: str, layout: Layout | None = None) -> Tensor:
    """Return a user's array as inputs: bytes are scaled, images of them resized; floats keep values and size."""
    if np.issubdtype(x.dtype, np.floating):
        return _finite(channels_first(x, layout, place), place)
    if x.dtype != np.uint8 or x.ndim < 3:
        raise UserError(f"{place}: expected images of unsigned bytes or floats, got {x.dtype} of shape {x.shape}")
    if layout in ("features", "signal"):
        raise UserError(f'{place}: layout = "{layout}": bytes are images or volumes; save others as floats')
    pixels = channels_first(x, layout, place)
    return _scaled_and_resized(pixels, size) if pixels.ndim == 4 else _scaled(pixels)


def _finite(x: NDArray[Any], place: str) -> Tensor:
    with np.errstate(over="ignore"):  # too large values become infinite, and then raise below
        inputs = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    if not bool(inputs.isfinite().all()):
        row = int((~inputs.flatten(1).isfinite().all(1)).nonzero()[0])
        raise UserError(f"{place}: row {row}: holds a value that is not finite")
    return inputs


def _scaled_and_resized(pixels: NDArray[np.uint8], size: int) -> Tensor:
    if pixels.shape[2:] == (size, size):
        return _scaled(pixels)
    starts = range(0, len(pixels), AT_ONCE)
    return torch.cat([resized(_scaled(pixels[start : start + AT_ONCE]), size) for start in starts])


def _scaled(pixels: NDArray[np.uint8]) -> Tensor:
    """Look up the values block by block: NumPy turns the bytes into indices, which take eight times the memory."""
    values = np.empty(pixels.shape, np.float32)
    for start in range(0, len(pixels), AT_ONCE):
        block = slice(start, start + AT_ONCE)
        np.take(SCALED_BYTES, pixels[block], out=values[block], mode="clip")  # no byte is out of range
    return torch.from_numpy(values)


def resized(x: Tensor, size: int) -> Tensor:
    """Resize images in [−1, 1], n×c×h×w, to size×size; shrinking averages all pixels, as for image files."""
    if x.shape[2:] == (size, size):
        return x
    shrinks = max(x.shape[2:]) > size
    x = functional.interpolate(x, size=(size, size), mode="bilinear", align_corners=False, antialias=shrinks)
    return x.clamp_(-1, 1)  # rounding can exceed the range


def decoded(parts: Sequence[Samples], task: type[Task]) -> list[Samples]:
    """Return all parts of a dataset, with what only all targets together tell of them."""
    targets = task.decoded([part.y for part in parts])
    return [Samples(part.x, y) for part, y in zip(parts, targets, strict=True)]


def check_same_shape(parts: Sequence[Samples], place: str) -> None:
    """Raise if the parts of a dataset differ in the shape of their samples."""
    shapes = {tuple(part.x.shape[1:]) for part in parts}
    if len(shapes) > 1:
        raise UserError(f"{place}: its parts differ in the shape of samples: {sorted(shapes)}")


def joined(parts: Sequence[Samples], place: str) -> Samples:
    """Return the parts of a dataset as one; raise if their shapes differ."""
    check_same_shape(parts, place)
    if len(parts) == 1:
        return parts[0]
    return Samples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))


def split_by_stratum(samples: Samples, task: Task) -> tuple[Samples, Samples]:
    """Split 80/20 at random within every stratum, e.g. class; the training part is rounded up."""
    first, second = split_rows(task.strata(samples.y).numpy())
    return samples.take(first), samples.take(second)


def split_rows(strata: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of both parts of such a split, each in order."""
    train, test = [], []
    for k in np.unique(strata):
        order = generator(SPLIT_SEED, "test", int(k)).permutation(np.flatnonzero(strata == k))
        end = -(-4 * len(order) // 5)
        train.append(order[:end])
        test.append(order[end:])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))
