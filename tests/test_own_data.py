"""One's own data: arrays in an .npz, images in folders, one folder per client."""

import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import orchard
from helpers import REAL_DATA
from orchard.data import federated_data, load_dataset
from orchard.data.readers import read_cifar10
from orchard.errors import Refusal
from orchard.experiment import Experiment, load_experiment
from orchard.folder import free_folder

CIFAR_AS_JPEG = REAL_DATA / "cifar10-jpeg.tar.xz"
DRAW = np.random.default_rng(0)


def some_images(n: int, *shape: int) -> NDArray[np.uint8]:
    return DRAW.integers(256, size=(n, *shape)).astype(np.uint8)


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
    assert dataset.classes == ("0", "1", "2")
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
    with pytest.raises(Refusal, match=rf"{name}': is neither an \.npz file nor a folder of images"):
        load_dataset(Experiment(dataset=str(tmp_path / name)))


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + ".npz", "folder/" + "x" * 5000])
def test_an_absurdly_long_name_is_refused(name: str) -> None:
    with pytest.raises(Refusal, match=r"dataset = '.{59}…': cannot be looked up: File name too long"):
        Experiment(dataset=name)


def test_a_path_that_is_not_text_is_refused() -> None:
    with pytest.raises(Refusal, match=r"dataset = 'north\\udcff': a path that is not UTF-8"):
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
        ({"y_train": np.linspace(0, 2, 60)}, "y_train: labels must be one whole number each, not float64"),
        ({"y_train": np.stack([np.arange(60)] * 2, 1)}, "train: labels must be one whole number each, not int64 of"),
        ({"y_test": np.arange(30) - 7}, "y_test: row 0: label -7 is below 0"),
        ({"x_test": np.full((30, 28, 28), np.nan)}, "test: row 0: holds a value that is not finite"),
        ({"x_train": np.array([None] * 60)}, "'x_train' is an array of Python objects, which is never loaded"),
        ({"x_train": np.zeros((0, 28, 28), np.uint8), "y_train": np.zeros(0, int)}, "expected samples and labels"),
        ({"y_train": np.full(60, 3_000_000)}, "train: row 0: label 3000000 is beyond 9999"),
        ({"x_val": some_images(3, 9, 9, 3), "y_val": np.arange(3)}, "its parts differ in the shape of samples"),
        ({"x_train": None, "y_train": None}, "expected 'x_train' and 'y_train', or MedMNIST's keys"),
        ({"y_test": None}, "has 'x_test' but no 'y_test'"),
        ({"x_test": np.zeros((30, 9, 9))}, "its parts differ in the shape of samples: [(1, 9, 9), (1, 28, 28)]"),
        ({"x_train": some_images(60, 28, 28, 2)}, "x_train: images of bytes have 1, 3 or 4 channels, not the shape"),
        ({"x_train": np.full((60, 5), 1e300)}, "x_train: row 0: holds a value that is not finite"),
        ({"x_train": np.zeros((60, 28, 28), "U3")}, "expected images of unsigned bytes or floats, got <U3"),
    ],
)
def test_a_bad_npz_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write_npz(tmp_path / "bad.npz", **changes)
    with pytest.raises(Refusal, match=r"bad\.npz: ") as refusal:
        load_dataset(Experiment(dataset=path))
    assert message in str(refusal.value)


def test_a_damaged_or_missing_npz_is_refused(tmp_path: Path) -> None:
    path = Path(write_npz(tmp_path / "cut.npz"))
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(Refusal, match=r"cut\.npz: is damaged or not an \.npz"):
        load_dataset(Experiment(dataset=str(path)))
    with pytest.raises(Refusal, match=r"none\.npz: no such file"):
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
        Refusal, match=r"clients = 4: but .*owned\.npz names 3 owners \(north, south, west\); set clients"
    ):
        federated_data(load_experiment(assignments=[*settings, "clients=4"]))


def by_column(path: str, key: str = "hospital", clients: int = 2) -> Experiment:
    settings = [f"dataset={path}", f"partition={{name='column', key='{key}'}}", f"clients={clients}"]
    return load_experiment(assignments=settings)


def marked(owners: NDArray[Any]) -> NDArray[np.float32]:
    """Samples that carry their owner's number, so that they can be told apart after dealing."""
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
        ({}, r"partition\.key = 'hospital': has no 'hospital_train'; beside samples and labels it holds: nothing"),
        ({"ward_train": np.arange(60)}, r"has no 'hospital_train'; beside samples and labels it holds: ward_train"),
        ({"hospital_train": np.arange(60) % 2}, "has no 'hospital_test'; beside samples and labels it holds"),
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
            "has no 'hospital_val'; beside samples and labels it holds: hospital_test, hospital_train",
        ),
    ],
)
def test_a_bad_column_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write_npz(tmp_path / "owned.npz", **changes)
    with pytest.raises(Refusal, match=rf"owned\.npz: .*{message}"):
        federated_data(by_column(path))


def test_labels_are_not_owners(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"owned\.npz: partition\.key = 'y': has no 'y_train'"):
        federated_data(by_column(write_npz(tmp_path / "owned.npz"), "y", 3))


def test_a_column_needs_its_name_and_an_npz() -> None:
    with pytest.raises(Refusal) as refusal:
        load_experiment(overrides={"partition": "column"})
    assert str(refusal.value) == (
        "partition.key: is missing; name the column of owners, e.g. --set partition.key=hospital"
    )
    with pytest.raises(Refusal, match=r"'column': only an \.npz of your own has columns, not digits"):
        federated_data(by_column("digits"))


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
    assert dataset.classes == ("cat", "dog")
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
    with pytest.raises(Refusal, match=r"beside 'train' only 'val' and 'test' are expected, not \['more'\]"):
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
    with pytest.raises(Refusal, match=r"deep\.tif: has pixels of 'F' without a known range"):
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
    assert load_dataset(Experiment(dataset=str(tmp_path))).classes == ("car", "plane", "train")


def test_a_folder_beside_does_not_hide_a_known_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    assert len(load_dataset(Experiment(dataset="digits")).classes) == 10


def test_a_run_on_ones_own_data_is_kept_in_the_runs_folder(tmp_path: Path) -> None:
    name = free_folder(Path("runs"), Experiment(dataset=write_npz(tmp_path / "my [data].npz")))
    assert name == Path("runs/my-data-.npz-practical-apple-seed42")


def test_one_folder_per_client_needs_no_partition(tmp_path: Path) -> None:
    for client, counts in (("north", (20, 10)), ("south", (8, 30)), ("west", (40, 5))):
        for name, count in zip(("benign", "malignant"), counts, strict=True):
            write_images(tmp_path / client / name, count)
    experiment = Experiment(dataset=str(tmp_path), rounds=2, epochs=1, batch_size=16)
    assert (experiment.clients, experiment.partition.name) == (3, "given")
    data = federated_data(experiment)
    assert [client.name for client in data.clients] == ["north", "south", "west"]
    assert data.classes == ("benign", "malignant")
    whole = np.sum([part for part in data.class_counts().values()], axis=0)  # noqa: C416
    assert whole.tolist() == [[20, 10], [8, 30], [40, 5]]
    assert orchard.run(experiment).clients[2].name == "west"
    with pytest.raises(Refusal, match="the data come client by client; use 'given'"):
        federated_data(Experiment(dataset=str(tmp_path), partition={"name": "practical"}))  # type: ignore[arg-type]
    with pytest.raises(Refusal, match=r"clients = 4: but .* holds the folders of 3 clients"):
        federated_data(Experiment(dataset=str(tmp_path), clients=4))
    with pytest.raises(Refusal, match="the data do not come client by client"):
        federated_data(load_experiment(assignments=["partition=given"]))


def test_a_client_with_too_little_is_named(tmp_path: Path) -> None:
    write_images(tmp_path / "north/benign", 20)
    write_images(tmp_path / "south/benign", 3)
    with pytest.raises(Refusal, match="leaves south without a test sample"):
        federated_data(Experiment(dataset=str(tmp_path)))


def test_bad_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="holds no folders"):
        load_dataset(Experiment(dataset=str(tmp_path)))
    write_images(tmp_path / "cat", 3)
    (tmp_path / "dog").mkdir()
    with pytest.raises(Refusal, match=r"dog: holds no image"):
        load_dataset(Experiment(dataset=str(tmp_path)))
    (tmp_path / "dog/0.png").write_bytes((tmp_path / "cat/000.png").read_bytes()[:200])
    with pytest.raises(Refusal, match=r"0\.png: cannot be read as an image"):
        load_dataset(Experiment(dataset=str(tmp_path)))
    write_images(tmp_path / "fox/young", 1)
    with pytest.raises(Refusal, match="mixes layouts: cat holds images, fox holds folders"):
        Experiment(dataset=str(tmp_path))


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
    with pytest.raises(Refusal, match=rf"cifar-10-binary\.tar\.gz: {name}: row 2: label 99, but there are 10 classes"):
        load_dataset(Experiment(dataset="cifar10", data_dir=tmp_path))


def test_a_bad_archive_is_refused_and_nothing_is_extracted(tmp_path: Path) -> None:
    good = cifar_batches()
    whole = cifar_archive(tmp_path / "c.tar.gz", good).read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[:-5000])
    with pytest.raises(Refusal, match=r"cut\.tar\.gz: is damaged"):
        read_cifar10(tmp_path / "cut.tar.gz")
    name = "cifar-10-batches-bin/test_batch.bin"
    with pytest.raises(Refusal, match=f"{name} is not in it"):
        read_cifar10(cifar_archive(tmp_path / "a.tar.gz", {k: v for k, v in good.items() if k != name}))
    with pytest.raises(Refusal, match="are not whole records of 3073"):
        read_cifar10(cifar_archive(tmp_path / "b.tar.gz", {**good, name: b"abc"}))
    evil = cifar_archive(tmp_path / "e.tar.gz", {"../../evil.txt": b"boo", **good})
    with pytest.raises(Refusal, match=r"e\.tar\.gz: its member '../../evil\.txt' points out of it"):
        read_cifar10(evil)
    assert not (tmp_path.parent.parent / "evil.txt").exists()
    assert not (tmp_path.parent / "evil.txt").exists()


needs_real = pytest.mark.skipif(not (REAL_DATA / "bloodmnist.npz").exists(), reason="real data are not there")


@needs_real
@pytest.mark.parametrize(("name", "channels", "total"), [("bloodmnist", 3, 17_092), ("tissuemnist", 1, 58_850)])
@pytest.mark.filterwarnings("ignore:.*is not the published file")
def test_real_medmnist(name: str, channels: int, total: int) -> None:
    merged = load_dataset(Experiment(dataset=name, data_dir=REAL_DATA))
    assert len(merged.train.y) + len(merged.test.y) == total
    assert merged.train.x.shape[1:] == (channels, 28, 28)
    assert len(merged.test.y) / total == pytest.approx(0.2, abs=0.001)
    official = load_dataset(Experiment(dataset=name, data_dir=REAL_DATA, split="official"))
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
        dataset = load_dataset(Experiment(dataset="breastmnist", data_dir=tmp_path, size=size))
        assert dataset.train.x.shape == (24, 1, size, size)
        assert dataset.classes == ("malignant", "normal or benign")


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
    with pytest.raises(Refusal, match=rf"breastmnist\.npz: {message}"):
        load_dataset(Experiment(dataset="breastmnist", data_dir=tmp_path))


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
    overrides = {"data_dir": REAL_DATA, "fraction": 1.0 if clients == 3 else 0.2}
    first, second = orchard.run(load_experiment(overrides=overrides, assignments=settings)).rounds
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
        assert result.holdings.shape == [3, 28, 28]
        assert len(result.holdings.classes) == 10
        assert "airplane" in result.holdings.classes
        first, second = result.rounds
        assert np.mean(np.array(second.loss, dtype=float)) < np.mean(np.array(first.loss, dtype=float))
