"""Images in folders: every image is read, brought to one size, and labelled by the folder it is in."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from orchard.data.readers import Part
from orchard.errors import Refusal
from orchard.layout import images, subfolders

GREY_MODES = frozenset({"1", "L", "LA", "I", "F", "I;16"})


def class_names(folders: Sequence[Path]) -> tuple[str, ...]:
    """Return the names of all classes that some of these folders hold."""
    return tuple(sorted({inner.name for folder in folders for inner in subfolders(folder)}))


def read_class_folders(folder: Path, classes: Sequence[str], size: int) -> Part:
    """Read `<class>/…`; each image becomes size×size, grey where all of them are grey."""
    files: list[Path] = []
    labels: list[int] = []
    for inner in subfolders(folder):
        found = images(inner)
        if not found:
            raise Refusal(f"{inner}: holds no image")
        files += found
        labels += [classes.index(inner.name)] * len(found)
    with ThreadPoolExecutor() as pool:
        pixels = list(pool.map(lambda file: _read(file, size), files))
    return Part(_stacked(pixels), np.array(labels, dtype=np.int64))


def _read(file: Path, size: int) -> NDArray[np.uint8]:
    try:
        with Image.open(file) as image:
            plain = image.convert("L" if image.mode in GREY_MODES else "RGB")
            if plain.size != (size, size):
                plain = plain.resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(plain)
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise Refusal(f"{file}: cannot be read as an image: {error}") from None


def _stacked(pixels: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Put images together; where some have colour, grey ones are given three equal channels."""
    if len({image.ndim for image in pixels}) > 1:
        pixels = [image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2) for image in pixels]
    return np.stack(pixels)
