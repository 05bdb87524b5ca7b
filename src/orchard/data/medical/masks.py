"""Segmentation from folders: `images/…`, and in `masks/…` a map of labels with the same name for each of them.

A mask must lie as its image does. Pictures and 2-D DICOM images stay as they are stored: their masks are PNG. NIfTI
images are turned to the standard axes: their masks are NIfTI too. Volumes are all turned to these.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from orchard.data.folders import MASKED, images, is_ordinary, subfolders
from orchard.data.image_folders import check_one_kind, read_inputs
from orchard.data.medical.scans import (
    AT_ONCE,
    DICOM_EXTENSIONS,
    NIFTI_EXTENSIONS,
    MedicalSettings,
    labels_for,
    read_label_map,
    read_pair,
)
from orchard.data.readers import check_file
from orchard.data.samples import Samples, decoded
from orchard.errors import UserError
from orchard.tasks.segmentation import Segmentation
from orchard.whole import write_output

Pair = tuple[Path, Path]
UNKNOWN = np.eye(4)[[2, 1, 0, 3]]
"""Where a volume is taken to lie that does not say: in the standard axes, with voxels of one millimetre."""
ORIENTATION = 0x0112
TURNED = (5, 6, 7, 8)
"""Values of that Exif field with which a picture lies on its side."""


def read_masked(homes: Sequence[Path], size: int, settings: MedicalSettings | None) -> list[Samples]:
    """Read the images and masks in each of these folders."""
    volumes = settings is not None and settings.depth is not None
    found = [_pairs(home, volumes) for home in homes]
    pairs = [pair for home in found for pair in home]
    check_one_kind([image for image, _ in pairs], settings)
    x, y = _medical(pairs, settings, size) if settings else _ordinary(pairs, size)
    places = [str(home / MASKED[1]) for home in homes]
    sizes = [len(home) for home in found]
    parts = [
        Samples(inputs, Segmentation.targets(labels.numpy(), place))
        for inputs, labels, place in zip(torch.split(x, sizes), torch.split(y, sizes), places, strict=True)
    ]
    return decoded(parts, Segmentation)


def _pairs(home: Path, volumes: bool) -> list[Pair]:
    """Return the images in a folder with their masks; raise if one has none, or the other way round."""
    if strange := sorted({path.name for path in subfolders(home)} - set(MASKED)):
        raise UserError(f"{home}: expected only 'images' and 'masks', not {strange}")
    shown, masks = (_by_stem(home / name, volumes) for name in MASKED)
    for name, file in shown.items():
        if name not in masks:
            raise UserError(f"{file}: has no mask; expected one of that name in {home / MASKED[1]}")
    for name, file in masks.items():
        if name not in shown:
            raise UserError(f"{file}: is the mask of no image in {home / MASKED[0]}")
        _check_kind(shown[name], file, volumes)
    return [(file, masks[name]) for name, file in shown.items()]


def _by_stem(folder: Path, volumes: bool) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in images(folder, volumes):
        name = stem(path)
        if name in found:
            raise UserError(f"{path}: has the same name as {found[name].name}; rename one, and its mask")
        found[name] = path
    if not found:
        raise UserError(f"{folder}: holds no image")
    return found


def stem(path: Path) -> str:
    """Return a name without what tells the format; of folders and of DICOM files without it, the whole name."""
    for extension in NIFTI_EXTENSIONS:
        if path.name.lower().endswith(extension):
            return path.name[: -len(extension)]
    named = is_ordinary(path) or path.name.lower().endswith(DICOM_EXTENSIONS)
    return path.stem if named and not path.is_dir() else path.name


def _check_kind(image: Path, mask: Path, volumes: bool) -> None:
    kinds = _kind(image), _kind(mask)
    if kinds[1] == "ordinary" and mask.suffix.lower() != ".png":
        raise UserError(f"{mask}: a picture of labels is saved as PNG, which changes none of them")
    if not volumes and kinds[0] != kinds[1] and kinds != ("DICOM", "ordinary"):
        other = "NIfTI" if kinds[0] == "NIfTI" else "PNG"
        raise UserError(f"{mask}: may lie otherwise than its image {image.name}; save it as {other}")


def _kind(path: Path) -> str:
    if is_ordinary(path):
        return "ordinary"
    return "NIfTI" if path.name.lower().endswith(NIFTI_EXTENSIONS) else "DICOM"


def _medical(pairs: Sequence[Pair], settings: MedicalSettings, size: int) -> tuple[Tensor, Tensor]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        read = list(pool.map(lambda image, mask: read_pair(image, mask, settings, size), *zip(*pairs, strict=True)))
    x, y = (torch.from_numpy(np.stack(part)) for part in zip(*read, strict=True))
    return x[:, None], y


def _ordinary(pairs: Sequence[Pair], size: int) -> tuple[Tensor, Tensor]:
    with ThreadPoolExecutor() as pool:
        masks = list(pool.map(lambda image, mask: _mask(image, mask, size), *zip(*pairs, strict=True)))
    return read_inputs([image for image, _ in pairs], size, None), torch.from_numpy(np.stack(masks))


def _mask(image: Path, mask: Path, size: int) -> NDArray[np.int64]:
    labels = read_label_map(mask, MedicalSettings(), size)
    has, should = ("×".join(map(str, _sides(file))) for file in (mask, image))
    if has != should:
        raise UserError(f"{mask}: is {has} pixels large, but its image {image.name} is {should}")
    return labels


def _sides(file: Path) -> tuple[int, int]:
    """Return the height and width of a picture, as it is to be shown."""
    try:
        check_file(file)
        with Image.open(file) as opened:
            width, height = opened.size
            turned = opened.getexif().get(ORIENTATION) in TURNED
            return (width, height) if turned else (height, width)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(f"{file}: cannot be read as an image: {error}") from None


def write_mask(labels: NDArray[np.int64], image: Path, settings: MedicalSettings | None, folder: Path) -> Path:
    """Write the labels that were predicted for an image, on its own pixels; return the file.

    It is a PNG, as `masks/…` has it; for NIfTI images and volumes, a NIfTI file that lies where the image does.
    """
    affine = None
    if settings is None:
        shown = Image.fromarray(labels.astype(np.uint8)).resize(_sides(image)[::-1], Image.Resampling.NEAREST)
        labels = np.asarray(shown, np.int64)
    else:
        labels, scan = labels_for(image, settings, labels)
        affine = UNKNOWN if scan.affine is None and labels.ndim == 3 else scan.affine
    file = folder / f"{stem(image)}{'.png' if affine is None else '.nii.gz'}"
    if affine is None:
        content = BytesIO()
        Image.fromarray(labels.astype(np.uint8)).save(content, "PNG")
        write_output(file, content.getvalue())
    else:
        from orchard.data.medical.nifti import nifti_of

        write_output(file, nifti_of(labels, affine))
    return file
