"""Arrays made into samples: float32, images in [−1, 1] and channels first, labels 0 … C−1."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from orchard.data.readers import Part
from orchard.errors import Refusal
from orchard.randomness import generator

SPLIT_SEED = 42
"""Of the split into training and test data, where a dataset does not come with one: fixed, so that it is the same
in every run."""
LARGEST_LABEL = 9_999
"""No more classes than that are meant; a larger label has gone astray."""
CHANNELS = (1, 3, 4)
"""Grey, colour, colour with transparency: how an array's shape tells where its channels are."""
SCALED_BYTES = (np.arange(256, dtype=np.float32) / 255 - np.float32(0.5)) / np.float32(0.5)
"""Every byte's value after scaling: looking them up takes one pass over the images instead of four."""
AT_ONCE = 1024
"""Images prepared at a time, so that what that takes beside the result stays small."""


class Samples(NamedTuple):
    """Inputs and their labels."""

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
    classes: tuple[str, ...]
    owners: tuple[NDArray[Any], NDArray[Any]] | None = None
    """Whose each training and each test sample is, where a column of the data was asked for that."""


def image_samples(part: Part, size: int) -> Samples:
    """Prepare images of unsigned bytes, n×h×w or n×h×w×channels, whose labels have been checked."""
    grey = part.images.ndim == 3
    pixels = part.images[:, None] if grey else part.images.transpose(0, 3, 1, 2)
    return Samples(_scaled_and_resized(pixels, size), torch.from_numpy(part.labels.reshape(-1).astype(np.int64)))


def as_samples(x: NDArray[Any], y: NDArray[Any], size: int, place: str, labels_place: str | None = None) -> Samples:
    """Take somebody's arrays: bytes are images, scaled and resized; floats are brought into order, no more."""
    x, y = np.asarray(x), np.asarray(y)
    if x.ndim < 2 or y.ndim < 1 or len(x) == 0:
        raise Refusal(f"{place}: expected samples and labels, got arrays of shape {x.shape} and {y.shape}")
    labels = checked_labels(y, len(x), place, labels_place)
    return Samples(as_inputs(x, size, place), torch.from_numpy(labels))


def as_inputs(x: NDArray[Any], size: int, place: str) -> Tensor:
    """Prepare somebody's samples, with or without labels."""
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        pixels = channels_first(x, place)
        if pixels.shape[1] not in CHANNELS:
            raise Refusal(f"{place}: images of bytes have 1, 3 or 4 channels, not the shape {x.shape}")
        return _scaled_and_resized(pixels, size)
    if np.issubdtype(x.dtype, np.floating):
        return _finite(channels_first(x, place), place)
    raise Refusal(f"{place}: expected images of unsigned bytes or floats, got {x.dtype} of shape {x.shape}")


def checked_labels(
    y: NDArray[Any], samples: int, place: str, labels_place: str | None = None, classes: int | None = None
) -> NDArray[np.int64]:
    """Return labels in one dimension: one whole number for each sample, of a class that there is."""
    where = labels_place or place
    labels = y.reshape(-1)
    if samples != len(y):
        raise Refusal(f"{place}: {samples} samples but {len(y)} labels" + (f" in {where}" if labels_place else ""))
    if len(labels) != len(y) or not np.issubdtype(y.dtype, np.integer):
        raise Refusal(f"{where}: labels must be one whole number each, not {y.dtype} of shape {y.shape}")
    if labels.min() < 0:
        raise Refusal(f"{where}: row {labels.argmin()}: label {labels.min()} is below 0")
    if classes and labels.max() >= classes:
        raise Refusal(f"{where}: row {labels.argmax()}: label {labels.max()}, but there are {classes} classes from 0")
    if labels.max() > LARGEST_LABEL:
        raise Refusal(f"{where}: row {labels.argmax()}: label {labels.max()} is beyond {LARGEST_LABEL}")
    return labels.astype(np.int64)


def channels_first(x: NDArray[Any], place: str) -> NDArray[Any]:
    """Give n×h×w a channel, and put the channels of n×h×w×c in front; other shapes stay."""
    if x.ndim == 3:
        return x[:, None]
    if x.ndim != 4 or x.shape[3] not in CHANNELS:
        return x
    if x.shape[1] in CHANNELS:
        raise Refusal(f"{place}: {x.shape} does not tell whether channels come first or last; resize or flatten them")
    return x.transpose(0, 3, 1, 2)


def _finite(x: NDArray[Any], place: str) -> Tensor:
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
        inputs = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    if not bool(inputs.isfinite().all()):
        row = int((~inputs.flatten(1).isfinite().all(1)).nonzero()[0])
        raise Refusal(f"{place}: row {row}: holds a value that is not finite")
    return inputs


def _scaled_and_resized(pixels: NDArray[np.uint8], size: int) -> Tensor:
    if pixels.shape[2:] == (size, size):
        return _scaled(pixels)
    starts = range(0, len(pixels), AT_ONCE)
    return torch.cat([resized(_scaled(pixels[start : start + AT_ONCE]), size) for start in starts])


def _scaled(pixels: NDArray[np.uint8]) -> Tensor:
    """Look values up block by block: NumPy widens the bytes to indices, eight times as large, and all at once would."""
    values = np.empty(pixels.shape, np.float32)
    for start in range(0, len(pixels), AT_ONCE):
        block = slice(start, start + AT_ONCE)
        np.take(SCALED_BYTES, pixels[block], out=values[block], mode="clip")  # no byte is out of range
    return torch.from_numpy(values)


def resized(x: Tensor, size: int) -> Tensor:
    """Bring images in [−1, 1], n×c×h×w, to size×size; shrinking averages all pixels, as it does for files."""
    if x.shape[2:] == (size, size):
        return x
    shrinks = max(x.shape[2:]) > size
    x = functional.interpolate(x, size=(size, size), mode="bilinear", align_corners=False, antialias=shrinks)
    return x.clamp_(-1, 1)  # a mean of equal pixels may round beyond


def refuse_mixed_shapes(parts: Sequence[Samples], place: str) -> None:
    """Refuse parts of one dataset whose samples differ in shape."""
    shapes = {tuple(part.x.shape[1:]) for part in parts}
    if len(shapes) > 1:
        raise Refusal(f"{place}: its parts differ in the shape of samples: {sorted(shapes)}")


def joined(parts: Sequence[Samples], place: str) -> Samples:
    """Put parts of one dataset together."""
    refuse_mixed_shapes(parts, place)
    if len(parts) == 1:
        return parts[0]
    return Samples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))


def split_by_class(samples: Samples) -> tuple[Samples, Samples]:
    """Split 80/20 at random within every class; what does not divide goes to training."""
    first, second = split_rows(samples.y.numpy())
    return samples.take(first), samples.take(second)


def split_rows(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of that split, in order."""
    train, test = [], []
    for k in np.unique(labels):
        order = generator(SPLIT_SEED, "test", int(k)).permutation(np.flatnonzero(labels == k))
        end = -(-4 * len(order) // 5)
        train.append(order[:end])
        test.append(order[end:])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))


def numbered_classes(labels: Tensor) -> tuple[str, ...]:
    """Return the classes 0 … C−1 that labels imply."""
    return tuple(map(str, range(int(labels.max()) + 1)))
