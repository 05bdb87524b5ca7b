"""Data are prepared exactly, or refused with a message that names the file or the client."""

import dataclasses
import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from helpers import REAL_DATA, needs_mnist, small_arrays, small_experiment
from orchard.data.client_arrays import ClientArrays, from_arrays
from orchard.data.datasets import load_dataset
from orchard.data.division import divide
from orchard.data.readers import read_idx
from orchard.data.samples import as_samples, image_inputs
from orchard.errors import UserError
from orchard.experiment import Experiment, load_experiment
from orchard.tasks.classification import Classification


def test_digits_are_28_by_28_and_split_by_class() -> None:
    digits = load_dataset(Experiment())
    assert digits.train.x.shape == (1442, 1, 28, 28)
    assert digits.test.x.shape == (355, 1, 28, 28)
    assert digits.train.x.min() >= -1
    assert digits.train.x.max() <= 1
    per_class = torch.bincount(digits.test.y)
    assert per_class.min() >= 34
    assert per_class.max() <= 36


def test_validation_is_drawn_from_all_that_a_client_holds() -> None:
    experiment = load_experiment(overrides={"partition": "iid", "clients": 4})
    for client in divide(load_dataset(experiment), experiment).clients:
        assert len(client.train.y) == int(0.85 * (len(client.train.y) + len(client.validation.y)))
        assert len(set(client.validation.y.tolist())) >= 9


def test_scaling_is_to_minus_one_and_one() -> None:
    grey = image_inputs(np.array([[[0, 255], [51, 102]]], dtype=np.uint8), size=2)
    assert grey.tolist() == pytest.approx(np.array([[[[-1.0, 1.0], [-0.6, -0.2]]]]))
    colour = image_inputs(np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3), size=2)
    assert colour.shape == (1, 3, 2, 2)
    assert colour[0, 2, 1, 0] == pytest.approx(8 / 255 * 2 - 1)


@pytest.mark.parametrize("side", [20, 32, 64, 256])
def test_resizing_does_not_leave_that_range(side: int) -> None:
    ends = np.stack([np.full((side, side), value, np.uint8) for value in (0, 255)])
    x = image_inputs(ends, size=28)
    assert x.min() >= -1
    assert x.max() <= 1
    assert (x.min().item(), x.max().item()) == pytest.approx((-1, 1))


def test_shrinking_averages_all_pixels() -> None:
    chessboard = (np.indices((1, 56, 56)).sum(axis=0) % 2 * 255).astype(np.uint8)
    shrunk = image_inputs(chessboard, size=7)
    assert shrunk.shape == (1, 1, 7, 7)
    assert shrunk.abs().max() < 0.1  # grey: no pixel is left out


@pytest.mark.parametrize(
    ("shape", "becomes"),
    [
        ((6,), (6,)),
        ((8, 9), (1, 8, 9)),
        ((8, 9, 1), (1, 8, 9)),
        ((8, 9, 3), (3, 8, 9)),
        ((8, 9, 4), (4, 8, 9)),
        ((3, 8, 9), (3, 8, 9)),
        ((2, 8, 9), (2, 8, 9)),
        ((8, 9, 2), (2, 8, 9)),
        ((1, 2, 2, 2, 2), (1, 2, 2, 2, 2)),
        ((1, 8, 8, 8), (1, 8, 8, 8)),
    ],
)
def test_floats_get_their_channels_in_front_and_keep_their_values(
    shape: tuple[int, ...], becomes: tuple[int, ...]
) -> None:
    x = np.random.default_rng(0).normal(size=(5, *shape)).astype(np.float32)
    samples = as_samples(x, np.zeros(5, int), 28, Classification, "here")
    assert samples.x.shape == (5, *becomes)
    moved = len(shape) == 3 and becomes != shape
    np.testing.assert_array_equal(samples.x.movedim(1, -1).numpy() if moved else samples.x.numpy().reshape(x.shape), x)


@pytest.mark.parametrize(("shape", "channels"), [((20, 9), 1), ((20, 9, 3), 3), ((3, 20, 9), 3)])
def test_bytes_of_clients_are_images_of_the_size_that_is_set(shape: tuple[int, ...], channels: int) -> None:
    x_train, x_test = np.full((20, *shape), 51, np.uint8), np.zeros((4, *shape), np.uint8)
    arrays = [ClientArrays(x_train, np.arange(20) % 2, x_test, np.ones(4, int))]
    data = from_arrays(arrays, small_experiment(clients=1, size=14))
    assert data.shape == (channels, 14, 14)
    torch.testing.assert_close(data.clients[0].train.x, torch.full((17, channels, 14, 14), -0.6))


def test_a_divided_dataset_is_cut_exactly_and_shared() -> None:
    experiment = Experiment(fraction=0.9)
    dataset = load_dataset(experiment)
    data = divide(dataset, experiment)
    counts = data.class_counts()
    assert data.matrix is not None
    kept = (torch.bincount(dataset.train.y).numpy() * 0.9).astype(int)
    for i, client in enumerate(data.clients):
        mine = np.array([int(share * n) for share, n in zip(data.matrix[:, i], kept, strict=True)])
        assert (np.add(counts["train"][i], counts["validation"][i]) == mine).all()
        assert len(client.train.y) == int(0.85 * mine.sum())
        tests = [int(share * n) for share, n in zip(data.matrix[:, i], torch.bincount(dataset.test.y), strict=True)]
        assert counts["test"][i] == tests
    storages = {client.train.x.untyped_storage().data_ptr() for client in data.clients}
    assert len(storages) == 1
    pixels = torch.cat([part.x for c in data.clients for part in (c.train, c.validation)]).flatten(1)
    assert len(torch.unique(pixels, dim=0)) >= len(pixels) - 2  # the dataset itself repeats an image or so


def test_dividing_does_not_depend_on_the_training_seed() -> None:
    first, second = (divide(load_dataset(e), e) for e in (Experiment(seed=1), Experiment(seed=2)))
    assert torch.equal(first.clients[3].train.x, second.clients[3].train.x)


def test_a_client_without_data_is_refused_by_name() -> None:
    experiment = load_experiment(assignments=["clients=12", "partition=practical"])
    with pytest.raises(UserError, match=r"partition: leaves client \d+ without a test sample"):
        divide(load_dataset(experiment), experiment)


def test_an_unknown_dataset_is_refused() -> None:
    with pytest.raises(UserError, match="dataset = 'minst': no such path, nor a known dataset; did you mean 'mnist'"):
        load_dataset(Experiment(dataset="minst"))


def idx(array: NDArray[np.uint8], magic: int = 0x08) -> bytes:
    header = bytes((0, 0, magic, array.ndim)) + b"".join(struct.pack(">I", n) for n in array.shape)
    return gzip.compress(header + array.tobytes())


def test_idx_files_are_read_exactly(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(256, size=(5, 4, 3)).astype(np.uint8)
    path = tmp_path / "images.gz"
    path.write_bytes(idx(images))
    np.testing.assert_array_equal(read_idx(path, dimensions=3), images)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello", "is damaged or not gzip"),
        (idx(np.zeros((5, 4, 3), np.uint8))[:-12], "is damaged or not gzip"),
        (gzip.compress(b"\0\0\x08\x03" + b"\0" * 4), "is not an idx file of bytes in 3 dimensions"),
        (idx(np.zeros((5, 4), np.uint8)), "is not an idx file of bytes in 3 dimensions"),
        (idx(np.zeros((5, 4, 3), np.uint8), magic=0x0D), "is not an idx file of bytes in 3 dimensions"),
        (
            gzip.compress(gzip.decompress(idx(np.zeros((5, 4, 3), np.uint8)))[:-7]),
            "announces 60 bytes of data but holds 53",
        ),
    ],
    ids=["not gzip", "cut off", "no header", "two dimensions", "not bytes", "too short"],
)
def test_a_damaged_idx_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"images\.gz: ") as refusal:
        read_idx(path, dimensions=3)
    assert message in str(refusal.value)


def write_mnist(folder: Path, labels: list[int], images: int) -> None:
    (folder / "mnist").mkdir()
    for part in ("train", "t10k"):
        pixels = np.zeros((images, 28, 28), np.uint8)
        (folder / "mnist" / f"{part}-images-idx3-ubyte.gz").write_bytes(idx(pixels))
        (folder / "mnist" / f"{part}-labels-idx1-ubyte.gz").write_bytes(idx(np.array(labels, np.uint8)))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            [1, 2],
            r"mnist/train-images-idx3-ubyte\.gz: 3 samples but 2 labels in .*mnist/train-labels-idx1-ubyte\.gz",
        ),
        ([1, 2, 10], r"mnist/train-labels-idx1-ubyte\.gz: row 2: label 10, but there are 10 classes from 0"),
    ],
)
def test_mnist_files_that_contradict_are_refused(tmp_path: Path, labels: list[int], message: str) -> None:
    write_mnist(tmp_path, labels, images=3)
    with pytest.raises(UserError, match=message), pytest.warns(UserWarning, match="is not the published file"):
        load_dataset(Experiment(dataset="mnist"), tmp_path)


@needs_mnist
def test_real_mnist() -> None:
    experiment = Experiment(dataset="mnist")
    mnist = load_dataset(experiment, REAL_DATA)
    assert mnist.train.x.shape == (60_000, 1, 28, 28)
    assert mnist.test.y[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    data = divide(mnist, experiment)
    assert sum(len(c.train.y) + len(c.validation.y) for c in data.clients) > 60_000 - 10 * 12


def test_arrays_are_taken_client_by_client() -> None:
    experiment = small_experiment()
    arrays = small_arrays()
    data = from_arrays(arrays, experiment)
    assert [len(c.train.y) for c in data.clients] == [int(0.85 * len(a.y_train)) for a in arrays]
    assert data.shape == (6,)
    assert data.task.classes == ("0", "1", "2")
    x, y = arrays[0].x_test, arrays[0].y_test
    given = dataclasses.replace(arrays[0], x_validation=x, y_validation=y, name="north")
    north = from_arrays([given, *arrays[1:]], experiment).clients[0]
    assert north.name == "north"
    assert torch.equal(north.validation.x, torch.from_numpy(x))
    assert len(north.train.y) == len(arrays[0].y_train)


def broken(**changes: NDArray[Any]) -> ClientArrays:
    good = small_arrays()[0]
    return ClientArrays(**{**vars(good), **changes})


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (broken(y_train=np.zeros(3, int)), "client 0: train: 20 samples but 3 labels"),
        (broken(y_test=np.full(12, -1)), "client 0: test: row 0: label -1 is below 0"),
        (broken(y_train=np.zeros(20)), "y_train: holds whole numbers stored as floats"),
        (broken(x_train=np.full((20, 6), np.nan)), "client 0: train: row 0: holds a value that is not finite"),
        (broken(x_train=np.zeros((20, 6), object)), "expected images of unsigned bytes or floats, got object"),
        (broken(x_train=np.zeros((20, 5))), "samples differ in shape: [(5,), (6,)]"),
        (
            broken(x_test=np.zeros((0, 6)), y_test=np.zeros(0, int)),
            "client 0: test: expected samples and targets, got arrays of shape (0, 6)",
        ),
    ],
)
def test_bad_arrays_are_refused(arrays: ClientArrays, message: str) -> None:
    with pytest.raises(UserError) as refusal:
        from_arrays([arrays, *small_arrays()[1:]], small_experiment())
    assert message in str(refusal.value)


def test_the_number_of_clients_must_agree() -> None:
    with pytest.raises(UserError, match="clients = 4: but data of 3 clients were given"):
        from_arrays(small_arrays(3), small_experiment())
