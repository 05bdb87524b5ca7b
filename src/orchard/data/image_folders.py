"""Read images, ordinary or medical, all of the same size; in folders by class, a folder's name is the class."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from orchard.data.folders import images, is_ordinary, subfolders
from orchard.data.medical.scans import AT_ONCE, MedicalSettings, read_medical
from orchard.data.readers import MOST_FREE, check_file
from orchard.data.samples import Samples, image_inputs
from orchard.errors import UserError
from orchard.text import readable

GREY_MODES = frozenset({"1", "L", "LA"})
AT_THE_SAME_TIME = 8
"""How many pictures are read at the same time."""
PALETTE_MODES = frozenset({"P", "PA"})


def class_names(folders: Sequence[Path], volumes: bool) -> tuple[str, ...]:
    """Return the names of all classes in these folders, sorted."""
    return tuple(sorted({readable(inner.name) for folder in folders for inner in subfolders(folder, volumes)}))


def read_classes(
    homes: Sequence[Path], classes: Sequence[str], size: int, settings: MedicalSettings | None
) -> list[Samples]:
    """Read `<class>/…` in each of these folders."""
    volumes = settings is not None and settings.depth is not None
    found = [_labelled(home, classes, volumes) for home in homes]
    inputs = read_inputs([file for home in found for file, _ in home], size, settings)
    labels = [torch.tensor([label for _, label in home]) for home in found]
    parts = torch.split(inputs, [len(home) for home in found])
    return [Samples(*part) for part in zip(parts, labels, strict=True)]


def _labelled(home: Path, classes: Sequence[str], volumes: bool) -> list[tuple[Path, int]]:
    """Return the images in `<class>/…` with their labels."""
    found: list[tuple[Path, int]] = []
    for inner in subfolders(home, volumes):
        files = images(inner, volumes)
        if not files:
            raise UserError(f"{inner}: holds no image; add some, or remove the folder")
        found += [(file, classes.index(readable(inner.name))) for file in files]
    if not found:
        raise UserError(f"{home}: holds no class folder; expected <class>/…")
    return found


def read_inputs(files: Sequence[Path], size: int, settings: MedicalSettings | None) -> Tensor:
    """Read images as inputs of size×size, in grey if all of them are; with settings, medical images or volumes."""
    check_one_kind(files, settings)
    if settings is None:
        with ThreadPoolExecutor(AT_THE_SAME_TIME) as pool:
            pixels = list(pool.map(lambda file: _read(file, size), files))
        return image_inputs(_stacked(pixels), size)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        values = list(pool.map(lambda file: read_medical(file, settings, size), files))
    return torch.from_numpy(np.stack(values))[:, None]


def check_one_kind(files: Sequence[Path], settings: MedicalSettings | None) -> None:
    """Raise unless all images are medical, if there are settings for such, or none is."""
    ordinary = next((file for file in files if is_ordinary(file)), None)
    medical = next((file for file in files if not is_ordinary(file)), None)
    if ordinary and medical:
        raise UserError(f"{medical}: is a medical image, but {ordinary} is not; give all of one kind")
    if medical and settings is None:
        raise UserError(f"{medical}: is a medical image; for such, the experiment needs the section [images]")
    if ordinary and settings is not None:
        raise UserError(f"images: is for DICOM and NIfTI files, but {ordinary} is neither; leave it out")


def read_images(files: Sequence[Path], size: int, channels: int) -> NDArray[np.uint8]:
    """Read images as size×size, all in grey (one channel) or all in colour (three)."""
    with ThreadPoolExecutor(AT_THE_SAME_TIME) as pool:
        pixels = list(pool.map(lambda file: _read(file, size), files))
    if channels == 1:
        return np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in pixels])
    return np.stack([image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2) for image in pixels])


def _read(file: Path, size: int) -> NDArray[np.uint8]:
    try:
        check_file(file)
        with Image.open(file) as opened:
            check_picture(opened, file)
            plain = grey_or_colour(ImageOps.exif_transpose(opened), opened.format, str(file))
            if plain.size != (size, size):
                plain = plain.resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(plain)
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(f"{file}: cannot be read as an image: {error}") from None


def check_picture(opened: Image.Image, file: Path) -> None:
    """Raise if a picture that has been opened, but not read, becomes more pixels than its file can really hold."""
    check_file(file, opened.width * opened.height * len(opened.getbands()), MOST_FREE // AT_THE_SAME_TIME)


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
