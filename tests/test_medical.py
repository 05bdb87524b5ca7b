"""Medical images: settings, windows, the grid, NIfTI files, maps of labels; test_dicom.py has what is DICOM's own."""

import gzip
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from torch.nn import functional

from orchard.data.medical.nifti import read_nifti
from orchard.data.medical.scans import MedicalSettings, Scan, _windowed, is_medical, read_label_map, read_medical
from orchard.errors import UserError
from orchard.settings import validated
from scans import DICOM_FILES, NIFTI_FILES, changed, standard, write_dicom, write_nifti, write_series

PLAIN = MedicalSettings()
VOLUME = np.arange(24, dtype=np.int16).reshape(2, 3, 4)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"window": [40, 40]}, r"window = \[40.0, 40.0\]: the first number must be below the second"),
        ({"window": [float("nan"), 1.0]}, "window.0 = nan: input should be a finite number"),
        ({"window": [0.0, float("inf")]}, "window.1 = inf"),
        ({"window": [1, 2, 3]}, "window"),
        ({"spacing": [1, 0]}, r"spacing = \[1.0, 0.0\]: must be above 0"),
        ({"spacing": [1, 1, 1]}, r"spacing = .*: 2-D images need 2 numbers"),
        ({"spacing": [1, 1], "depth": 4}, r"spacing = .*: volumes \(depth is set\) need 3 numbers"),
        ({"spacing": []}, "2-D images need 2 numbers"),
        ({"depth": 0}, "depth = 0"),
        ({"depht": 4}, "did you mean 'depth'"),
    ],
)
def test_settings_that_contradict_themselves(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        validated(MedicalSettings, values)


def test_settings_come_from_toml_and_go_back() -> None:
    settings = validated(MedicalSettings, {"window": [-160, 240], "spacing": [3, 1, 1.5], "depth": 16})
    assert settings.window == (-160.0, 240.0)
    assert validated(MedicalSettings, settings.model_dump(mode="json")) == settings


def test_settings_need_neither_pytorch_nor_the_readers() -> None:
    heavy = "{'torch', 'pydicom', 'nibabel'}"
    code = f"import sys, orchard.data.medical.scans; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# windows


def test_a_window_by_hand(tmp_path: Path) -> None:
    file = write_nifti(tmp_path / "a.nii", np.array([[-200.0, -100, 0], [50, 100, 300], [0, 0, 0]])[::-1, ::-1].T)
    seen = read_medical(file, MedicalSettings(window=(-100, 100)), 3)
    np.testing.assert_array_equal(seen, [[-1, -1, 0], [0.5, 1, 1], [0, 0, 0]])
    assert seen.dtype == np.float32


def test_without_a_window_the_percentiles_count(tmp_path: Path) -> None:
    file = write_nifti(tmp_path / "a.nii", np.repeat(np.arange(101.0)[::-1, None], 101, 1))  # 101 columns of 0 … 100
    seen = read_medical(file, PLAIN, 101)
    np.testing.assert_allclose(seen[0], ((np.arange(101) - 1) / 98 * 2 - 1).clip(-1, 1), atol=1e-6)
    assert (seen == seen[0]).all()


def test_a_rare_value_is_above_a_window_without_width(tmp_path: Path) -> None:
    mask = np.zeros((20, 20))
    mask[3, 4] = 1
    assert read_medical(write_nifti(tmp_path / "a.nii", mask), PLAIN, 20).sum() == 1 - 399
    assert (read_medical(write_nifti(tmp_path / "b.nii", mask * 0 + 7), PLAIN, 20) == -1).all()


def test_inverted_values_change_places() -> None:
    values = np.array([[0, 1, 3, np.nan]], dtype=np.float32)
    np.testing.assert_array_equal(_windowed(Scan(values, inverted=True), (0, 2)), [[1, 0, -1, -1]])
    np.testing.assert_array_equal(_windowed(Scan(values, window=(1, 3)), None), [[-1, -1, 1, -1]])


@pytest.mark.parametrize("window", [(-1e300, 1e300), (0, 1e-300), (-1e-40, 1e-40)])
def test_extreme_windows_stay_in_range(window: tuple[float, float]) -> None:
    values = np.array([[-3e38, -1, 0, 1, 3e38]], dtype=np.float32)
    seen = _windowed(Scan(values), window)
    assert (np.diff(seen) >= 0).all()
    assert seen[0, 0] == -1
    assert seen[0, -1] == 1


def test_missing_values_are_dark_and_infinite_ones_refused(tmp_path: Path) -> None:
    values = np.array([[np.nan, 1.0], [2.0, 3.0]])
    seen = read_medical(write_nifti(tmp_path / "a.nii", values), MedicalSettings(window=(1, 3)), 2)
    assert sorted(seen.ravel()) == [-1, -1, 0, 1]
    assert seen[1, 1] == -1
    for value, message in ((np.inf, "holds an infinite value"), (1e300, "infinite")):
        with pytest.raises(UserError, match=message):
            read_medical(write_nifti(tmp_path / "b.nii", np.where(np.isnan(values), value, values)), PLAIN, 2)
    with pytest.raises(UserError, match="holds no value"):
        read_medical(write_nifti(tmp_path / "c.nii", values * np.nan), PLAIN, 2)


# the grid


def read_values(values: NDArray[Any], monkeypatch: pytest.MonkeyPatch, settings: MedicalSettings, size: int) -> Any:
    """Read values in [−1, 1] as if a file held them, with pixels of one millimetre."""
    scan = Scan(values.astype(np.float32), (1.0,) * values.ndim, (-1, 1))
    monkeypatch.setattr("orchard.data.medical.scans._scan", lambda path: scan)
    return read_medical(Path("a.nii"), settings, size)


@given(height=st.integers(1, 12), width=st.integers(1, 12), size=st.integers(1, 12), seed=st.integers(0, 99))
def test_images_are_resized_as_pytorch_does_it(height: int, width: int, size: int, seed: int) -> None:
    values = np.random.default_rng(seed).uniform(-1, 1, (height, width)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        seen = read_values(values, patch, PLAIN, size)
        same = read_values(values, patch, MedicalSettings(spacing=(height / size, width / size)), size)
    there = torch.from_numpy(values)[None, None]
    expected = functional.interpolate(there, (size, size), mode="bilinear", antialias=True)[0, 0]
    np.testing.assert_allclose(seen, expected.numpy(), atol=2e-6)
    np.testing.assert_allclose(seen, same, atol=2e-6)  # with that spacing the image fills the grid


@given(shape=st.tuples(*[st.integers(1, 6)] * 3), seed=st.integers(0, 99))
def test_volumes_are_resized_as_pytorch_does_it(shape: tuple[int, int, int], seed: int) -> None:
    values = np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        seen = read_values(values, patch, MedicalSettings(depth=7), 6)
    expected = functional.interpolate(torch.from_numpy(values)[None, None], (7, 6, 6), mode="trilinear")[0, 0]
    np.testing.assert_allclose(seen, expected.numpy(), atol=2e-6)


def test_shrinking_takes_every_slice_into_account(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.zeros((8, 2, 2))
    values[3] = 0.8
    seen = read_values(values, monkeypatch, MedicalSettings(depth=1), 2)
    assert seen.shape == (1, 2, 2)
    assert (seen > 0.1).all()


def test_a_spacing_cuts_or_pads_around_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(16.0).reshape(4, 4) / 16
    settings = MedicalSettings(spacing=(1, 1))
    np.testing.assert_array_equal(read_values(values, monkeypatch, settings, 2), values[1:3, 1:3])
    np.testing.assert_array_equal(read_values(values, monkeypatch, settings, 6), np.pad(values, 1, constant_values=-1))
    halves = read_values(values, monkeypatch, MedicalSettings(spacing=(1, 0.5)), 4)
    np.testing.assert_allclose(halves[:, 1] * 16, [1.25, 5.25, 9.25, 13.25])  # a quarter from column 1 to column 2


def test_volumes_are_cut_and_padded_along_each_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = MedicalSettings(spacing=(1, 1, 1), depth=4)
    seen = read_values(VOLUME / 24, monkeypatch, settings, 3 + 2)
    assert (seen[[0, 3]] == -1).all()
    np.testing.assert_allclose(seen[1, 1:4, 2], (VOLUME[0, :, 1] + 0.5) / 24, rtol=1e-6)  # 5 columns about 4


# NIfTI


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_every_orientation_becomes_the_same(tmp_path: Path, order: tuple[int, ...]) -> None:
    plain = nibabel.Nifti1Image(standard(VOLUME), np.diag([0.25, 0.5, 2, 1]))
    for k, signs in enumerate(itertools.product([1, -1], repeat=3)):
        file = tmp_path / f"{k}.nii.gz"
        nibabel.save(plain.as_reoriented(np.array(list(zip(order, signs, strict=True)))), file)
        scan = read_nifti(file)
        np.testing.assert_array_equal(scan.values, VOLUME)
        assert scan.spacing == (2, 0.5, 0.25)


def test_an_oblique_volume_goes_to_the_nearest_axes(tmp_path: Path) -> None:
    turn = np.eye(4)
    turn[:2, :2] = [[np.cos(0.5), -np.sin(0.5)], [np.sin(0.5), np.cos(0.5)]]
    np.testing.assert_array_equal(read_nifti(write_nifti(tmp_path / "a.nii", standard(VOLUME), turn)).values, VOLUME)


@pytest.mark.parametrize("name", ["anatomical.nii", "reoriented_anat_moved.nii", "standard.nii.gz"])
def test_real_volumes_as_nibabel_reads_them(name: str) -> None:
    canonical = nibabel.as_closest_canonical(nibabel.load(NIFTI_FILES / name))
    scan = read_nifti(NIFTI_FILES / name)
    np.testing.assert_array_equal(standard(scan.values), canonical.get_fdata(dtype=np.float32))
    assert scan.spacing == tuple(map(float, canonical.header.get_zooms()[::-1]))
    seen = read_medical(NIFTI_FILES / name, MedicalSettings(depth=6), 10)
    assert seen.shape == (6, 10, 10)
    assert seen.min() >= -1
    assert seen.max() <= 1


def test_slope_intercept_and_units_count(tmp_path: Path) -> None:
    content = write_nifti(tmp_path / "a.nii", np.array([[0, 1], [2, 3]], dtype=np.int16)).read_bytes()
    content = changed(content, 112, np.array([2, -10], "<f4").tobytes())  # scl_slope, scl_inter
    content = changed(content, 80, np.array([500, 250, 1], "<f4").tobytes())  # pixdim
    (tmp_path / "a.nii").write_bytes(changed(content, 123, b"\x03"))  # microns
    scan = read_nifti(tmp_path / "a.nii")
    np.testing.assert_array_equal(scan.values, [[-4, -8], [-6, -10]])
    assert scan.spacing == (0.25, 0.5)


def test_nifti_2_and_axes_of_length_one(tmp_path: Path) -> None:
    nibabel.save(nibabel.Nifti2Image(standard(VOLUME)[..., None], np.eye(4)), tmp_path / "a.nii.gz")
    np.testing.assert_array_equal(read_nifti(tmp_path / "a.nii.gz").values, VOLUME)
    file = write_nifti(tmp_path / "b.nii", standard(VOLUME[:, 1:2]), np.diag([1, 2, 3, 1]))
    np.testing.assert_array_equal(read_nifti(file).values, VOLUME[:, 1])
    assert read_nifti(file).spacing == (3, 1)


def test_dicom_and_nifti_of_one_volume_agree(tmp_path: Path) -> None:
    folder = write_series(tmp_path / "series", VOLUME)
    file = write_nifti(tmp_path / "a.nii", standard(VOLUME), np.diag([0.25, 0.5, 2, 1]))
    for settings in (MedicalSettings(depth=3), MedicalSettings(depth=3, spacing=(1, 0.4, 0.3), window=(2, 20))):
        np.testing.assert_array_equal(read_medical(folder, settings, 5), read_medical(file, settings, 5))


def test_damaged_nifti_files(tmp_path: Path) -> None:
    plain = write_nifti(tmp_path / "good.nii", standard(VOLUME)).read_bytes()
    zipped = gzip.compress(plain)
    thousands = changed(plain, 42, np.array([1000] * 3, "<i2").tobytes())
    colours = np.zeros((2, 2, 2), dtype=[("R", "u1"), ("G", "u1"), ("B", "u1")])
    for name, content, message in (
        ("huge.nii", changed(plain, 42, np.array([30000] * 3, "<i2").tobytes()), "its header tells of 2700+ voxels"),
        ("long.nii", thousands, "holds less than its header tells of"),
        ("long.nii.gz", gzip.compress(thousands), "holds less than its header tells of"),
        ("short.nii", plain[:-1], "holds less than its header tells of"),
        ("none.nii", changed(plain, 42, b"\x00\x00"), "its header is damaged"),
        ("type.nii", changed(plain, 70, b"\x99\x09"), "damaged or cut short"),
        ("flat.nii", changed(plain, 280, bytes(48)), r"its orientation \(sform or qform\) is damaged"),
        ("rgb.nii", write_nifti(tmp_path / "rgb.nii", colours).read_bytes(), "holds colours or complex numbers"),
        ("pair.nii", changed(plain, 344, b"ni1"), "is not a NIfTI file with its header and its data in one"),
        ("random.nii", np.random.default_rng(0).bytes(1000), "is not a NIfTI file"),
        ("nothing.nii.gz", b"", "is not a NIfTI file"),
        ("checksum.nii.gz", changed(zipped, len(zipped) - 8, bytes(4)), "it is damaged"),
        ("half.nii.gz", zipped[: len(zipped) // 2], "it is damaged or cut short"),
        ("middle.nii.gz", changed(zipped, 20, bytes(20)), "it is damaged"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=rf"{name}: .*{message}"):
            read_medical(tmp_path / name, MedicalSettings(depth=2), 3)
    for name in ("example4d.nii.gz", "example_nifti2.nii.gz", "functional.nii"):
        with pytest.raises(UserError, match="has 4 dimensions; save each volume in a file of its own"):
            read_medical(NIFTI_FILES / name, MedicalSettings(depth=2), 3)


def test_any_byte_of_a_nifti_header_may_be_wrong(tmp_path: Path) -> None:
    content = write_nifti(tmp_path / "good.nii", standard(VOLUME)).read_bytes()
    refused = 0
    for place in range(348):
        (tmp_path / "a.nii").write_bytes(changed(content, place, bytes([content[place] ^ 0xD5])))
        try:
            for settings in (MedicalSettings(depth=2), MedicalSettings(depth=2, spacing=(1, 2, 3))):
                assert np.abs(read_medical(tmp_path / "a.nii", settings, 3)).max() <= 1
        except UserError:
            refused += 1
    assert refused > 20


# which files


def test_files_are_known_by_name_or_content(tmp_path: Path) -> None:
    for name in ("a.dcm", "A.DCM", "a.ima", "a.nii", "a.NII.gz"):
        assert is_medical(tmp_path / name)
    (tmp_path / "1.2.840.55").write_bytes((DICOM_FILES / "CT_small.dcm").read_bytes())
    assert is_medical(tmp_path / "1.2.840.55")
    assert read_medical(tmp_path / "1.2.840.55", PLAIN, 8).shape == (8, 8)
    (tmp_path / "notes.gz").write_bytes(b"DICM")
    os.mkfifo(tmp_path / "pipe")
    for name in ("notes.gz", "pipe", "absent", "."):
        assert not is_medical(tmp_path / name)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.dcm")
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(UserError, match=r"pipe\.png: is neither a file nor a folder"):
        read_label_map(tmp_path / "pipe.png", PLAIN, 4)
    (tmp_path / "folder.nii").mkdir()
    for name, message in (
        ("pipe.dcm", "is neither a file nor a folder"),
        ("folder.nii", "holds no DICOM file"),
        ("absent.nii", "there is no such file"),
        ("a" * 300 + ".nii", "cannot be read: File name too long"),
    ):
        with pytest.raises(UserError, match=f"{name}: {message}"):
            read_medical(tmp_path / name, PLAIN, 4)


@pytest.mark.parametrize(("name", "library"), [("a.dcm", "pydicom"), ("a.nii", "nibabel")])
def test_a_missing_library(tmp_path: Path, name: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).touch()
    monkeypatch.delitem(sys.modules, "orchard.data.medical.dicom", raising=False)
    monkeypatch.delitem(sys.modules, "orchard.data.medical.nifti", raising=False)
    for module in [module for module in sys.modules if module.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError, match=rf"{name}: needs {library}.*pip install 'orchard\[medical\]'"):
        read_medical(tmp_path / name, PLAIN, 4)


# volumes and images


def test_volumes_need_a_depth_and_images_none(tmp_path: Path) -> None:
    file = write_nifti(tmp_path / "a.nii", standard(VOLUME))
    with pytest.raises(UserError, match=r"a\.nii: is a volume of 2 slices; set images.depth to read volumes"):
        read_medical(file, PLAIN, 4)
    with pytest.raises(UserError, match=r"is a single image, but images\.depth = 3 asks for volumes"):
        read_medical(DICOM_FILES / "CT_small.dcm", MedicalSettings(depth=3), 4)
    file = write_dicom(tmp_path / "a.dcm", VOLUME[0])
    with pytest.raises(UserError, match=r"does not say how many millimetres .* apart; leave images\.spacing out"):
        read_medical(file, MedicalSettings(spacing=(1, 1)), 4)


# maps of labels


def test_labels_are_never_mixed(tmp_path: Path) -> None:
    labels = np.array([[0, 0, 7], [0, 3, 7], [3, 3, 7]], dtype=np.int16)
    expected = [[0, 0, 7], [0, 3, 7], [3, 3, 7]]
    files = [
        write_dicom(tmp_path / "a.dcm", labels),
        write_nifti(tmp_path / "a.nii", labels[::-1, ::-1].T.astype(np.float64)),
        tmp_path / "L.png",
        tmp_path / "P.png",
        tmp_path / "I16.png",
    ]
    Image.fromarray(labels.astype(np.uint8)).save(files[2])
    palette = Image.fromarray(labels.astype(np.uint8), "P")
    palette.putpalette([200, 10, 10] * 256)
    palette.save(files[3])
    Image.fromarray(labels.astype(np.uint16)).save(files[4])
    for file in files:
        seen = read_label_map(file, PLAIN, 3)
        np.testing.assert_array_equal(seen, expected)
        assert seen.dtype == np.int64
        np.testing.assert_array_equal(read_label_map(file, PLAIN, 6), np.repeat(np.repeat(expected, 2, 0), 2, 1))
        np.testing.assert_array_equal(read_label_map(file, PLAIN, 1), [[3]])


@given(shape=st.tuples(*[st.integers(1, 6)] * 3), depth=st.integers(1, 9), size=st.integers(1, 9))
def test_labels_are_taken_as_pytorch_takes_the_nearest(shape: tuple[int, int, int], depth: int, size: int) -> None:
    values = np.random.default_rng(0).integers(9, size=shape).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orchard.data.medical.scans._scan", lambda path, labels: Scan(values))
        seen = read_label_map(Path("a.nii"), MedicalSettings(depth=depth), size)
    there = torch.from_numpy(values).double()[None, None]
    expected = functional.interpolate(there, (depth, size, size), mode="nearest-exact")[0, 0]
    np.testing.assert_array_equal(seen, expected.numpy())


def test_labels_are_on_the_grid_of_their_image(tmp_path: Path) -> None:
    affine = np.diag([-0.8, 0.9, 2.5, 1])
    mask = np.zeros((20, 20, 12))
    mask[4:11, 6:17, 2:9] = 1
    image = write_nifti(tmp_path / "image.nii.gz", mask, affine)
    label = write_nifti(tmp_path / "label.nii.gz", mask.astype(np.uint8), affine)
    for settings in (
        MedicalSettings(depth=9, window=(0, 1)),
        MedicalSettings(depth=9, window=(0, 1), spacing=(2, 1, 1)),
    ):
        values, labels = read_medical(image, settings, 24), read_label_map(label, settings, 24)
        assert labels.shape == values.shape
        assert (labels[values > 0.9] == 1).all()
        assert (labels[values < -0.9] == 0).all()
        assert labels.sum() > 100


def test_what_lies_outside_has_label_0(tmp_path: Path) -> None:
    file = write_nifti(tmp_path / "a.nii", np.full((2, 2), 5.0))
    seen = read_label_map(file, MedicalSettings(spacing=(1, 1)), 4)
    np.testing.assert_array_equal(seen, np.pad([[5, 5], [5, 5]], 1))
    file = write_nifti(tmp_path / "b.nii", np.array([[np.nan, 2.0], [2.0, 2.0]]))
    assert sorted(read_label_map(file, PLAIN, 2).ravel()) == [0, 2, 2, 2]


def test_what_is_no_map_of_labels(tmp_path: Path) -> None:
    half = write_nifti(tmp_path / "half.nii", np.array([[0.5, 1], [1, 1]]))
    below = write_nifti(tmp_path / "below.nii", np.array([[-1, 1], [1, 1]], dtype=np.int16))
    Image.new("RGB", (3, 3)).save(tmp_path / "colour.png")
    (tmp_path / "torn.png").write_bytes(b"\x89PNG")
    Image.new("L", (3, 3)).save(tmp_path / "jpeg.png", "JPEG")
    for file, message in (
        (half, "holds whole numbers from 0, but this one has others"),
        (below, "holds whole numbers from 0"),
        (tmp_path / "colour.png", "holds colours; a map of labels holds one whole number"),
        (DICOM_FILES / "SC_rgb_rle.dcm", "holds colours"),
        (tmp_path / "torn.png", "cannot be read as an image"),
        (tmp_path / "jpeg.png", "cannot be read as an image"),
    ):
        with pytest.raises(UserError, match=message):
            read_label_map(file, PLAIN, 3)
    Image.new("L", (3, 3)).save(tmp_path / "a.png")
    with pytest.raises(UserError, match=r"a\.png: is a single image, but images\.depth = 2"):
        read_label_map(tmp_path / "a.png", MedicalSettings(depth=2), 3)
    with pytest.raises(UserError, match="does not say how many millimetres"):
        read_label_map(tmp_path / "a.png", MedicalSettings(spacing=(1, 1)), 3)
