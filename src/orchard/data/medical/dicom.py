"""Read DICOM: a file with an image or a volume, or a folder with one file for each slice of a volume."""

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pydicom
from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.errors import InvalidDicomError
from pydicom.pixels.decoders.base import get_decoder
from pydicom.pixels.processing import apply_color_lut, apply_modality_lut

from orchard.data.medical.scans import (
    Scan,
    Spacing,
    Values,
    check_size,
    in_standard_axes,
    is_dicom,
    known_spacing,
)
from orchard.data.readers import check_file
from orchard.errors import DataWarning, UserError

PALETTE_FIELDS = [
    f"{kind}{colour}PaletteColorLookupTable{end}"
    for colour in ("Red", "Green", "Blue")
    for kind, end in (("", "Descriptor"), ("", "Data"), ("Segmented", "Data"))
]
FIELDS = [
    *("SOPClassUID", "SeriesInstanceUID", "InstanceNumber", "BurnedInAnnotation"),
    *("Rows", "Columns", "NumberOfFrames", "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration"),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PixelPaddingValue", "PixelPaddingRangeLimit"),
    *("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence", "WindowCenter", "WindowWidth", "VOILUTFunction"),
    *("PixelSpacing", "ImagerPixelSpacing", "SpacingBetweenSlices", "ImagePositionPatient", "ImageOrientationPatient"),
    *("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"),
    *("ExtendedOffsetTable", "ExtendedOffsetTableLengths", "PixelData"),
    *PALETTE_FIELDS,
]
"""All that is read of a file. Names, numbers and dates of patients, and private fields, are skipped."""
SEGMENTATION = "1.2.840.10008.5.1.4.1.1.66.4"
GREY = ("MONOCHROME1", "MONOCHROME2")
BRIGHTNESS = np.array([0.299, 0.587, 0.114], dtype=np.float32)
"""The weights of red, green and blue, as for image files."""
ONE_AT_A_TIME = threading.Lock()
UNEVEN = 0.1
"""Distances between slices may differ from their median by this part of it."""


class Slice(NamedTuple):
    """One slice, in intensities, and where it lies."""

    values: Values
    window: tuple[float, float] | None
    kind: str
    """MONOCHROME1, MONOCHROME2 or RGB."""
    series: str | bytes
    number: float | None
    spacing: Spacing | None
    gap: float | None
    """The distance to the next slice, as the header has it."""
    position: NDArray[np.float64] | None
    axes: NDArray[np.float64] | None
    """The directions of the next slice, the next row and the next column."""
    has_text: bool
    """Whether the header says that text is burnt into the pixels."""


def read_dicom(path: Path) -> Scan:
    """Read a file, or a folder whose files are the slices of one volume."""
    slices = _folder(path) if path.is_dir() else _slices(path)
    if any(part.has_text for part in slices):
        text = "some images say that text is burnt into their pixels, which may name patients; look at them before use"
        with ONE_AT_A_TIME:  # while another thread reads, no warning is shown
            warnings.warn(f"{path if path.is_dir() else path.parent}: {text}", DataWarning, stacklevel=2)
    if len(slices) > 1:
        return _volume(slices, path)
    only = slices[0]
    return Scan(only.values, only.spacing, only.window, only.kind == "MONOCHROME1", only.kind == "RGB")


def frame_count(path: Path) -> int:
    """Return how many images a file holds, as its header says."""
    with _reading(path):
        header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=["NumberOfFrames"])
        return int(header.get("NumberOfFrames") or 1)


def _folder(folder: Path) -> list[Slice]:
    found: list[Slice] = []
    for path in sorted(path for path in folder.iterdir() if not path.name.startswith(".") and is_dicom(path)):
        slices = _slices(path)
        if len(slices) > 1:
            raise UserError(f"{path}: holds {len(slices)} slices; in a volume's folder every file holds one")
        found += slices
        check_size(found[0].values.size * len(found), folder)
    if not found:
        raise UserError(f"{folder}: holds no DICOM file")
    return found


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Let pydicom neither warn nor log, nor show the messages of its errors, since it quotes the file.

    This concerns all threads, so one reads at a time.
    """
    check_file(path)
    logger = logging.getLogger("pydicom")
    with ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before, logger.disabled = logger.disabled, True
        try:
            yield
        except (UserError, OSError):
            raise
        except InvalidDicomError:
            raise UserError(f"{path}: is not a DICOM file: it does not have 'DICM' after 128 bytes") from None
        except Exception:  # what a damaged file raises is not documented
            raise UserError(f"{path}: cannot be read as DICOM: its header is damaged or not complete") from None
        finally:
            logger.disabled = before


def _slices(path: Path) -> list[Slice]:
    with _reading(path):
        return _frames(pydicom.dcmread(path, specific_tags=list(FIELDS)), path)


def _frames(dataset: Dataset, path: Path) -> list[Slice]:
    if dataset.get("SOPClassUID") == SEGMENTATION:
        raise UserError(f"{path}: is a DICOM segmentation, which cannot be read; save it as a NIfTI map of labels")
    if "PixelData" not in dataset:
        raise UserError(f"{path}: holds no pixels; it is no image, or it is cut short")
    count = int(dataset.get("NumberOfFrames") or 1)
    voxels = count * int(dataset.Rows) * int(dataset.Columns)
    check_size(voxels, path)
    check_file(path, 2 * voxels)
    stored, kind = _decoded(dataset, path)
    stored = stored[None] if count == 1 else stored
    return [_slice(dataset, k if count > 1 else None, stored[k], kind, path) for k in range(count)]


def _decoded(dataset: Dataset, path: Path) -> tuple[NDArray[Any], str]:
    """Return the stored pixels, and MONOCHROME1, MONOCHROME2 or RGB."""
    syntax = dataset.file_meta.TransferSyntaxUID
    hint = "pip install 'pylibjpeg[all]'"
    try:
        decoder = get_decoder(syntax)
    except NotImplementedError:
        raise UserError(f"{path}: is compressed in a way that cannot be read; save it without compression") from None
    if not decoder.is_available:
        raise UserError(f"{path}: is compressed ({syntax.name}) and needs a decoder; install it with: {hint}")
    try:
        stored, properties = decoder.as_array(dataset)
    except Exception:
        if syntax.is_compressed:
            text = f"cannot be decoded ({syntax.name}): they are damaged, or need another decoder; try: {hint}"
            raise UserError(f"{path}: its pixels {text}") from None
        raise UserError(f"{path}: its pixels do not fit its header; it is damaged or cut short") from None
    kind = str(properties["photometric_interpretation"])
    if kind == "PALETTE COLOR":
        return apply_color_lut(stored, dataset)[..., :3], "RGB"
    if kind not in (*GREY, "RGB"):
        raise UserError(f"{path}: has colours of a kind that cannot be read; save it as grey or RGB")
    return stored, kind


def _slice(dataset: Dataset, frame: int | None, stored: NDArray[Any], kind: str, path: Path) -> Slice:
    measures = _group(dataset, frame, "PixelMeasuresSequence")
    placed = _group(dataset, frame, "PlanePositionSequence")
    spacing = _numbers(measures, "PixelSpacing", 2) or _numbers(dataset, "ImagerPixelSpacing", 2)
    gap = _numbers(measures, "SpacingBetweenSlices", 1)
    # frames without a place of their own are in the file's order
    position = _numbers(placed, "ImagePositionPatient", 3) if frame is None or placed is not dataset else []
    number = [frame] if frame is not None else _numbers(dataset, "InstanceNumber", 1)
    if kind == "RGB":
        values = stored.astype(np.float32) @ BRIGHTNESS
        bits = int(dataset.BitsStored) if dataset.PhotometricInterpretation != "PALETTE COLOR" else 8 * stored.itemsize
        window: tuple[float, float] | None = (0, 2**bits - 1)
    else:
        values = _intensities(dataset, _group(dataset, frame, "PixelValueTransformationSequence"), stored)
        window = _window(_group(dataset, frame, "FrameVOILUTSequence"))
    return Slice(
        values,
        window,
        kind,
        dataset.get_item("SeriesInstanceUID").value if "SeriesInstanceUID" in dataset else "",  # as it is: not decoded
        number[0] if number else None,
        known_spacing(spacing) if spacing else None,
        abs(gap[0]) if gap and gap[0] else None,
        np.array(position) if position else None,
        _axes(_numbers(_group(dataset, frame, "PlaneOrientationSequence"), "ImageOrientationPatient", 6), path),
        str(dataset.get("BurnedInAnnotation", "")).upper() == "YES",
    )


def _group(dataset: Dataset, frame: int | None, name: str) -> Dataset:
    """Return where a frame's fields are: in its own group, in the one that all frames share, or in the file itself."""
    holders = [*dataset.get("PerFrameFunctionalGroupsSequence", [])[frame or 0 :][:1]]
    holders += [*dataset.get("SharedFunctionalGroupsSequence", [])[:1]]
    return next((holder[name].value[0] for holder in holders if name in holder and holder[name].value), dataset)


def _numbers(holder: Dataset, name: str, count: int) -> list[float]:
    """Return a field's first `count` numbers; none if it is absent or empty."""
    value = holder.get(name)
    if value is None or value == "":
        return []
    numbers = [
        float(number) for number in (value if isinstance(value, list | pydicom.multival.MultiValue) else [value])
    ]
    if len(numbers) < count or not np.isfinite(numbers).all():
        raise ValueError(name)
    return numbers[:count]


def _intensities(dataset: Dataset, group: Dataset, stored: NDArray[Any]) -> Values:
    """Return what the stored numbers mean, e.g. Hounsfield units, and NaN where the pixels are padding."""
    if "ModalityLUTSequence" in dataset:
        values: Values = apply_modality_lut(stored, dataset).astype(np.float32)
    else:
        slope, intercept = _numbers(group, "RescaleSlope", 1), _numbers(group, "RescaleIntercept", 1)
        values = stored.astype(np.float32)
        values *= np.float32(slope[0] if slope else 1)
        values += np.float32(intercept[0] if intercept else 0)
    names = ("PixelPaddingValue", "PixelPaddingRangeLimit")
    # the header may give a negative number as an unsigned one
    ends = [np.array(int(dataset[name].value)).astype(stored.dtype) for name in names if dataset.get(name) is not None]
    if ends:
        values[(stored >= min(ends)) & (stored <= max(ends))] = np.nan
    return values


def _window(group: Dataset) -> tuple[float, float] | None:
    """Return the ends of the first window: the standard's formulas for LINEAR and LINEAR_EXACT; also for SIGMOID."""
    centre, width = _numbers(group, "WindowCenter", 1), _numbers(group, "WindowWidth", 1)
    if not centre or not width:
        return None
    exact = group.get("VOILUTFunction") in ("LINEAR_EXACT", "SIGMOID")
    low, high = centre[0] - width[0] / 2, centre[0] + width[0] / 2 - (0 if exact else 1)
    return (low, high) if low < high else None


def _axes(orientation: list[float], path: Path) -> NDArray[np.float64] | None:
    if not orientation:
        return None
    columns, rows = np.array(orientation[:3]), np.array(orientation[3:])
    normal = np.cross(columns, rows)
    if not np.allclose([columns @ columns, rows @ rows, columns @ rows], [1, 1, 0], atol=0.01):
        raise UserError(f"{path}: its ImageOrientationPatient is not two directions at a right angle")
    return np.array([normal, rows, columns])


def _volume(slices: list[Slice], path: Path) -> Scan:
    first = slices[0]
    for other in slices[1:]:
        for name, has, should in (
            ("SeriesInstanceUID: it holds several series", other.series, first.series),
            ("size", other.values.shape, first.values.shape),
            ("PhotometricInterpretation", other.kind, first.kind),
            ("PixelSpacing", other.spacing, first.spacing),
            ("ImageOrientationPatient", other.axes, first.axes),
        ):
            if not _alike(has, should):
                raise UserError(f"{path}: its slices are not one volume: they differ in {name}")
    order, gap = _order(slices, path)
    values = np.stack([slices[k].values for k in order])
    spacing = (gap, *first.spacing) if gap and first.spacing else None
    scan = Scan(values, spacing)
    if first.axes is not None:
        affine = np.eye(4)
        affine[:3, :3] = first.axes.T * (spacing or 1)
        start = slices[order[0]].position
        affine[:3, 3] = 0 if start is None else start
        scan = in_standard_axes(values, spacing, affine)
    window = first.window if len({part.window for part in slices}) == 1 else None
    return replace(scan, window=window, inverted=first.kind == "MONOCHROME1", colour=first.kind == "RGB")


def _alike(has: Any, should: Any) -> bool:
    if isinstance(has, str | bytes) or has is None or should is None:
        return has is should or (isinstance(has, str | bytes) and bool(has == should))
    return np.shape(has) == np.shape(should) and np.allclose(has, should, rtol=1e-3, atol=1e-3)


def _order(slices: list[Slice], path: Path) -> tuple[list[int], float | None]:
    """Return the slices' order along their normal, else by their number, and the distance between them."""
    axes, positions = slices[0].axes, [part.position for part in slices if part.position is not None]
    numbers = [part.number for part in slices if part.number is not None]
    if positions and axes is not None:
        if len(positions) < len(slices):
            raise UserError(f"{path}: only some of its slices have an ImagePositionPatient")
        places = np.array(positions) @ axes[0]
    elif len(numbers) == len(slices):
        places = np.array(numbers)
    else:
        raise UserError(f"{path}: the order of its slices is unknown: no ImagePositionPatient, no InstanceNumber")
    order = np.argsort(places, kind="stable").tolist()
    gaps = np.diff(places[order])
    usual = float(np.median(gaps))
    if gaps.min() <= UNEVEN * usual:
        raise UserError(f"{path}: two of its slices lie at the same place; a folder holds one volume")
    if np.abs(gaps - usual).max() > UNEVEN * usual:
        raise UserError(f"{path}: the distances between its slices differ; is one missing?")
    return order, usual if positions and axes is not None else slices[0].gap
