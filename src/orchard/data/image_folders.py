"""Read images from folders: all get the same size, and the folder's name is the class."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from orchard.data.folders import images, subfolders
from orchard.data.readers import Part
from orchard.errors import UserError
from orchard.text import readable

GREY_MODES = frozenset({"1", "L", "LA"})
PALETTE_MODES = frozenset({"P", "PA"})


def class_names(folders: Sequence[Path]) -> tuple[str, ...]:
    """Return the names of all classes in these folders, sorted."""
    return tuple(sorted({readable(inner.name) for folder in folders for inner in subfolders(folder)}))


def read_class_folders(folder: Path, classes: Sequence[str], size: int) -> Part:
    """Read `<class>/…`; each image becomes size×size, and grey if all of them are grey."""
    files: list[Path] = []
    labels: list[int] = []
    for inner in subfolders(folder):
        found = images(inner)
        if not found:
            raise UserError(f"{inner}: holds no image; add some, or remove the folder")
        files += found
        labels += [classes.index(readable(inner.name))] * len(found)
    if not files:
        raise UserError(f"{folder}: holds no class folder; expected <class>/…")
    with ThreadPoolExecutor() as pool:
        pixels = list(pool.map(lambda file: _read(file, size), files))
    return Part(_stacked(pixels), np.array(labels, dtype=np.int64))


def read_images(files: Sequence[Path], size: int, channels: int) -> NDArray[np.uint8]:
    """Read images as size×size, all in grey (one channel) or all in colour (three)."""
    with ThreadPoolExecutor() as pool:
        pixels = list(pool.map(lambda file: _read(file, size), files))
    if channels == 1:
        return np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in pixels])
    return np.stack([image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2) for image in pixels])


def _read(file: Path, size: int) -> NDArray[np.uint8]:
    try:
        with Image.open(file) as opened:
            plain = grey_or_colour(ImageOps.exif_transpose(opened), opened.format, str(file))
            if plain.size != (size, size):
                plain = plain.resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(plain)
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(f"{file}: cannot be read as an image: {error}") from None


def grey_or_colour(image: Image.Image, kind: str | None, place: str) -> Image.Image:
    """Return an image of bytes, grey or with three colours; `kind` is the format of its file."""
    image = _in_bytes(image, kind, place)
    return image.convert("L" if _is_grey(image) else "RGB")


def _is_grey(image: Image.Image) -> bool:
    """Tell whether an image is grey; in a palette, only the colours in use count."""
    if image.mode not in PALETTE_MODES:
        return image.mode in GREY_MODES
    colours = np.asarray(image.convert("RGB"))
    return bool((colours == colours[..., :1]).all())


def _in_bytes(image: Image.Image, kind: str | None, place: str) -> Image.Image:
    """Convert deeper pixels to eight bits; Pillow's own conversion would clip them to white.

    `kind` is the file's format: Pillow's mode "I" means 16 bits in a PNG and 32 bits elsewhere.
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and kind == "PNG"):
        return Image.fromarray((np.asarray(image).astype(np.int64) // 257).clip(0, 255).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise UserError(f"{place}: has pixels of {image.mode!r} without a known range; save it with 8 or 16 bits")
    return image


def _stacked(pixels: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Stack images; if some have colour, grey ones get three equal channels."""
    if len({image.ndim for image in pixels}) > 1:
        pixels = [image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2) for image in pixels]
    return np.stack(pixels)


def alike(parts: Sequence[Part]) -> list[Part]:
    """Give all parts of a dataset the same number of channels: if one part has colour, grey ones get three channels."""
    colour = any(part.images.ndim == 4 for part in parts)
    return [
        Part(np.repeat(part.images[..., None], 3, axis=3), part.labels) if colour and part.images.ndim == 3 else part
        for part in parts
    ]
