"""Medical images, DICOM and NIfTI: which files they are, and how they become arrays in [−1, 1].

    window     intensities low … high become −1 … 1; what lies outside is clipped
    spacing    every pixel of the result is so many millimetres; the image is cut or padded around its centre
    depth      volumes become depth×size×size; without it, only 2-D images are read

The window is the setting's, else the file's own (DICOM's first window centre and width; in a volume, if all slices have
the same), else from the 1st to the 99th percentile of all values. If these are equal, they are a threshold: what is
above is 1, the rest −1. Where a pixel has no value (NIfTI's NaN, DICOM's pixel padding) it is −1, and its label 0. Low
and high change places where low values are bright (DICOM's MONOCHROME1). Colours become grey.

Volumes are turned and flipped, without interpolation, to the axes nearest to these: depth from feet to head, rows from
front to back, columns from the patient's right to the left, as in an axial DICOM series. So is a NIfTI file of a single
slice; 2-D DICOM images stay as stored.

Of a DICOM header only the fields in `dicom.FIELDS` are read; of a NIfTI header only its numbers. No text of a header
gets into a result or a message.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from pydantic import Field, model_validator

from orchard.data.readers import check_file
from orchard.errors import UserError
from orchard.settings import Settings

NIFTI_EXTENSIONS = (".nii", ".nii.gz")
DICOM_EXTENSIONS = (".dcm", ".ima")
PREAMBLE = 128
"""A DICOM file starts with so many free bytes, and then "DICM"."""
MOST_VOXELS = 2**31
PERCENTILES = (1, 99)
LARGEST = 1e30
"""Ends of a window are not larger, so that float32 can work with them."""
LABEL_MODES = frozenset({"1", "L", "P", "I", "I;16"})
"""Pillow's modes of pictures with one whole number for each pixel."""
NOT_LABELS = "holds colours; a map of labels holds one whole number for each pixel"

AT_ONCE = 2
"""How many files are read at the same time: a large volume takes some gigabytes meanwhile."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
Spacing = tuple[float, ...]
Values = NDArray[np.float32]
Affine = NDArray[np.float64]


class MedicalSettings(Settings):
    """How medical images are read."""

    window: Annotated[tuple[Finite, Finite], Field(strict=False)] | None = Field(
        default=None, description="intensities that become −1 and 1, e.g. [−160, 240] in Hounsfield units"
    )
    spacing: Annotated[tuple[Finite, ...], Field(strict=False)] | None = Field(
        default=None, description="millimetres from pixel to pixel: [row, column], or [slice, row, column] with depth"
    )
    depth: int | None = Field(default=None, ge=1, description="slices of a volume; none: images are 2-D")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.window and self.window[0] >= self.window[1]:
            raise ValueError(f"window = {list(self.window)}: the first number must be below the second")
        if self.spacing is None:
            return self
        if min(self.spacing, default=1) <= 0:
            raise ValueError(f"spacing = {list(self.spacing)}: must be above 0")
        axes = 2 if self.depth is None else 3
        if len(self.spacing) != axes:
            kind = "2-D images need 2 numbers" if axes == 2 else "volumes (depth is set) need 3 numbers"
            raise ValueError(f"spacing = {list(self.spacing)}: {kind}")
        return self


@dataclass(frozen=True)
class Scan:
    """What a file holds: intensities, h×w or slices×h×w, NaN where there is no value."""

    values: Values
    spacing: Spacing | None = None
    """Millimetres from voxel to voxel along each axis, if the file says so."""
    window: tuple[float, float] | None = None
    """The file's own window."""
    inverted: bool = False
    """Whether low values are bright (DICOM's MONOCHROME1)."""
    colour: bool = False
    """Whether the values are the brightness of colours."""
    affine: Affine | None = None
    """Where voxels lie, in millimetres of DICOM's coordinates: to the left, to the back, to the head.

    4×4, with a column for each axis of the values, then, of an image, one for the axis across it."""


def is_medical(path: Path) -> bool:
    """Tell whether a file is DICOM or NIfTI by its name, or DICOM by its content."""
    return path.name.lower().endswith(NIFTI_EXTENSIONS) or is_dicom(path)


def is_dicom(path: Path) -> bool:
    """Tell whether a file is DICOM by its name or its content; a DICOMDIR is only a table of contents."""
    name = path.name.lower()
    if name.endswith(NIFTI_EXTENSIONS) or name == "dicomdir":
        return False
    return name.endswith(DICOM_EXTENSIONS) or _has_dicom_prefix(path)


def holds_slices(folder: Path) -> bool:
    """Tell whether a folder's DICOM files are the slices of a volume: the first holds a single image."""
    try:
        first = next((path for path in sorted(folder.iterdir()) if path.name[0] != "." and is_dicom(path)), None)
        if first is None:
            return False
        from orchard.data.medical.dicom import frame_count

        return frame_count(first) == 1
    except ImportError as missing:
        raise _needs(missing, folder) from None
    except OSError as error:
        raise UserError(f"{folder}: cannot be read: {error.strerror}") from None


def _has_dicom_prefix(path: Path) -> bool:
    """Tell whether a file has "DICM" where a DICOM file has it."""
    try:
        if not path.is_file():  # to open a pipe would wait for ever
            return False
        with path.open("rb") as file:
            return file.read(PREAMBLE + 4)[PREAMBLE:] == b"DICM"
    except OSError:
        return False


def read_medical(path: Path, settings: MedicalSettings, size: int) -> Values:
    """Read a DICOM or NIfTI file, or a folder with the slices of one volume; return size×size or depth×size×size."""
    return _prepared(_checked(_scan(path), path, settings), settings, size)


def read_label_map(path: Path, settings: MedicalSettings, size: int) -> NDArray[np.int64]:
    """Read a map of labels, DICOM, NIfTI or PNG, onto the same grid; each pixel gets the label nearest to it."""
    return _labels(_checked(_scan(path, labels=True), path, settings), path, settings, size)


def read_pair(image: Path, mask: Path, settings: MedicalSettings, size: int) -> tuple[Values, NDArray[np.int64]]:
    """Read an image and its map of labels, which must be as large; both get the image's spacing."""
    scan, labels = _checked(_scan(image), image, settings), _scan(mask, labels=True)
    has, should = ("×".join(map(str, found.values.shape)) for found in (labels, scan))
    if has != should:
        raise UserError(f"{mask}: is {has} pixels large, but its image {image.name} is {should}")
    labels = _checked(replace(labels, spacing=scan.spacing), mask, settings)
    return _prepared(scan, settings, size), _labels(labels, mask, settings, size)


def _prepared(scan: Scan, settings: MedicalSettings, size: int) -> Values:
    values = _windowed(scan, settings.window)
    for axis, (length, step) in enumerate(_grid(scan, settings, size)):
        values = _interpolated(values, axis, length, step)
    return np.ascontiguousarray(values).clip(-1, 1)  # rounding can exceed the range


def _labels(scan: Scan, path: Path, settings: MedicalSettings, size: int) -> NDArray[np.int64]:
    values = np.where(np.isnan(scan.values), np.float32(0), scan.values)
    if scan.colour:
        raise UserError(f"{path}: {NOT_LABELS}")
    if values.min() < 0 or bool((values != np.rint(values)).any()):
        raise UserError(f"{path}: a map of labels holds whole numbers from 0, but this one has others")
    for axis, (length, step) in enumerate(_grid(scan, settings, size)):
        values = _nearest(values, axis, length, step)
    return values.astype(np.int64)


def labels_for(path: Path, settings: MedicalSettings, labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], Scan]:
    """Bring labels that were predicted for a file back to its own pixels; return them, and what the file holds."""
    scan = _checked(_scan(path), path, settings)
    for axis, (_, step) in enumerate(_grid(scan, settings, labels.shape[-1])):
        labels = _nearest(labels, axis, scan.values.shape[axis], 1 / step)
    return labels, scan


def _nearest(values: NDArray[Any], axis: int, length: int, step: float) -> NDArray[Any]:
    """Take the nearest value for each place along an axis, 0 outside."""
    places = _places(values.shape[axis], length, step)
    outside = (places < 0) | (places >= values.shape[axis])
    values = values.take(np.where(outside, 0, places).astype(np.int64), axis)
    np.moveaxis(values, axis, 0)[outside] = 0
    return values


def check_size(voxels: int, path: Path) -> None:
    """Raise if a file says that it holds more voxels than can be read; called before they are."""
    if voxels > MOST_VOXELS:
        raise UserError(f"{path}: its header tells of {voxels} voxels; at most {MOST_VOXELS} can be read")


def in_standard_axes(values: Values, spacing: Spacing | None, affine: Affine) -> Scan:
    """Turn and flip a volume so that its axes are nearest to depth, rows and columns as the module's text says."""
    steps = affine[:3, :3]
    towards = (steps / np.linalg.norm(steps, axis=0)).T[:, ::-1]  # the head, the back, the left
    order = max(permutations(range(3)), key=lambda order: sum(abs(towards[order[k], k]) for k in range(3)))
    turned = affine[:, [*order, 3]]
    flips = [-1 if towards[order[k], k] < 0 else 1 for k in range(3)]
    values = values.transpose(order)[tuple(slice(None, None, flip) for flip in flips)]
    for k in np.flatnonzero(np.array(flips) < 0):
        turned[:, 3] += (values.shape[k] - 1) * turned[:, k]  # where the axis begins now
        turned[:, k] *= -1
    return Scan(values, spacing and tuple(spacing[k] for k in order), affine=turned)


def _scan(path: Path, labels: bool = False) -> Scan:
    try:
        if not path.exists():
            raise UserError(f"{path}: there is no such file")
        if not path.is_dir() and not path.is_file():
            raise UserError(f"{path}: is neither a file nor a folder")
        if labels and path.suffix.lower() == ".png":
            return _picture(path)
        if path.name.lower().endswith(NIFTI_EXTENSIONS) and path.is_file():
            from orchard.data.medical.nifti import read_nifti

            return read_nifti(path)
        from orchard.data.medical.dicom import read_dicom

        return read_dicom(path)
    except ImportError as missing:
        raise _needs(missing, path) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or 'it is damaged'}") from None


def _needs(missing: ImportError, path: Path) -> UserError:
    return UserError(f"{path}: needs {missing.name}; install it with: pip install 'orchard[medical]'")


def _picture(path: Path) -> Scan:
    """Read a PNG of labels; in a palette, the numbers of its colours are the labels."""
    try:
        with Image.open(path, formats=["PNG"]) as opened:
            check_file(path, opened.width * opened.height * len(opened.getbands()))
            image = ImageOps.exif_transpose(opened)
            if image.mode not in LABEL_MODES:
                raise UserError(f"{path}: {NOT_LABELS}")
            return Scan(np.asarray(image, dtype=np.float32))
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(f"{path}: cannot be read as an image: {error}") from None


def _checked(scan: Scan, path: Path, settings: MedicalSettings) -> Scan:
    """Return the scan if it can be brought to the settings' shape, and has values."""
    if scan.values.ndim == 3 and settings.depth is None:
        raise UserError(f"{path}: is a volume of {len(scan.values)} slices; set images.depth to read volumes")
    if scan.values.ndim == 2 and settings.depth is not None:
        asked = f"images.depth = {settings.depth} asks for volumes; leave it out"
        raise UserError(f"{path}: is a single image, but {asked}")
    if settings.spacing and scan.spacing is None:
        raise UserError(f"{path}: does not say how many millimetres its pixels are apart; leave images.spacing out")
    if np.isinf(scan.values).any():
        raise UserError(f"{path}: holds an infinite value")
    if np.isnan(scan.values).all():
        raise UserError(f"{path}: holds no value")
    return scan


def _windowed(scan: Scan, window: tuple[float, float] | None) -> Values:
    missing = np.isnan(scan.values)
    with np.errstate(over="ignore"):  # too large values become infinite, and are then clipped
        ends = window or scan.window or np.percentile(scan.values[~missing], PERCENTILES)
        low, high = np.clip(ends, -LARGEST, LARGEST).tolist()
        values = scan.values - np.float32(low)
        if high - low > 1 / LARGEST:
            values *= np.float32(2 / (high - low))
            values -= 1
        else:
            values = np.where(values > 0, np.float32(1), np.float32(-1))
    np.clip(values, -1, 1, out=values)
    if scan.inverted:
        np.negative(values, out=values)
    values[missing] = -1
    return values


def _grid(scan: Scan, settings: MedicalSettings, size: int) -> list[tuple[int, float]]:
    """Return, for each axis, how many pixels the result has, and how many of the file's pixels lie between them."""
    lengths = (size, size) if settings.depth is None else (settings.depth, size, size)
    if settings.spacing and scan.spacing:
        steps = [wanted / has for wanted, has in zip(settings.spacing, scan.spacing, strict=True)]
    else:
        steps = [has / length for has, length in zip(scan.values.shape, lengths, strict=True)]
    return list(zip(lengths, steps, strict=True))


def _places(count: int, length: int, step: float) -> NDArray[np.float64]:
    """Return where the centres of the result's pixels lie, in pixels from the edge; both have the same middle."""
    return count / 2 + (np.arange(length, dtype=np.float64) + 0.5 - length / 2) * step


def _interpolated(values: Values, axis: int, length: int, step: float) -> Values:
    """Interpolate linearly along an axis; shrinking takes the weighted mean of all pixels, as for image files."""
    count = values.shape[axis]
    if length == count and step == 1:
        return values
    places = _places(count, length, step)
    distances = np.abs(np.arange(count) + 0.5 - places[:, None]) / max(step, 1)
    weights = np.maximum(1 - distances, 0)
    outside = (places < 0) | (places > count)
    weights /= np.where(outside, 1, weights.sum(1))[:, None]
    result: Values = np.tensordot(weights.astype(np.float32), values, (1, axis))
    result[outside] = -1
    return np.moveaxis(result, 0, axis)


def known_spacing(numbers: Sequence[float]) -> Spacing | None:
    """Return these millimetres if they make sense."""
    return tuple(numbers) if all(1e-6 <= number <= 1e6 for number in numbers) else None
