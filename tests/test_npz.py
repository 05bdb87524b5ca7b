"""The user's own data in an .npz, with or without a column of owners."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from helpers import DRAW, some_images
from orchard.data.datasets import load_dataset
from orchard.data.division import federated_data
from orchard.errors import UserError
from orchard.experiment import Experiment, load_experiment
from orchard.runs.folder import new_folder


def write_npz(path: Path, **changes: NDArray[Any] | None) -> str:
    arrays = {
        "x_train": some_images(60, 28, 28),
        "y_train": np.arange(60) % 3,
        "x_test": some_images(30, 28, 28),
        "y_test": np.arange(30) % 3,
    }
    kept = {name: array for name, array in (arrays | changes).items() if array is not None}
    np.savez(path, **kept)  # type: ignore[arg-type]
    return str(path)


def test_an_npz_of_ones_own(tmp_path: Path) -> None:
    dataset = load_dataset(Experiment(dataset=write_npz(tmp_path / "my.npz")))
    assert dataset.train.x.shape == (60, 1, 28, 28)
    assert dataset.task.classes == ("0", "1", "2")
    (tmp_path / "my.npz").rename(tmp_path / "MY.NPZ")
    assert load_dataset(Experiment(dataset=str(tmp_path / "MY.NPZ"))).test.x.shape == (30, 1, 28, 28)
    untested = load_dataset(Experiment(dataset=write_npz(tmp_path / "b.npz", x_test=None, y_test=None)))
    assert (len(untested.train.y), len(untested.test.y)) == (48, 12)


def test_byte_images_in_an_npz_have_the_size_that_is_set(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "my.npz", x_train=some_images(60, 40, 30), x_test=some_images(30, 16, 16))
    dataset = load_dataset(Experiment(dataset=path, size=20))
    assert dataset.train.x.shape == (60, 1, 20, 20)
    assert dataset.test.x.shape == (30, 1, 20, 20)


@pytest.mark.parametrize("name", ["photo.png", "data.csv"])
def test_another_kind_of_file_is_refused_with_what_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"something")
    with pytest.raises(UserError, match=rf"{name}': is neither an \.npz file nor a folder of images"):
        load_dataset(Experiment(dataset=str(tmp_path / name)))


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + ".npz", "folder/" + "x" * 5000])
def test_an_absurdly_long_name_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"dataset = '.{59}…': cannot be opened: File name too long"):
        Experiment(dataset=name)


def test_a_path_that_is_not_text_is_refused() -> None:
    with pytest.raises(UserError, match=r"dataset = 'north\\udcff': a path that is not UTF-8"):
        Experiment(dataset="north\udcff")


def test_medmnist_keys_are_understood(tmp_path: Path) -> None:
    arrays: dict[str, NDArray[Any]] = {}
    for part, n in (("train", 30), ("val", 10), ("test", 20)):
        arrays[f"{part}_images"], arrays[f"{part}_labels"] = some_images(n, 28, 28, 3), (np.arange(n) % 4)[:, None]
    np.savez(tmp_path / "med.npz", **arrays)  # type: ignore[arg-type]
    dataset = load_dataset(Experiment(dataset=str(tmp_path / "med.npz")))
    assert dataset.train.x.shape == (40, 3, 28, 28)
    assert dataset.test.y.tolist() == [0, 1, 2, 3] * 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": np.arange(59) % 3}, "x_train: 60 samples but 59 labels in"),
        (
            {"y_train": np.array(["a"] * 60), "y_test": np.array(["a"] * 30)},
            "labels must be one whole number each, not <U1",
        ),
        ({"y_train": np.stack([np.arange(60)] * 2, 1)}, "targets differ in shape: [(), (2,)]"),
        ({"y_test": np.arange(30) - 7}, "y_test: row 0: label -7 is below 0"),
        ({"x_test": np.full((30, 28, 28), np.nan)}, "test: row 0: holds a value that is not finite"),
        ({"x_train": np.array([None] * 60)}, "'x_train' is an array of Python objects, which are never loaded"),
        ({"x_train": np.zeros((0, 28, 28), np.uint8), "y_train": np.zeros(0, int)}, "expected samples and targets"),
        ({"y_train": np.full(60, 3_000_000)}, "train: row 0: label 3000000 is above 9999, the largest allowed"),
        ({"x_val": some_images(3, 9, 9, 3), "y_val": np.arange(3)}, "its parts differ in the shape of samples"),
        ({"x_train": None, "y_train": None}, "expected 'x' and 'y', 'x_train' and 'y_train', or MedMNIST's keys"),
        ({"y_test": None}, "has 'x_test' but no 'y_test'"),
        ({"x_test": np.zeros((30, 9, 9))}, "its parts differ in the shape of samples: [(1, 9, 9), (1, 28, 28)]"),
        (
            {"x_train": some_images(60, 28, 28, 5)},
            "x_train: the shape (60, 28, 28, 5) can be read in several ways",
        ),
        ({"x_train": np.full((60, 5), 1e300)}, "x_train: row 0: holds a value that is not finite"),
        ({"x_train": np.zeros((60, 28, 28), "U3")}, "expected images of unsigned bytes or floats, got <U3"),
    ],
)
def test_a_bad_npz_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write_npz(tmp_path / "bad.npz", **changes)
    with pytest.raises(UserError, match=r"bad\.npz: ") as refusal:
        load_dataset(Experiment(dataset=path))
    assert message in str(refusal.value)


def test_a_damaged_or_missing_npz_is_refused(tmp_path: Path) -> None:
    path = Path(write_npz(tmp_path / "cut.npz"))
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(UserError, match=r"cut\.npz: is damaged or not an \.npz"):
        load_dataset(Experiment(dataset=str(path)))
    with pytest.raises(UserError, match=r"none\.npz: no such file"):
        load_dataset(Experiment(dataset=str(tmp_path / "none.npz")))


def test_a_column_says_whose_a_sample_is(tmp_path: Path) -> None:
    train, test = np.array(["north", "south", "west"] * 20), np.array(["west", "south", "north"] * 10)
    path = write_npz(tmp_path / "owned.npz", hospital_train=train, hospital_test=test)
    settings = [f"dataset={path}", "partition=column", "partition.key=hospital", "clients=3"]
    data = federated_data(load_experiment(assignments=settings))
    assert [client.name for client in data.clients] == ["north", "south", "west"]
    assert [len(client.train.y) + len(client.validation.y) for client in data.clients] == [20, 20, 20]
    assert data.clients[2].test.y.tolist() == [0] * 10  # west's are rows 0, 3, 6 … of the test data
    with pytest.raises(
        UserError, match=r"clients = 4: but .*owned\.npz names 3 owners \(north, south, west\); set clients"
    ):
        federated_data(load_experiment(assignments=[*settings, "clients=4"]))


def by_column(path: str, key: str = "hospital", clients: int = 2) -> Experiment:
    settings = [f"dataset={path}", f"partition={{name='column', key='{key}'}}", f"clients={clients}"]
    return load_experiment(assignments=settings)


def marked(owners: NDArray[Any]) -> NDArray[np.float32]:
    """Samples that carry their owner's number, so that they can be told apart after the division."""
    return np.repeat(owners.astype(np.float32)[:, None], 3, axis=1)


def whose(experiment: Experiment) -> dict[str, tuple[set[float], int]]:
    """What the samples of each client carry, and how many samples it has."""
    found = {}
    for client in federated_data(experiment).clients:
        x = torch.cat([client.train.x, client.validation.x, client.test.x])
        found[client.name] = (set(x.flatten().tolist()), len(x))
    return found


@pytest.mark.parametrize("key", ["hospital", "year", "x_ray_unit"])
@pytest.mark.parametrize("name", ["{key}_{part}", "{part}_{key}"])
@pytest.mark.parametrize("parts", [("train",), ("train", "test"), ("train", "val"), ("train", "val", "test")])
def test_a_column_goes_with_its_samples(tmp_path: Path, key: str, name: str, parts: tuple[str, ...]) -> None:
    arrays: dict[str, NDArray[Any]] = {}
    for part in parts:
        owners = DRAW.permutation([7, 11] * 40)
        arrays |= {f"x_{part}": marked(owners), f"y_{part}": np.arange(80) % 4}
        arrays[name.format(key=key, part=part)] = owners
    np.savez(tmp_path / "owned.npz", **arrays)  # type: ignore[arg-type]
    held = whose(by_column(str(tmp_path / "owned.npz"), key))
    assert held == {"7": ({7.0}, 40 * len(parts)), "11": ({11.0}, 40 * len(parts))}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, r"partition\.key = 'hospital': has no 'hospital_train'; apart from samples and labels it holds: nothing"),
        ({"ward_train": np.arange(60)}, r"has no 'hospital_train'; apart from samples and labels it holds: ward_train"),
        ({"hospital_train": np.arange(60) % 2}, "has no 'hospital_test'; apart from samples and labels it holds"),
        (
            {"hospital_train": np.arange(60) % 2, "hospital_test": np.array(["0", "1"] * 15)},
            "partition.key = 'hospital': owners differ in type: int64 for train, <U1 for test",
        ),
        (
            {"hospital_train": np.arange(60) % 2, "hospital_test": np.zeros(29, int)},
            "hospital_test: names 29 owners, but x_test holds 30 samples",
        ),
        (
            {"hospital_train": np.arange(60) / 2, "hospital_test": np.zeros(30)},
            "hospital_train: owners are text or whole numbers, not float64",
        ),
        (
            {
                "x_val": some_images(3, 28, 28),
                "y_val": np.arange(3),
                "hospital_train": np.arange(60) % 2,
                "hospital_test": np.arange(30) % 2,
            },
            "has no 'hospital_val'; apart from samples and labels it holds: hospital_test, hospital_train",
        ),
    ],
)
def test_a_bad_column_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write_npz(tmp_path / "owned.npz", **changes)
    with pytest.raises(UserError, match=rf"owned\.npz: .*{message}"):
        federated_data(by_column(path))


def test_x_and_y_are_split_within_every_class(tmp_path: Path) -> None:
    np.savez(tmp_path / "my.npz", x=np.arange(40.0)[:, None], y=np.arange(40) % 4)
    dataset = load_dataset(Experiment(dataset=str(tmp_path / "my.npz")))
    assert torch.bincount(dataset.train.y).tolist() == [8] * 4
    assert torch.bincount(dataset.test.y).tolist() == [2] * 4
    assert sorted(torch.cat([dataset.train.x, dataset.test.x]).flatten().tolist()) == list(range(40))


@pytest.mark.parametrize("name", ["hospital", "hospital_train"])
def test_x_and_y_have_one_column_of_owners(tmp_path: Path, name: str) -> None:
    owners = DRAW.permutation([7, 11] * 40)
    np.savez(tmp_path / "owned.npz", x=marked(owners), y=np.arange(80) % 4, **{name: owners})  # type: ignore[arg-type]
    assert whose(by_column(str(tmp_path / "owned.npz"))) == {"7": ({7.0}, 40), "11": ({11.0}, 40)}


def test_a_missing_column_beside_x_and_y_is_named_as_it_would_be_called(tmp_path: Path) -> None:
    np.savez(tmp_path / "owned.npz", x=np.zeros((9, 2)), y=np.arange(9) % 3)
    with pytest.raises(UserError, match="has no 'hospital'; apart from samples and labels it holds: nothing"):
        federated_data(by_column(str(tmp_path / "owned.npz")))


def test_owners_tell_the_number_of_clients(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "owned.npz", ward_train=np.arange(60) % 5, ward_test=np.arange(30) % 6)
    settings = [f"dataset={path}", "partition={name='column', key='ward'}"]
    assert load_experiment(assignments=settings).clients == 6  # five in training data, one more in test data
    assert load_experiment(assignments=[*settings, "clients=4"]).clients == 4
    with pytest.raises(UserError, match="at most clients − 1 = 5 others"):
        load_experiment(assignments=[*settings, "method=apple", "method.budget=6"])
    np.savez(tmp_path / "single.npz", x=np.zeros((90, 2)), y=np.arange(90) % 2, ward=np.array(["a", "b", "c"] * 30))
    single = load_experiment(assignments=[f"dataset={tmp_path / 'single.npz'}", settings[1]])
    assert [client.name for client in federated_data(single).clients] == ["a", "b", "c"]


@pytest.mark.parametrize("content", [None, b"nothing that could be read"])
def test_owners_that_cannot_be_counted_are_complained_about_when_data_are_read(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "owned.npz"
    if content:
        path.write_bytes(content)
    experiment = load_experiment(assignments=[f"dataset={path}", "partition={name='column', key='ward'}"])
    with pytest.raises(UserError, match=r"owned\.npz: (no such file|is damaged)"):
        federated_data(experiment)


def test_labels_are_not_owners(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"owned\.npz: partition\.key = 'y': has no 'y_train'"):
        federated_data(by_column(write_npz(tmp_path / "owned.npz"), "y", 3))


def test_a_column_needs_its_name_and_an_npz() -> None:
    with pytest.raises(UserError) as refusal:
        load_experiment(overrides={"partition": "column"})
    assert str(refusal.value) == (
        "partition.key: is missing; name the column of owners, e.g. --set partition.key=hospital"
    )
    with pytest.raises(UserError, match=r"'column': only arrays of your own have columns, not digits"):
        federated_data(by_column("digits"))


def test_a_run_on_ones_own_data_is_kept_in_the_runs_folder(tmp_path: Path) -> None:
    experiment = Experiment(dataset=write_npz(tmp_path / "my [data].npz"))
    with new_folder(tmp_path / "runs", experiment) as first, new_folder(tmp_path / "runs", experiment) as second:
        assert first == tmp_path / "runs/my-data-.npz-practical-graft-seed42"
        assert second == tmp_path / "runs/my-data-.npz-practical-graft-seed42-2"
        (first / "metrics.jsonl").touch()
    assert first.exists()
    assert not second.exists()  # nothing was begun there
