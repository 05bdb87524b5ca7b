"""Published data: files in the official formats, and the real ones where they are there."""

import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import orchard
from helpers import REAL_DATA, some_images
from orchard.data.datasets import load_dataset
from orchard.data.readers import read_cifar10
from orchard.errors import UserError
from orchard.experiment import Experiment, load_experiment

CIFAR_AS_JPEG = REAL_DATA / "cifar10-jpeg.tar.xz"


def cifar_archive(path: Path, batches: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in batches.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, BytesIO(content))
    return path


def cifar_batches(records: int = 2) -> dict[str, bytes]:
    names = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
    return {
        f"cifar-10-batches-bin/{name}.bin": b"".join(
            bytes([k]) + some_images(1, 3072).tobytes() for k in range(records)
        )
        for name in names
    }


def test_cifars_archive_is_read_exactly(tmp_path: Path) -> None:
    batches = cifar_batches()
    train, test = read_cifar10(cifar_archive(tmp_path / "c.tar.gz", batches))
    assert train.labels.tolist() == [0, 1] * 5
    raw = np.frombuffer(batches["cifar-10-batches-bin/test_batch.bin"], np.uint8)
    assert test.images.shape == (2, 32, 32, 3)
    assert test.images[0, 3, 5, 2] == raw[1 + 2 * 1024 + 3 * 32 + 5]  # channel by channel, row by row


@pytest.mark.filterwarnings("ignore:.*is not the published file")
def test_a_bad_label_of_cifar_names_its_batch_and_row(tmp_path: Path) -> None:
    batches = cifar_batches(records=3)
    name = "cifar-10-batches-bin/data_batch_4.bin"
    content = bytearray(batches[name])
    content[2 * 3073] = 99
    cifar_archive(tmp_path / "cifar-10-binary.tar.gz", {**batches, name: bytes(content)})
    with pytest.raises(
        UserError, match=rf"cifar-10-binary\.tar\.gz: {name}: row 2: label 99, but there are 10 classes"
    ):
        load_dataset(Experiment(dataset="cifar10"), tmp_path)


def test_a_bad_archive_is_refused_and_nothing_is_extracted(tmp_path: Path) -> None:
    good = cifar_batches()
    whole = cifar_archive(tmp_path / "c.tar.gz", good).read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[:-5000])
    with pytest.raises(UserError, match=r"cut\.tar\.gz: is damaged"):
        read_cifar10(tmp_path / "cut.tar.gz")
    name = "cifar-10-batches-bin/test_batch.bin"
    with pytest.raises(UserError, match=f"has no member {name}"):
        read_cifar10(cifar_archive(tmp_path / "a.tar.gz", {k: v for k, v in good.items() if k != name}))
    with pytest.raises(UserError, match="its 3 bytes are not a multiple of 3073"):
        read_cifar10(cifar_archive(tmp_path / "b.tar.gz", {**good, name: b"abc"}))
    evil = cifar_archive(tmp_path / "e.tar.gz", {"../../evil.txt": b"boo", **good})
    with pytest.raises(UserError, match=r"e\.tar\.gz: its member '../../evil\.txt' points outside the archive"):
        read_cifar10(evil)
    assert not (tmp_path.parent.parent / "evil.txt").exists()
    assert not (tmp_path.parent / "evil.txt").exists()


needs_real = pytest.mark.skipif(not (REAL_DATA / "bloodmnist.npz").exists(), reason="real data are not there")


@needs_real
@pytest.mark.parametrize(("name", "channels", "total"), [("bloodmnist", 3, 17_092), ("tissuemnist", 1, 58_850)])
@pytest.mark.filterwarnings("ignore:.*is not the published file")
def test_real_medmnist(name: str, channels: int, total: int) -> None:
    merged = load_dataset(Experiment(dataset=name), REAL_DATA)
    assert len(merged.train.y) + len(merged.test.y) == total
    assert merged.train.x.shape[1:] == (channels, 28, 28)
    assert len(merged.test.y) / total == pytest.approx(0.2, abs=0.001)
    official = load_dataset(Experiment(dataset=name, split="official"), REAL_DATA)
    assert len(official.test.y) != len(merged.test.y)
    assert len(official.train.y) + len(official.test.y) == total


@pytest.mark.filterwarnings("ignore:.*is not the published file")
def test_a_medmnist_size_is_read_from_its_own_file_and_others_are_resized(tmp_path: Path) -> None:
    for file, side in (("breastmnist.npz", 28), ("breastmnist_64.npz", 64)):
        arrays: dict[str, NDArray[Any]] = {}
        for part in ("train", "val", "test"):
            arrays[f"{part}_images"], arrays[f"{part}_labels"] = some_images(10, side, side), np.arange(10)[:, None] % 2
        np.savez(tmp_path / file, **arrays)  # type: ignore[arg-type]
    for size in (28, 64, 32):
        dataset = load_dataset(Experiment(dataset="breastmnist", size=size), tmp_path)
        assert dataset.train.x.shape == (24, 1, size, size)
        assert dataset.task.classes == ("malignant", "normal or benign")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"val_images": np.zeros((10, 28, 28))}, "val_images: expected grey images of unsigned bytes, got float64"),
        ({"test_images": some_images(10, 28, 28, 3)}, "test_images: expected grey images of unsigned bytes, got uint8"),
        ({"test_images": some_images(10, 784)}, "test_images: expected grey images"),
        ({"test_images": some_images(0, 28, 28)}, "test_images: expected grey images"),
        ({"train_labels": np.full((10, 1), 2)}, "train_labels: row 0: label 2, but there are 2 classes from 0"),
        ({"train_labels": np.zeros((9, 1), int)}, "train_images: 10 samples but 9 labels in"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*is not the published file")
def test_published_files_must_hold_what_the_catalogue_says(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    arrays: dict[str, NDArray[Any]] = {}
    for part in ("train", "val", "test"):
        arrays[f"{part}_images"], arrays[f"{part}_labels"] = some_images(10, 28, 28), np.arange(10)[:, None] % 2
    np.savez(tmp_path / "breastmnist.npz", **(arrays | changes))
    with pytest.raises(UserError, match=rf"breastmnist\.npz: {message}"):
        load_dataset(Experiment(dataset="breastmnist"), tmp_path)


@pytest.mark.slow
@needs_real
@pytest.mark.parametrize("partition", ["pathological", "practical"])
@pytest.mark.parametrize("name", ["mnist", "bloodmnist", "tissuemnist", "pathmnist-1000.npz"])
@pytest.mark.filterwarnings("ignore:.*is not the published file")
def test_real_data_train_two_rounds(name: str, partition: str) -> None:
    dataset = str(REAL_DATA / name) if name.endswith(".npz") else name
    clients = 3 if name.endswith(".npz") else 12
    settings = [
        f"dataset={dataset}",
        f"partition={partition}",
        f"clients={clients}",
        "rounds=2",
        "epochs=1",
        "method=fedavg-local",
    ]
    overrides = {"fraction": 1.0 if clients == 3 else 0.2}
    experiment = load_experiment(overrides=overrides, assignments=settings)
    first, second = orchard.run(experiment, data_dir=REAL_DATA).rounds
    assert np.mean(np.array(second.loss, dtype=float)) < np.mean(np.array(first.loss, dtype=float))


@pytest.mark.slow
@pytest.mark.skipif(not CIFAR_AS_JPEG.exists(), reason="CIFAR-10 as JPEG files is not there; set ORCHARD_DATA")
def test_cifar_in_folders_trains_two_rounds(tmp_path: Path) -> None:
    with tarfile.open(CIFAR_AS_JPEG) as archive:
        some = [member for member in archive if member.isdir() or member.name.endswith(("0.jpg", "5.jpg"))]
        archive.extractall(tmp_path, some, filter="data")  # a fifth: tens of thousands of files take minutes
    for partition in ("pathological", "practical"):
        settings = [f"dataset={tmp_path}", f"partition={partition}", "rounds=2", "epochs=1", "batch_size=32"]
        result = orchard.run(load_experiment(assignments=[*settings, "method=fedavg-local"]))
        assert result.distribution.shape == [3, 28, 28]
        assert len(result.distribution.classes) == 10
        assert "airplane" in result.distribution.classes
        first, second = result.rounds
        assert np.mean(np.array(second.loss, dtype=float)) < np.mean(np.array(first.loss, dtype=float))
