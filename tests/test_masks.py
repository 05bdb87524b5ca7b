"""Segmentation from folders of images and masks."""

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import orchard
from helpers import some_images
from orchard.data.datasets import load_dataset
from orchard.data.division import federated_data
from orchard.data.handed_over import federate
from orchard.data.medical.masks import write_mask
from orchard.data.medical.scans import MedicalSettings, read_label_map
from orchard.data.site import site_data
from orchard.errors import UserError
from orchard.experiment import Experiment
from orchard.export.export import export_model
from orchard.tasks.classification import Classification
from orchard.tasks.segmentation import Segmentation
from processes import orchard_command
from scans import standard, write_dicom, write_nifti, write_series

SQUARE = np.zeros((20, 30), np.uint8)
SQUARE[5:15, 10:20] = 1


def write_pairs(home: Path, count: int, labels: NDArray[np.uint8] = SQUARE) -> Path:
    """Write pictures whose brightness shows their labels, and their masks."""
    for name in ("images", "masks"):
        (home / name).mkdir(parents=True)
    for k in range(count):
        pixels = some_images(1, *labels.shape)[0] // 4 + 60 * np.minimum(labels, 3)
        Image.fromarray(pixels.astype(np.uint8)).save(home / f"images/{k}.{'png' if k % 2 else 'bmp'}")
        Image.fromarray(labels).save(home / f"masks/{k}.png")
    return home


def held(folder: Path, **settings: Any) -> tuple[torch.Tensor, torch.Tensor, tuple[str, ...]]:
    """Return all samples in a folder, in some order, and the names of the classes."""
    dataset = load_dataset(Experiment(dataset=str(folder), **settings))
    assert isinstance(dataset.task, Segmentation)
    both = dataset.train, dataset.test
    return torch.cat([part.x for part in both]), torch.cat([part.y for part in both]), dataset.task.classes


def test_images_and_masks_are_for_segmentation(tmp_path: Path) -> None:
    write_pairs(tmp_path, 10, SQUARE * 2)
    experiment = Experiment(dataset=str(tmp_path), size=10)
    assert (experiment.task, experiment.model, experiment.images) == ("segmentation", "unet", None)
    x, y, classes = held(tmp_path, size=10)
    assert x.shape == (10, 1, 10, 10)
    assert classes == ("background", "1", "2")
    assert (y == y[0]).all()
    np.testing.assert_array_equal(y[0], 2 * SQUARE[1::2, 1::3])  # every second row, every third column
    inside, outside = x[:, 0][y == 2], x[:, 0][y == 0]
    assert inside.min() > outside.mean()


def test_black_and_white_is_background_and_class_1(tmp_path: Path) -> None:
    write_pairs(tmp_path / "two", 5, SQUARE * 255)
    _, y, classes = held(tmp_path / "two")
    assert classes == ("background", "1")
    assert y.sum() == (y > 0).sum() > 0
    write_pairs(tmp_path / "three", 5, SQUARE * 254 + (SQUARE > 0))
    Image.fromarray(SQUARE * 7).save(tmp_path / "three/masks/0.png")
    assert len(held(tmp_path / "three")[2]) == 256  # with any other label, 255 is one of them


def test_black_and_white_arrays_are_read_as_folders_are(tmp_path: Path) -> None:
    x, square = some_images(10, 20, 30), np.stack([SQUARE] * 10)
    white, seven = square * 255, square * 7
    np.savez(tmp_path / "two.npz", x_train=x, y_train=white, x_test=x, y_test=white)
    _, y, classes = held(tmp_path / "two.npz", size=20)
    assert classes == ("background", "1")
    assert set(y.flatten().tolist()) == {0, 1}
    np.savez(tmp_path / "three.npz", x_train=x, y_train=white, x_test=x, y_test=seven)
    assert len(held(tmp_path / "three.npz", size=20)[2]) == 256  # with any other label in any part, 255 is one of them
    site = site_data(tmp_path / "two.npz", "north", 0, Segmentation(("no", "a")), Experiment())
    assert site.class_counts()["test"] == [[10, 10]]

    settings: dict[str, Any] = {"clients": 2, "partition": "given", "dataset": "arrays", "size": 20}
    clients = federate([(x, white), (x, white)], Experiment(**settings))
    assert clients.task.classes == ("background", "1")
    assert len(federate([(x, white), (x, seven)], Experiment(**settings)).task.classes) == 256


def test_parts_and_clients(tmp_path: Path) -> None:
    for part, count in (("train", 6), ("val", 2), ("test", 3)):
        write_pairs(tmp_path / "parts" / part, count)
    dataset = load_dataset(Experiment(dataset=str(tmp_path / "parts")))
    assert (len(dataset.train.y), len(dataset.test.y)) == (8, 3)
    write_pairs(tmp_path / "clients/north", 20)
    write_pairs(tmp_path / "clients/south", 20, SQUARE * 3)
    experiment = Experiment(dataset=str(tmp_path / "clients"))
    assert (experiment.clients, experiment.partition.name, experiment.task) == (2, "given", "segmentation")
    data = federated_data(experiment)
    assert data.task.classes == ("background", "1", "2", "3")
    assert data.class_counts()["test"] == [[4, 4, 0, 0], [4, 0, 0, 4]]
    (tmp_path / "clients/south/masks").rename(tmp_path / "clients/south/labels")
    with pytest.raises(UserError, match=r"south: expected 'images' and 'masks', as in .*north"):
        federated_data(Experiment(dataset=str(tmp_path / "clients")))


def test_a_site_has_masks_of_the_classes_agreed_upon(tmp_path: Path) -> None:
    write_pairs(tmp_path, 10, SQUARE * 2)
    experiment = Experiment(task="segmentation")
    assert site_data(tmp_path, "north", 0, Segmentation(("no", "a", "b", "c")), experiment).shape == (1, 28, 28)
    with pytest.raises(UserError, match="label 2, but there are 2 classes"):
        site_data(tmp_path, "north", 0, Segmentation(("no", "a")), experiment)
    with pytest.raises(UserError, match=r"task = 'classification': but .* holds images/… and masks/…"):
        site_data(tmp_path, "north", 0, Classification(("a", "b")), Experiment())


def test_masks_of_medical_images(tmp_path: Path) -> None:
    for name in ("images", "masks"):
        (tmp_path / "dicom" / name).mkdir(parents=True)
    for k in range(5):
        write_dicom(tmp_path / f"dicom/images/{k}.dcm", SQUARE.astype(np.int16) * 100, PixelSpacing=[2, 1])
        Image.fromarray(SQUARE).save(tmp_path / f"dicom/masks/{k}.png")
    images = MedicalSettings(window=(0, 100), spacing=(1, 1))
    x, y, _ = held(tmp_path / "dicom", size=40, images=images)  # 40×30 mm, padded to 40×40
    assert y[0].sum() == 200
    np.testing.assert_array_equal(x[0, 0] > 0, y[0] == 1)  # a PNG has no spacing, and takes that of its image


@pytest.mark.parametrize("kind", ["series", "nifti"])
def test_masks_of_volumes(tmp_path: Path, kind: str) -> None:
    labels = np.zeros((4, 6, 5), np.int16)
    labels[1:3, 1:4, 2:4] = 1
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    for k in range(5):
        if kind == "series":
            write_series(tmp_path / f"images/{k}", labels * 50)
        else:
            write_nifti(tmp_path / f"images/{k}.nii.gz", labels * 50, np.diag([1, -1, 1, 1]))
        stored = standard(labels) if kind == "series" else labels
        affine = np.eye(4) if kind == "series" else np.diag([1, -1, 1, 1])
        write_nifti(tmp_path / f"masks/{k}.nii", stored.astype(np.uint8), affine)
    images = MedicalSettings(depth=4 if kind == "series" else 5, window=(0, 50))
    x, y, _ = held(tmp_path, size=6, images=images)
    assert y.shape == (5, *(4 if kind == "series" else 5, 6, 6))
    assert x.shape == (5, 1, *y.shape[1:])
    assert y[0].sum() > 0
    assert (x[:, 0][y == 1]).min() > (x[:, 0][y == 0]).mean()
    if kind == "series":  # of 5 columns come 6: the labels of the nearest
        np.testing.assert_array_equal(y[0], labels[:, :, [0, 1, 2, 2, 3, 4]])


# predicted masks


def segmented(tmp_path: Path) -> Path:
    """The exported model of a run that learned to find the square."""
    for client in ("north", "south"):
        write_pairs(tmp_path / "data" / client, 20)
    settings: dict[str, Any] = {"size": 16, "method": "fedavg", "rounds": 3, "epochs": 2, "batch_size": 4, "lr": 0.1}
    result = orchard.run(dataset=str(tmp_path / "data"), **settings, out=tmp_path / "run")
    assert result.scores()[-1].min() > 0.9
    export_model(tmp_path / "run", "north", tmp_path / "m.safetensors", "last")
    return tmp_path / "m.safetensors"


def test_predicted_masks_are_as_large_as_their_images(tmp_path: Path) -> None:
    segmented(tmp_path)
    done = orchard_command("predict", "m.safetensors", "data/south", "--masks", "found", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(file.name for file in (tmp_path / "found").iterdir()) == sorted(f"{k}.png" for k in range(20))
    for file in (tmp_path / "found").iterdir():
        found = np.asarray(Image.open(file))
        assert found.shape == SQUARE.shape
        assert (found != SQUARE).mean() < 0.1
    for arguments, message in (
        (["data/south/images/1.png", "--masks", "data/south/images"], "holds the image 1.png; choose another folder"),
        (["data/south", "data/north", "--masks", "new"], "two images are called 0; give them one by one"),
        (["x.npz", "--masks", "new"], "masks are written for images, not for x.npz:0"),
    ):
        np.savez(tmp_path / "x.npz", x=np.zeros((1, 1, 16, 16), np.float32))
        refused = orchard_command("predict", "m.safetensors", *arguments, cwd=tmp_path)
        assert (refused.returncode, message in refused.stderr) == (2, True), refused.stderr


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 0, 2)])
@pytest.mark.parametrize("flips", [(1, 1, 1), (-1, 1, 1), (1, -1, -1)])
def test_a_written_mask_lies_where_the_image_does(
    tmp_path: Path, order: tuple[int, ...], flips: tuple[int, ...]
) -> None:
    affine = np.eye(4)
    affine[:3, :3] = np.diag([2.0, 3, 4])[:, order] * flips
    affine[:3, 3] = 5, -6, 7
    labels = np.random.default_rng(0).integers(0, 4, (4, 4, 4)).astype(np.uint8)
    image = write_nifti(tmp_path / "scan.nii.gz", labels, affine)
    settings = MedicalSettings(depth=4)
    (tmp_path / "masks").mkdir()
    file = write_mask(read_label_map(image, settings, 4), image, settings, tmp_path / "masks")
    assert file.name == "scan.nii.gz"
    written, original = (nibabel.as_closest_canonical(nibabel.load(path)) for path in (file, image))
    np.testing.assert_array_equal(written.affine, original.affine)
    np.testing.assert_array_equal(np.asarray(written.dataobj), np.asarray(original.dataobj))


def test_masks_of_other_kinds_of_images(tmp_path: Path) -> None:
    (tmp_path / "masks").mkdir()
    series = write_series(tmp_path / "series", np.zeros((4, 6, 8), np.int16) + np.arange(8, dtype=np.int16))
    labels = np.zeros((2, 3, 3), np.int64)
    labels[1, 0, 0] = 1
    file = write_mask(labels, series, MedicalSettings(depth=2), tmp_path / "masks")
    written = nibabel.load(file)
    expected = np.zeros((8, 6, 4))  # columns, rows, slices
    expected[:3, :2, 2:] = 1
    np.testing.assert_array_equal(np.asarray(written.dataobj), expected)
    np.testing.assert_array_equal(written.affine @ [0, 0, 0, 1], [10, -20, -7, 1])  # to the right, front and head
    np.testing.assert_array_equal(written.affine @ [1, 1, 1, 1], [9.75, -20.5, -5, 1])
    image = write_dicom(tmp_path / "image.dcm", SQUARE.astype(np.int16), PixelSpacing=[1, 1])
    spaced = MedicalSettings(spacing=(1, 1))
    file = write_mask(np.ones((10, 10), np.int64), image, spaced, tmp_path / "masks")
    assert file.name == "image.png"
    found = np.asarray(Image.open(file))
    assert (found.shape, found.sum()) == ((20, 30), 100)  # what the model did not see is background
    assert found[5:15, 10:20].all()
    flat = write_nifti(tmp_path / "flat.nii", SQUARE)
    file = write_mask(read_label_map(flat, MedicalSettings(), 30), flat, MedicalSettings(), tmp_path / "masks")
    written, original = (nibabel.as_closest_canonical(nibabel.load(path)) for path in (file, flat))
    np.testing.assert_array_equal(np.asarray(written.dataobj)[..., 0], np.asarray(original.dataobj).reshape(20, 30))


# what is wrong


def test_a_missing_or_surplus_mask_is_named(tmp_path: Path) -> None:
    write_pairs(tmp_path, 3)
    (tmp_path / "masks/1.png").rename(tmp_path / "masks/x.png")
    with pytest.raises(UserError, match=r"images/1\.png: has no mask; expected one of that name in .*masks"):
        held(tmp_path)
    (tmp_path / "images/1.png").unlink()
    with pytest.raises(UserError, match=r"masks/x\.png: is the mask of no image in .*images"):
        held(tmp_path)
    (tmp_path / "masks/x.png").unlink()
    (tmp_path / "images/2.png").write_bytes((tmp_path / "images/2.bmp").read_bytes())
    with pytest.raises(UserError, match=r"images/2\.png: has the same name as 2\.bmp; rename one"):
        held(tmp_path)
    for file in (tmp_path / "masks").iterdir():
        file.unlink()
    (tmp_path / "images/2.png").unlink()
    with pytest.raises(UserError, match="masks: holds no image"):
        held(tmp_path)
    (tmp_path / "notes").mkdir()
    with pytest.raises(UserError, match=r"expected only 'images' and 'masks', not \['notes'\]"):
        held(tmp_path)


def test_masks_that_do_not_fit_are_named(tmp_path: Path) -> None:
    write_pairs(tmp_path, 2)
    mask = tmp_path / "masks/0.png"
    Image.fromarray(SQUARE.T.copy()).save(mask)
    with pytest.raises(UserError, match=r"0\.png: is 30×20 pixels large, but its image 0\.bmp is 20×30"):
        held(tmp_path)
    Image.fromarray(SQUARE).convert("RGB").save(mask)
    with pytest.raises(UserError, match=r"0\.png: holds colours"):
        held(tmp_path)
    Image.fromarray(SQUARE.astype(np.uint16) * 300).save(mask)
    with pytest.raises(UserError, match=r"masks: label 300 of a pixel; expected 0 \(background\) to 255"):
        held(tmp_path)
    mask.rename(tmp_path / "masks/0.jpg")
    with pytest.raises(UserError, match=r"0\.jpg: a picture of labels is saved as PNG"):
        held(tmp_path)
    (tmp_path / "masks/0.jpg").unlink()
    write_nifti(tmp_path / "masks/0.nii", SQUARE)
    with pytest.raises(UserError, match=r"0\.nii: may lie otherwise than its image 0\.bmp; save it as PNG"):
        held(tmp_path)


def test_a_task_that_the_layout_is_not_for(tmp_path: Path) -> None:
    write_pairs(tmp_path / "masked", 5)
    with pytest.raises(UserError, match=r"task = 'regression': but .* holds images/… and masks/…, which is for segm"):
        load_dataset(Experiment(dataset=str(tmp_path / "masked"), task="regression"))
    (tmp_path / "masked/masks").rename(tmp_path / "masked/other")
    with pytest.raises(UserError, match=r"task = 'segmentation': but .* holds <class>/…, which is for classification"):
        load_dataset(Experiment(dataset=str(tmp_path / "masked"), task="segmentation"))
