"""The user's own images in folders: by class, by part and class, by client."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import orchard
from helpers import some_images
from orchard.data.datasets import load_dataset
from orchard.data.division import federated_data
from orchard.errors import UserError
from orchard.experiment import Experiment, load_experiment


def write_images(folder: Path, count: int, mode: str = "L", size: tuple[int, int] = (40, 30)) -> None:
    folder.mkdir(parents=True)
    for k in range(count):
        pixels = some_images(1, size[1], size[0], 3)[0]
        Image.fromarray(pixels).convert(mode).save(folder / f"{k:03d}.png")
    (folder / ".hidden").write_text("not an image")
    (folder / "notes.txt").write_text("not an image either")


def test_a_folder_by_class(tmp_path: Path) -> None:
    for name, count in (("cat", 10), ("dog", 15)):
        write_images(tmp_path / name, count)
    dataset = load_dataset(Experiment(dataset=str(tmp_path), size=24))
    assert dataset.task.classes == ("cat", "dog")
    assert dataset.train.x.shape == (20, 1, 24, 24)
    assert torch.bincount(dataset.test.y).tolist() == [2, 3]


def test_a_folder_by_part_and_class_with_some_colour(tmp_path: Path) -> None:
    write_images(tmp_path / "train/cat", 6)
    write_images(tmp_path / "train/dog", 7, mode="RGB")
    write_images(tmp_path / "test/dog", 3)
    dataset = load_dataset(Experiment(dataset=str(tmp_path)))
    assert dataset.train.x.shape == (13, 3, 28, 28)
    assert dataset.test.y.tolist() == [1, 1, 1]
    assert dataset.test.x.shape == (3, 3, 28, 28)  # grey, but alike to the others
    write_images(tmp_path / "val/cat", 4)
    assert len(load_dataset(Experiment(dataset=str(tmp_path))).train.y) == 17
    write_images(tmp_path / "more/cat", 4)
    with pytest.raises(UserError, match=r"expected only 'train', 'val' and 'test', not \['more'\]"):
        load_dataset(Experiment(dataset=str(tmp_path)))


def test_deep_grey_images_keep_their_shades(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 28 * 28).reshape(28, 28).astype(np.uint16)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for k in range(5):
            Image.fromarray(ramp).save(tmp_path / name / f"{k}.{'png' if k % 2 else 'tif'}")
    dataset = load_dataset(Experiment(dataset=str(tmp_path)))
    assert dataset.train.x.shape[1:] == (1, 28, 28)
    torch.testing.assert_close(dataset.train.x[0, 0], torch.from_numpy(ramp / 65535 * 2 - 1).float(), atol=0.01, rtol=0)
    Image.fromarray(ramp.astype(np.float32)).save(tmp_path / "a/deep.tif")
    with pytest.raises(UserError, match=r"deep\.tif: has pixels of 'F' without a known range"):
        load_dataset(Experiment(dataset=str(tmp_path)))


def test_palettes_of_shades_are_grey_and_of_colours_are_not(tmp_path: Path) -> None:
    ramp = np.repeat(np.arange(28, dtype=np.uint8)[None] * 9, 28, axis=0)
    shades = Image.fromarray(ramp).convert("P")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for k in range(5):
            shades.save(tmp_path / name / f"{k}.{'png' if k % 2 else 'gif'}")
    dataset = load_dataset(Experiment(dataset=str(tmp_path)))
    assert dataset.train.x.shape[1:] == (1, 28, 28)
    torch.testing.assert_close(dataset.train.x[0, 0], torch.from_numpy(ramp / 255 * 2 - 1).float())
    shades.putpalette([255, 0, 0] * 256)
    shades.save(tmp_path / "a/red.png")
    assert load_dataset(Experiment(dataset=str(tmp_path))).train.x.shape[1:] == (3, 28, 28)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("car", "plane", "train"):
        write_images(tmp_path / name, 5)
    assert load_dataset(Experiment(dataset=str(tmp_path))).task.classes == ("car", "plane", "train")


def test_a_folder_beside_does_not_hide_a_known_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    assert len(load_dataset(Experiment(dataset="digits")).task.classes) == 10


def test_one_folder_per_client_needs_no_partition(tmp_path: Path) -> None:
    for client, counts in (("north", (20, 10)), ("south", (8, 30)), ("west", (40, 5))):
        for name, count in zip(("benign", "malignant"), counts, strict=True):
            write_images(tmp_path / client / name, count)
    experiment = Experiment(dataset=str(tmp_path), rounds=2, epochs=1, batch_size=16)
    assert (experiment.clients, experiment.partition.name) == (3, "given")
    data = federated_data(experiment)
    assert [client.name for client in data.clients] == ["north", "south", "west"]
    assert data.task.classes == ("benign", "malignant")
    whole = np.sum([part for part in data.class_counts().values()], axis=0)  # noqa: C416
    assert whole.tolist() == [[20, 10], [8, 30], [40, 5]]
    assert orchard.run(experiment).clients[2].name == "west"
    with pytest.raises(UserError, match="the data come client by client; use 'given'"):
        federated_data(Experiment(dataset=str(tmp_path), partition={"name": "practical"}))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"clients = 4: but .* holds the folders of 3 clients"):
        federated_data(Experiment(dataset=str(tmp_path), clients=4))
    with pytest.raises(UserError, match="the data do not come client by client"):
        federated_data(load_experiment(assignments=["partition=given"]))


def test_a_client_with_too_little_is_named(tmp_path: Path) -> None:
    write_images(tmp_path / "north/benign", 20)
    write_images(tmp_path / "south/benign", 3)
    with pytest.raises(UserError, match="leaves south without a test sample"):
        federated_data(Experiment(dataset=str(tmp_path)))


def test_bad_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no folders"):
        load_dataset(Experiment(dataset=str(tmp_path)))
    write_images(tmp_path / "cat", 3)
    (tmp_path / "dog").mkdir()
    with pytest.raises(UserError, match=r"dog: holds no image"):
        load_dataset(Experiment(dataset=str(tmp_path)))
    (tmp_path / "dog/0.png").write_bytes((tmp_path / "cat/000.png").read_bytes()[:200])
    with pytest.raises(UserError, match=r"0\.png: cannot be read as an image"):
        load_dataset(Experiment(dataset=str(tmp_path)))
    write_images(tmp_path / "fox/young", 1)
    with pytest.raises(UserError, match="mixes layouts: cat holds images, fox holds folders"):
        Experiment(dataset=str(tmp_path))
