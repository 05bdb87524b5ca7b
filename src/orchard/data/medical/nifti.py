"""Read NIfTI: one volume or one slice in a file, plain or compressed with gzip."""

import gzip
import math
from pathlib import Path
from typing import IO, Any

import numpy as np
from nibabel.nifti1 import Nifti1Header, Nifti1Image
from nibabel.nifti2 import Nifti2Header
from numpy.typing import NDArray

from orchard.data.medical.scans import Affine, Scan, Values, check_size, in_standard_axes, known_spacing
from orchard.data.readers import check_file
from orchard.errors import UserError

GZIP_MAGIC = b"\x1f\x8b"
MOST_COMPRESSION = 1032
"""Gzip makes nothing smaller than by this factor."""
MAGIC = b"n+"
HEADERS = ((Nifti1Header, 344), (Nifti2Header, 4))
"""Where each kind of header has its magic word."""
LONGEST_HEADER = 540
MILLIMETRES = {"meter": 1000.0, "micron": 0.001}
"""What a unit is; without a unit, numbers are millimetres."""
TO_DICOM = np.diag([-1.0, -1.0, 1.0, 1.0])
"""NIfTI's coordinates go to the right and to the front, DICOM's to the left and to the back; both go to the head."""


def read_nifti(path: Path) -> Scan:
    """Read a file. Text in its header, and extensions of its header, are not read."""
    try:
        with path.open("rb") as plain:
            zipped = plain.read(2) == GZIP_MAGIC
            plain.seek(0)
            if not zipped:
                return _read(plain, path, path.stat().st_size)
            with gzip.open(plain) as unzipped:
                return _read(unzipped, path, path.stat().st_size * MOST_COMPRESSION)
    except (UserError, OSError):
        raise
    except Exception:  # what a damaged file raises is not documented
        raise UserError(f"{path}: cannot be read as NIfTI: it is damaged or cut short") from None


def _read(file: IO[bytes] | gzip.GzipFile, path: Path, most_bytes: int) -> Scan:
    header = _header(file, path)
    shape, dtype = header.get_data_shape(), header.get_data_dtype()
    if math.prod(shape[3:]) != 1:
        raise UserError(f"{path}: has {len(shape)} dimensions; save each volume in a file of its own")
    if dtype.kind not in "iuf":
        raise UserError(f"{path}: holds colours or complex numbers; only plain numbers can be read")
    count = math.prod(shape)
    check_size(count, path)
    offset, length = int(header.get_data_offset()), count * dtype.itemsize
    if count < 1 or min(shape) < 1 or offset < 0:
        raise UserError(f"{path}: cannot be read as NIfTI: its header is damaged")
    if offset + length > most_bytes:
        raise UserError(f"{path}: holds less than its header tells of; it is damaged or cut short")
    check_file(path, length)
    file.seek(offset)
    content = file.read(length)
    file.read(1)  # at the end, gzip compares its checksum
    values = _scaled(np.frombuffer(content, dtype, count).reshape((*shape, 1, 1)[:3], order="F"), header)
    return _oriented(values, header, path)


def _header(file: IO[bytes] | gzip.GzipFile, path: Path) -> Any:
    """Read the fixed part of the header."""
    block = file.read(LONGEST_HEADER)
    for kind, place in HEADERS:
        if block[place:].startswith(MAGIC):
            return kind(block[: kind.template_dtype.itemsize])
    raise UserError(f"{path}: is not a NIfTI file with its header and its data in one")


def _scaled(stored: NDArray[Any], header: Any) -> Values:
    with np.errstate(over="ignore"):  # too large values become infinite, which is refused later
        values = stored.astype(np.float32)
        slope, intercept = header.get_slope_inter()
        if slope is not None:
            values *= np.float32(slope)
            values += np.float32(intercept)
    return values


def _oriented(values: Values, header: Any, path: Path) -> Scan:
    """Bring the axes into the standard order; a volume of one slice becomes an image."""
    affine = header.get_best_affine()
    matrix = affine[:3, :3]
    lengths = np.linalg.norm(matrix, axis=0)
    if not np.isfinite(matrix).all() or not abs(np.linalg.det(matrix)) > 1e-6 * lengths.prod() > 0:
        raise UserError(f"{path}: its orientation (sform or qform) is damaged")
    unit = MILLIMETRES.get(header.get_xyzt_units()[0], 1.0)
    spacing = known_spacing([abs(float(number)) * unit for number in header["pixdim"][1:4]])
    scan = in_standard_axes(values, spacing, TO_DICOM @ np.diag([unit, unit, unit, 1]) @ affine)
    return _image(scan) if 1 in scan.values.shape else scan


def _image(scan: Scan) -> Scan:
    """Return a volume of one slice as an image."""
    axis = scan.values.shape.index(1)
    others = [k for k in range(3) if k != axis]
    spacing = scan.spacing and tuple(scan.spacing[k] for k in others)
    affine = None if scan.affine is None else scan.affine[:, [*others, axis, 3]]
    return Scan(np.squeeze(scan.values, axis), spacing, affine=affine)


def nifti_of(labels: NDArray[np.int64], affine: Affine) -> bytes:
    """Return a `.nii.gz` of labels, h×w or slices×h×w, that lie where a scan's affine says; columns come first."""
    axes = (2, 1, 0) if labels.ndim == 3 else (1, 0, 2)
    stored = labels.astype(np.uint8).reshape((*labels.shape, 1)[:3]).transpose(axes)
    return gzip.compress(Nifti1Image(stored, TO_DICOM @ affine[:, [*axes, 3]]).to_bytes(), mtime=0)
