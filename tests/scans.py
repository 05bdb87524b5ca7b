"""Medical files that tests write; the DICOM ones name a patient who must not show up anywhere."""

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
from numpy.typing import NDArray
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

PACKAGES = Path(pydicom.__file__).parents[1]
DICOM_FILES = PACKAGES / "pydicom/data/test_files"
NIFTI_FILES = PACKAGES / "nibabel/tests/data"
SECRETS = ("Meier", "Aurelia", "4711-0815", "19510327", "Waldklinik", "Hausnummer")
"""What identifies the patient of every file written here."""
SERIES = generate_uid()
AXIAL = [1, 0, 0, 0, 1, 0]


def dataset(pixels: NDArray[Any], **fields: Any) -> Dataset:
    """Return a DICOM image of 16 bits, h×w or frames×h×w, or of 8 bits with three colours at the end."""
    colour = pixels.dtype == np.uint8
    shape = pixels.shape[:-1] if colour else pixels.shape
    made = Dataset()
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    made.SOPClassUID, made.SOPInstanceUID, made.SeriesInstanceUID = CTImageStorage, generate_uid(), SERIES
    made.PatientName, made.PatientID = "Meier^Aurelia", "4711-0815"
    made.PatientBirthDate = made.StudyDate = "19510327"
    made.InstitutionName = "Waldklinik"
    made.private_block(0x0009, "Orchard test", create=True).add_new(0x01, "LO", "Hausnummer")
    made.Rows, made.Columns = shape[-2:]
    if len(shape) == 3:
        made.NumberOfFrames = shape[0]
    made.SamplesPerPixel, made.PhotometricInterpretation = (3, "RGB") if colour else (1, "MONOCHROME2")
    if colour:
        made.PlanarConfiguration = 0
    made.BitsAllocated = made.BitsStored = 8 * pixels.itemsize
    made.HighBit, made.PixelRepresentation = made.BitsStored - 1, int(pixels.dtype.kind == "i")
    made.add_new("PixelData", "OB" if colour else "OW", pixels.tobytes())
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def write_dicom(path: Path, pixels: NDArray[Any], **fields: Any) -> Path:
    dataset(pixels, **fields).save_as(path, enforce_file_format=True)
    return path


def write_series(folder: Path, volume: NDArray[Any], gap: float = 2, **fields: Any) -> Path:
    """Write axial slices from feet to head into files whose names and numbers tell another order."""
    folder.mkdir()
    for k, pixels in enumerate(volume):
        name = f"slice{(5 * k + 3) % 7}.dcm"
        place = {"ImagePositionPatient": [-10, 20, gap * k - 7], "ImageOrientationPatient": AXIAL}
        common = {"PixelSpacing": [0.5, 0.25], "InstanceNumber": len(volume) - k}
        write_dicom(folder / name, pixels, **(place | common | fields))
    return folder


def write_nifti(path: Path, values: NDArray[Any], affine: NDArray[Any] | None = None) -> Path:
    """Write values in the file's own order of axes; by default, they go to the right, the front and the head."""
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4) if affine is None else affine), path)
    return path


def standard(volume: NDArray[Any]) -> NDArray[Any]:
    """Return depth×rows×columns as NIfTI has it by default, or the other way round."""
    return volume.transpose(2, 1, 0)[::-1, ::-1]


def changed(content: bytes, place: int, value: bytes) -> bytes:
    """Return bytes of which some are replaced."""
    return content[:place] + value + content[place + len(value) :]
