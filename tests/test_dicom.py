"""DICOM: what stored numbers mean, how slices become a volume, and that nobody is named."""

import gzip
import logging
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset
from pydicom.uid import SegmentationStorage

from orchard.data.medical.dicom import FIELDS, read_dicom
from orchard.data.medical.scans import MedicalSettings, read_label_map, read_medical
from orchard.errors import DataWarning, UserError
from scans import AXIAL, DICOM_FILES, PACKAGES, SECRETS, changed, dataset, write_dicom, write_series

PLAIN = MedicalSettings()
RAMP = np.array([[0, 1], [2, 3]], dtype=np.int16)
VOLUME = np.arange(5 * 2 * 3, dtype=np.int16).reshape(5, 2, 3)


# intensities


def test_slope_and_intercept_by_hand(tmp_path: Path) -> None:
    file = write_dicom(tmp_path / "a.dcm", RAMP, RescaleSlope=2, RescaleIntercept=-10)
    np.testing.assert_array_equal(read_dicom(file).values, [[-10, -8], [-6, -4]])
    seen = read_medical(file, MedicalSettings(window=(-10, -4)), 2)
    np.testing.assert_allclose(seen, [[-1, -1 / 3], [1 / 3, 1]], atol=1e-7)
    assert seen.dtype == np.float32


@pytest.mark.parametrize(
    ("function", "window"), [(None, (0, 2)), ("LINEAR", (0, 2)), ("LINEAR_EXACT", (0, 3)), ("SIGMOID", (0, 3))]
)
def test_the_file_s_own_window_is_the_standard_s(tmp_path: Path, function: str | None, window: tuple[int, int]) -> None:
    fields = {"WindowCenter": [1.5, 99], "WindowWidth": [3, 1]} | ({"VOILUTFunction": function} if function else {})
    file = write_dicom(tmp_path / "a.dcm", RAMP, **fields)
    assert read_dicom(file).window == window
    np.testing.assert_allclose(read_medical(file, PLAIN, 2), (RAMP * 2 / window[1] - 1).clip(-1, 1), atol=1e-6)


def test_a_window_without_width_does_not_count(tmp_path: Path) -> None:
    assert read_dicom(write_dicom(tmp_path / "a.dcm", RAMP, WindowCenter=1, WindowWidth=0)).window is None
    assert read_dicom(write_dicom(tmp_path / "b.dcm", RAMP, WindowCenter="", WindowWidth="")).window is None


def test_monochrome1_is_inverted(tmp_path: Path) -> None:
    settings = MedicalSettings(window=(0, 3))
    bright = read_medical(write_dicom(tmp_path / "a.dcm", RAMP), settings, 2)
    file = write_dicom(tmp_path / "b.dcm", RAMP, PhotometricInterpretation="MONOCHROME1")
    np.testing.assert_array_equal(read_medical(file, settings, 2), -bright)
    np.testing.assert_array_equal(read_label_map(file, PLAIN, 2), RAMP)  # a label stays what it is


def test_padding_is_dark_and_does_not_count(tmp_path: Path) -> None:
    pixels = np.array([[-2000, 0], [10, -2000]], dtype=np.int16)
    made = dataset(pixels, RescaleIntercept=-1024, RescaleSlope=1)
    for k, (vr, value) in enumerate((("SS", -2000), ("US", 63536))):  # scanners write both
        made.add_new("PixelPaddingValue", vr, value)
        made.save_as(tmp_path / f"{k}.dcm", enforce_file_format=True)
        seen = read_medical(tmp_path / f"{k}.dcm", PLAIN, 2)  # percentiles −1023.9 and −1014.1
        np.testing.assert_array_equal(seen, [[-1, -1], [1, -1]])
        assert np.isnan(read_dicom(tmp_path / f"{k}.dcm").values).sum() == 2
    made.add_new("PixelPaddingRangeLimit", "SS", 0)
    made.save_as(tmp_path / "range.dcm", enforce_file_format=True)
    assert np.isnan(read_dicom(tmp_path / "range.dcm").values).sum() == 3


def test_a_table_of_intensities(tmp_path: Path) -> None:
    table = Dataset()
    table.add_new("LUTDescriptor", "US", [4, 0, 16])
    table.ModalityLUTType = "US"
    table.add_new("LUTData", "US", [5, 50, 500, 5000])
    file = write_dicom(tmp_path / "a.dcm", RAMP.astype(np.uint16), ModalityLUTSequence=[table])
    np.testing.assert_array_equal(read_dicom(file).values, [[5, 50], [500, 5000]])


def test_real_images() -> None:
    head = read_dicom(DICOM_FILES / "CT_small.dcm")
    stored = pydicom.dcmread(DICOM_FILES / "CT_small.dcm").pixel_array
    np.testing.assert_array_equal(head.values, stored - 1024.0)  # Hounsfield units
    assert head.spacing == (0.661468, 0.661468)
    assert head.window is None
    seen = read_medical(DICOM_FILES / "CT_small.dcm", MedicalSettings(window=(-160, 240)), 128)
    np.testing.assert_allclose(seen, ((stored - 1024.0 + 160) / 200 - 1).clip(-1, 1), atol=1e-6)
    assert read_dicom(DICOM_FILES / "MR_small.dcm").window == (-200, 1399)  # centre 600, width 1600


@pytest.mark.parametrize("kind", ["RLE", "bigendian", "expb", "implicit", "jp2klossless"])
def test_the_same_image_however_it_is_stored(kind: str) -> None:
    expected = read_medical(DICOM_FILES / "MR_small.dcm", PLAIN, 48)
    np.testing.assert_array_equal(read_medical(DICOM_FILES / f"MR_small_{kind}.dcm", PLAIN, 48), expected)


def test_colours_become_grey(tmp_path: Path) -> None:
    pixels = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [255, 255, 255]]], dtype=np.uint8)
    seen = read_medical(write_dicom(tmp_path / "a.dcm", pixels), PLAIN, 2)
    np.testing.assert_allclose(seen, np.array([[0.299, 0.587], [0.114, 1]]) * 2 - 1, atol=1e-6)
    for name in ("SC_ybr_full_422_uncompressed.dcm", "SC_rgb_dcmtk_+eb+cr.dcm", "SC_rgb_rle_16bit.dcm"):
        seen = read_medical(DICOM_FILES / name, PLAIN, 100)  # the same picture as in SC_rgb_rle.dcm
        np.testing.assert_allclose(seen, read_medical(DICOM_FILES / "SC_rgb_rle.dcm", PLAIN, 100), atol=0.05)
    palette = pydicom.dcmread(DICOM_FILES / "examples_palette.dcm")
    red, green, blue = (
        np.frombuffer(palette[f"{colour}PaletteColorLookupTableData"].value, "<u2").astype(float)[palette.pixel_array]
        for colour in ("Red", "Green", "Blue")
    )
    grey = (0.299 * red + 0.587 * green + 0.114 * blue) / 65535 * 2 - 1
    np.testing.assert_allclose(read_dicom(DICOM_FILES / "examples_palette.dcm").values / 65535 * 2 - 1, grey, atol=1e-5)
    file = write_dicom(tmp_path / "b.dcm", pixels, PhotometricInterpretation="HSV")
    with pytest.raises(UserError, match="has colours of a kind that cannot be read; save it as grey or RGB"):
        read_medical(file, PLAIN, 2)


# volumes


def test_slices_are_sorted_by_their_place(tmp_path: Path) -> None:
    folder = write_series(tmp_path / "series", VOLUME, WindowCenter=50, WindowWidth=100)
    (folder / "DICOMDIR").write_bytes((DICOM_FILES / "dicomdirtests/DICOMDIR").read_bytes())
    (folder / "notes.txt").write_text("not a slice")
    (folder / ".hidden.dcm").write_text("not a slice")
    scan = read_dicom(folder)
    np.testing.assert_array_equal(scan.values, VOLUME)  # files and InstanceNumber tell other orders
    assert scan.spacing == (2, 0.5, 0.25)
    assert scan.window == (0, 99)
    assert read_medical(folder, MedicalSettings(depth=5), 4).shape == (5, 4, 4)
    with pytest.raises(UserError, match=r"series: is a volume of 5 slices; set images\.depth to read volumes"):
        read_medical(folder, PLAIN, 4)


def test_slices_along_another_axis(tmp_path: Path) -> None:
    sagittal = [0, 1, 0, 0, 0, -1]  # columns to the back, rows to the feet: the next slice lies to the right
    folder = tmp_path / "series"
    folder.mkdir()
    for k, pixels in enumerate(VOLUME):
        place = {"ImagePositionPatient": [3 * k, 0, 0], "ImageOrientationPatient": sagittal}
        write_dicom(folder / f"{k}.dcm", pixels, PixelSpacing=[0.5, 0.25], **place)
    scan = read_dicom(folder)
    np.testing.assert_array_equal(scan.values, VOLUME.transpose(1, 2, 0)[::-1])
    assert scan.spacing == (0.5, 0.25, 3)


def test_without_places_the_numbers_count(tmp_path: Path) -> None:
    nowhere: dict[str, Any] = {"ImagePositionPatient": None, "ImageOrientationPatient": None}
    folder = write_series(tmp_path / "series", VOLUME, **nowhere)
    scan = read_dicom(folder)
    np.testing.assert_array_equal(scan.values, VOLUME[::-1])
    assert scan.spacing is None
    folder = write_series(tmp_path / "more", VOLUME, SpacingBetweenSlices=3, **nowhere)
    assert read_dicom(folder).spacing == (3, 0.5, 0.25)
    folder = write_series(tmp_path / "other", VOLUME, InstanceNumber=None, **nowhere)
    with pytest.raises(UserError, match="other: the order of its slices is unknown"):
        read_dicom(folder)


def test_windows_that_differ_do_not_count(tmp_path: Path) -> None:
    folder = write_series(tmp_path / "series", VOLUME, WindowCenter=50, WindowWidth=100)
    place = {"ImagePositionPatient": [-10, 20, 3], "ImageOrientationPatient": AXIAL, "PixelSpacing": [0.5, 0.25]}
    write_dicom(folder / "more.dcm", VOLUME[0], WindowCenter=60, WindowWidth=100, **place)
    assert read_dicom(folder).values.shape == (6, 2, 3)
    assert read_dicom(folder).window is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"SeriesInstanceUID": "1.2.3"}, "they differ in SeriesInstanceUID: it holds several series"),
        ({"PixelSpacing": [0.5, 0.5]}, "they differ in PixelSpacing"),
        ({"PixelSpacing": None}, "they differ in PixelSpacing"),
        ({"ImageOrientationPatient": [0, 1, 0, 1, 0, 0]}, "they differ in ImageOrientationPatient"),
        ({"ImageOrientationPatient": [1, 0, 0, 1, 0, 0]}, "is not two directions at a right angle"),
        ({"PhotometricInterpretation": "MONOCHROME1"}, "they differ in PhotometricInterpretation"),
        ({"ImagePositionPatient": None}, "only some of its slices have an ImagePositionPatient"),
        ({"ImagePositionPatient": [-10, 20, 1]}, "two of its slices lie at the same place; a folder holds one volume"),
        ({"ImagePositionPatient": [-10, 20, 4]}, "the distances between its slices differ; is one missing?"),
        ({"Rows": 3, "Columns": 2}, "they differ in size"),
    ],
)
def test_slices_of_no_volume(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    folder = write_series(tmp_path / "series", VOLUME)  # from −7 to 1 in steps of 2
    place = {"ImagePositionPatient": [-10, 20, 3], "ImageOrientationPatient": AXIAL, "PixelSpacing": [0.5, 0.25]}
    write_dicom(folder / "more.dcm", VOLUME[0], **(place | fields))
    with pytest.raises(UserError, match=message) as refused:
        read_medical(folder, MedicalSettings(depth=4), 4)
    assert str(refused.value).startswith(f"{folder}")


def test_real_folders_that_are_no_volume() -> None:
    for name, message in (("MR700", "differ in ImageOrientationPatient"), ("MR2", "holds several series")):
        with pytest.raises(UserError, match=f"{name}: its slices are not one volume: .*{message}"):
            read_medical(DICOM_FILES / "dicomdirtests/98892003" / name, MedicalSettings(depth=4), 4)


def test_a_folder_with_a_volume_in_one_file(tmp_path: Path) -> None:
    write_dicom(tmp_path / "a.dcm", VOLUME)
    with pytest.raises(UserError, match=r"a\.dcm: holds 5 slices; in a volume's folder every file holds one"):
        read_medical(tmp_path, MedicalSettings(depth=4), 4)


def test_frames_are_a_volume(tmp_path: Path) -> None:
    fields = {"ImagePositionPatient": [0, 0, 0], "PixelSpacing": [1, 1], "SpacingBetweenSlices": -4}
    scan = read_dicom(write_dicom(tmp_path / "a.dcm", VOLUME, **fields))  # one place for all: the file's order counts
    np.testing.assert_array_equal(scan.values, VOLUME)
    assert scan.spacing == (4, 1, 1)
    assert read_medical(DICOM_FILES / "examples_ybr_color.dcm", MedicalSettings(depth=9), 12).shape == (9, 12, 12)


def test_frames_with_places_and_slopes_of_their_own(tmp_path: Path) -> None:
    """A real header of 176 sagittal frames, whose pixels are all 0 in the published file."""
    with gzip.open(PACKAGES / "nibabel/nicom/tests/data/philips_mprage.dcm.gz") as file:
        made = pydicom.dcmread(file)
    stored = np.broadcast_to(np.arange(176, dtype=np.uint16)[:, None, None], (176, 256, 256))
    made.PixelData = stored.tobytes()
    made.save_as(tmp_path / "a.dcm")
    scan = read_dicom(tmp_path / "a.dcm")
    assert scan.values.shape == (256, 256, 176)
    assert scan.spacing == pytest.approx((1, 1, 1), abs=1e-4)
    places = [frame.PlanePositionSequence[0].ImagePositionPatient[0] for frame in made.PerFrameFunctionalGroupsSequence]
    slope = made.PerFrameFunctionalGroupsSequence[0].PixelValueTransformationSequence[0].RescaleSlope
    np.testing.assert_allclose(scan.values[9, 9], np.argsort(places) * float(slope), rtol=1e-6)  # from right to left


# files that cannot be read


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "MR_small_jpeg_ls_lossless",
            r"is compressed \(JPEG-LS Lossless .*\) and needs a decoder; install it with: pip",
        ),
        (
            "SC_rgb_jpeg_gdcm",
            r"is compressed \(JPEG Lossless, .*\) and needs a decoder; install it with: pip install 'pylibjpeg",
        ),
        ("JPEG-lossy", r"its pixels cannot be decoded \(JPEG Extended .*need another decoder"),
        ("MR_truncated", "its pixels do not fit its header; it is damaged or cut short"),
        ("no_meta", "is not a DICOM file: it does not have 'DICM' after 128 bytes"),
        ("reportsi", "holds no pixels; it is no image, or it is cut short"),
        ("test-SR", "holds no pixels"),
        ("rtplan_truncated", "holds no pixels"),
        ("liver_1frame", "is a DICOM segmentation, which cannot be read; save it as a NIfTI map of labels"),
        ("meta_missing_tsyntax", "cannot be read as DICOM: its header is damaged or not complete"),
        ("nested_priv_SQ", "cannot be read as DICOM: its header is damaged or not complete"),
    ],
)
def test_real_files_that_cannot_be_read(name: str, message: str) -> None:
    with pytest.raises(UserError, match=rf"{name}\.dcm: {message}"):
        read_medical(DICOM_FILES / f"{name}.dcm", PLAIN, 8)


def test_written_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "text.dcm").write_text("not a DICOM file")
    (tmp_path / "empty.dcm").touch()
    write_dicom(tmp_path / "huge.dcm", RAMP, Rows=60000, Columns=60000)
    write_dicom(tmp_path / "large.dcm", RAMP, Rows=40000, Columns=40000)
    write_dicom(tmp_path / "none.dcm", RAMP, Rows=0)
    write_dicom(tmp_path / "spacing.dcm", RAMP, PixelSpacing=[1])
    write_dicom(tmp_path / "segments.dcm", RAMP, SOPClassUID=SegmentationStorage)
    video = dataset(RAMP)
    video.file_meta.TransferSyntaxUID = pydicom.uid.MPEG2MPML
    video["PixelData"].VR = "OB"
    video.PixelData = pydicom.encaps.encapsulate([b"frames"])
    video.save_as(tmp_path / "video.dcm", enforce_file_format=True)
    for name, message in (
        ("text.dcm", "is not a DICOM file"),
        ("empty.dcm", "cannot be read as DICOM|is not a DICOM file"),
        ("huge.dcm", "its header tells of 3600000000 voxels; at most 2147483648 can be read"),
        ("large.dcm", "would take .* times its size in memory"),
        ("none.dcm", "its pixels do not fit its header"),
        ("spacing.dcm", "cannot be read as DICOM: its header is damaged"),
        ("segments.dcm", "is a DICOM segmentation"),
        ("video.dcm", "is compressed in a way that cannot be read; save it without compression"),
    ):
        with pytest.raises(UserError, match=f"{name}: ({message})"):
            read_medical(tmp_path / name, PLAIN, 8)


# nobody is named


def test_only_the_listed_fields_are_read(tmp_path: Path) -> None:
    file = write_dicom(tmp_path / "a.dcm", RAMP)
    content = file.read_bytes()
    assert all(secret.encode() in content for secret in SECRETS)
    read = pydicom.dcmread(file, specific_tags=list(FIELDS))
    assert not [element for element in read if element.tag.is_private]
    assert not any(secret in str(read) for secret in SECRETS)
    assert {element.keyword for element in read} <= set(FIELDS)
    identifying = ("Patient", "Date", "Time", "Name", "Institution", "Physician", "Address", "Accession", "Comment")
    geometry = {"ImagePositionPatient", "ImageOrientationPatient"}
    assert not [field for field in set(FIELDS) - geometry if any(word in field for word in identifying)]


def test_whatever_is_wrong_nobody_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    draw = np.random.default_rng(0)
    fields = {"SpecificCharacterSet": "ISO_IR 100", "WindowCenter": 1, "WindowWidth": 3}
    good = write_dicom(tmp_path / "good.dcm", RAMP, **fields).read_bytes()
    broken = [good[:end] for end in range(0, len(good), 7)]
    broken += [changed(good, int(draw.integers(len(good))), draw.bytes(1)) for _ in range(600)]
    refused = 0
    for content in broken:
        (tmp_path / "a.dcm").write_bytes(content)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                said = repr(read_dicom(tmp_path / "a.dcm"))
            except UserError as error:
                said, refused = f"{error!r} {error}", refused + 1
        said += " ".join(str(warning.message) for warning in caught)
        assert not any(secret in said for secret in SECRETS)
    assert refused > len(broken) / 4
    assert not caplog.records


def test_threads_leave_warnings_and_logs_as_they_were() -> None:
    before, logger = list(warnings.filters), logging.getLogger("pydicom")
    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(lambda _: read_medical(DICOM_FILES / "MR_small.dcm", PLAIN, 8), range(40)))
    assert all((image == seen[0]).all() for image in seen)
    assert list(warnings.filters) == before
    assert not logger.disabled


def test_text_in_the_pixels_is_warned_of(tmp_path: Path) -> None:
    folder = write_series(tmp_path / "series", VOLUME, BurnedInAnnotation="YES")
    with pytest.warns(DataWarning, match="series: some images say that text is burnt into their pixels") as caught:
        read_dicom(folder)
    assert len(caught) == 1
    read_dicom(write_series(tmp_path / "other", VOLUME, BurnedInAnnotation="NO"))
