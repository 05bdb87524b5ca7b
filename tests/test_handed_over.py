"""Data handed over in Python, in the forms that people have them in."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, DatasetDict, Features
from datasets import Dataset as HuggingFace
from datasets import Image as ImageColumn
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import orchard
from helpers import DRAW, SMALL, small_arrays
from orchard.data.client_arrays import ClientArrays
from orchard.data.clients import FederatedData
from orchard.data.handed_over import federate, handed_over
from orchard.errors import UserError
from orchard.experiment import Experiment, load_experiment
from orchard.runs.run import define, load_data

X = DRAW.normal(size=(40, 6)).astype(np.float32)
Y = np.arange(40) % 4


class Pictures(Dataset[tuple[Any, int]]):
    """Items as torchvision's datasets have them: a picture and its label."""

    def __init__(self, *modes: str) -> None:
        self.modes = modes

    def __len__(self) -> int:
        return len(self.modes)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return Image.new("RGB", (5, 5), (51, 51, 51)).convert(self.modes[i]), i % 2


class Stream(IterableDataset[tuple[Any, int]]):
    def __iter__(self) -> Iterator[tuple[Any, int]]:
        yield X[0], 0


class Broken(Dataset[Any]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> Any:
        raise OSError("the disk is gone")


def columns(**held: Any) -> HuggingFace:
    return HuggingFace.from_dict(held)


def pair() -> TensorDataset:
    return TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))


def parts_of(data: FederatedData, client: int = 0) -> dict[str, list[tuple[list[float], int]]]:
    """Each part of a client's samples, to compare."""
    held = data.clients[client]
    return {
        part: list(zip(samples.x.tolist(), samples.y.tolist(), strict=True))
        for part, samples in (("train", held.train), ("validation", held.validation), ("test", held.test))
    }


def loaded(data: object, **settings: Any) -> FederatedData:
    experiment, _, held = define(None, data, settings)
    return load_data(experiment, held)


ONE_CLIENT = [
    pytest.param(ClientArrays(X, Y), id="arrays"),
    pytest.param((X, Y), id="pair"),
    pytest.param((X.tolist(), Y.tolist()), id="lists"),
    pytest.param((torch.from_numpy(X).requires_grad_(), torch.from_numpy(Y)), id="tensors"),
    pytest.param({"x": X, "y": Y}, id="mapping"),
    pytest.param({"x_train": X, "y_train": Y}, id="mapping of parts"),
    pytest.param({"train": (X, Y)}, id="parts"),
    pytest.param(pair(), id="torch"),
    pytest.param(columns(x=X, y=Y), id="columns x, y"),
    pytest.param(columns(image=X, label=Y.tolist(), patient=["p"] * 40), id="columns image, label"),
    pytest.param(columns(x=X, y=Y).with_format("torch"), id="columns of tensors"),
    pytest.param(columns(x=X, y=Y).with_format("numpy"), id="columns of arrays"),
    pytest.param(DatasetDict(train=columns(x=X, y=Y)), id="parts of columns"),
]


@pytest.mark.parametrize("data", ONE_CLIENT)
def test_all_forms_of_a_clients_data_are_the_same_data(data: object) -> None:
    expected = parts_of(loaded([(X, Y)], layout="features"))
    for given in ([data], [data, (X, Y)], {"north": data, "south": (X, Y)}):
        held = loaded(given)
        assert len(held.clients) == len(given)
        assert parts_of(held) == expected
    assert [client.name for client in held.clients] == ["north", "south"]


@pytest.mark.parametrize("data", ONE_CLIENT[1:])
def test_all_forms_of_a_whole_dataset_are_divided_alike(data: object, tmp_path: Path) -> None:
    np.savez(tmp_path / "same.npz", x=X, y=Y)
    settings = {"partition": "iid", "clients": 2}
    from_file = load_data(load_experiment(overrides={"dataset": str(tmp_path / "same.npz"), **settings}))
    assert all(parts_of(loaded(data, **settings), i) == parts_of(from_file, i) for i in range(2))


def test_a_fifth_of_every_class_becomes_the_missing_test_part() -> None:
    (client,) = loaded([(X, Y)]).clients
    assert torch.bincount(client.test.y).tolist() == [2, 2, 2, 2]
    assert (len(client.train.y), len(client.validation.y)) == (27, 5)  # 85 % of 32, and the rest


@pytest.mark.parametrize("validation", ["val", "validation"])
def test_parts_are_kept_as_they_are_given(validation: str) -> None:
    halves = {"train": (X[:20], Y[:20]), validation: (X[20:30], Y[20:30]), "test": (X[30:], Y[30:])}
    flat = {f"{k}_{part}": array for part, both in halves.items() for k, array in zip("xy", both, strict=True)}
    for data in (halves, flat):
        (client,) = loaded([data]).clients
        assert client.train.x.numpy().tolist() == X[:20].tolist()
        assert client.validation.x.numpy().tolist() == X[20:30].tolist()
        assert client.test.y.numpy().tolist() == Y[30:].tolist()


@pytest.mark.parametrize("form", ["mapping", "columns"])
def test_a_column_of_owners_divides_and_counts(form: str) -> None:
    owners = np.array(["north", "south", "west", "east"] * 40)
    x, y = np.repeat((np.arange(160) % 4)[:, None], 2, axis=1).astype(float), np.arange(160) // 4 % 2
    data = {"x": x, "y": y, "site": owners} if form == "mapping" else columns(x=x, y=y, site=owners.tolist())
    held = loaded(data, partition={"name": "column", "key": "site"})
    found = {client.name: set(client.train.x.flatten().tolist()) for client in held.clients}
    assert found == {"north": {0.0}, "south": {1.0}, "west": {2.0}, "east": {3.0}}


def test_pictures_are_bytes_grey_or_in_colour() -> None:
    for modes, channels in ((["L"] * 20, 1), (["RGB"] * 20, 3), (["L", "1", "LA"] * 8, 1), (["P"] * 20, 1)):
        held = loaded([Pictures(*modes)], size=6)
        assert held.shape == (channels, 6, 6)
    x: Tensor = loaded([Pictures(*["RGB"] * 20)], size=5).clients[0].train.x
    torch.testing.assert_close(x, torch.full_like(x, -0.6))


@pytest.mark.parametrize(("name", "mode", "channels"), [("image", "L", 1), ("img", "RGB", 3), ("image", "P", 1)])
def test_hugging_face_pictures_in_parts_or_by_client(name: str, mode: str, channels: int) -> None:
    features = Features({name: ImageColumn(), "label": ClassLabel(names=["healthy", "ill"])})
    pictures = [Image.new("RGB", (5, 5), (51, 51, 51)).convert(mode)] * 20
    held = HuggingFace.from_dict({name: pictures, "label": [0, 1] * 10}, features)
    for data in (DatasetDict(train=held, validation=held, test=held), {"north": held, "south": held}):
        settings = {"partition": "iid", "clients": 2} if isinstance(data, DatasetDict) else {}
        divided = loaded(data, size=5, **settings)
        assert divided.shape == (channels, 5, 5)
        torch.testing.assert_close(x := divided.clients[1].train.x, torch.full_like(x, -0.6))
    assert divided.class_counts()["test"] == [[2, 2], [2, 2]]


def test_hugging_face_arrays_are_images_if_they_are_read_as_bytes() -> None:
    held = columns(x=np.full((20, 5, 5), 51, np.uint8), y=[0, 1] * 10)
    x = loaded([held.with_format("numpy", dtype=np.uint8)], size=5).clients[0].train.x
    torch.testing.assert_close(x, torch.full_like(x, -0.6))
    with pytest.raises(UserError, match="expected images of unsigned bytes or floats, got int64"):
        loaded([held.with_format("numpy")])  # which makes whole numbers of 64 bits


def test_the_data_tell_the_number_of_clients() -> None:
    assert define(None, small_arrays(3), {})[0].clients == 3
    arrays = Experiment(dataset="arrays", rounds=2, model="mlp")
    assert orchard.run(arrays, small_arrays(3)).experiment.clients == 3
    changed = arrays.changed(method={"name": "apple", "budget": 1}, epochs=1)
    assert orchard.run(changed, small_arrays(2)).experiment.clients == 2
    many = {"name": "apple", "budget": 13}
    assert define(None, small_arrays(14), {"method": many})[0].clients == 14
    for experiment in (arrays.changed(clients=4), Experiment(dataset="arrays", clients=4)):
        with pytest.raises(UserError, match="clients = 4: but data of 3 clients were given; set clients = 3"):
            orchard.run(experiment, small_arrays(3))


def test_a_run_on_data_handed_over_is_resumed_with_the_same(tmp_path: Path) -> None:
    settings = {**{k: v for k, v in SMALL.items() if k not in ("dataset", "clients")}, "partition": "iid", "clients": 2}
    first = orchard.run(data=pair(), out=tmp_path / "run", **settings)
    assert first.experiment.dataset == "arrays"
    longer = orchard.resume(tmp_path / "run", (X, Y), rounds=4)
    assert longer.rounds[0].loss == first.rounds[0].loss


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (X, "data: expected a list with each client's data or one dataset to divide, (x, y), a dict with 'x' and"),
        ("digits", "or ClientArrays; not str"),
        ([], "; not list"),
        ({}, "; not dict"),
        (3, "; not int"),
        ([X, Y], "data: client 0: expected (x, y), a dict with 'x' and 'y' or 'x_train' and 'y_train', a torch or"),
        ([(X, Y), (X, Y, X, Y)], "data: client 1: expected (x, y), a dict"),
        ({"north": 3}, "data: north: expected (x, y), a dict with"),
        ({"north": {"a": X, "b": Y}}, "data: north: expected (x, y), a dict with"),
        ([{"x": X}], "client 0: expected 'x' and 'y', 'x_train' and 'y_train', or MedMNIST's keys; it holds ['x']"),
        ([{"train": X}], "data: client 0: train: expected (x, y)"),
        ([{"test": (X, Y)}], "data: client 0: expected (x, y)"),
        ([([[1.0], [1.0, 2.0]], [0, 1])], "client 0: x: is not an array:"),
        ([columns(x=X, y=Y).to_iterable_dataset()], "client 0: a dataset without a length cannot be divided"),
        ([Stream()], "client 0: a dataset without a length cannot be divided; hand over a map-style one"),
        ([TensorDataset(torch.zeros(0, 2), torch.zeros(0))], "client 0: the dataset is empty"),
        ([Broken()], "client 0: item 0: cannot be read: the disk is gone"),
        ([TensorDataset(torch.zeros(3, 2))], "client 0: item 0: expected (x, y), or a mapping from columns, not tuple"),
        ([columns(x=X, finding=Y)], "expected columns 'x' or 'image' or 'img', and 'y' or 'label'; it has ['finding',"),
        ([columns(x=[[1.0], [1.0, 2.0]], y=[0, 1])], "client 0: x: its items differ in shape: (1,) and (2,)"),
        ([(X, Y[:3])], "client 0: train: 40 samples but 3 labels"),
        ([ClientArrays(X, Y, X)], "client 0: test: samples and labels must be given together"),
        ([ClientArrays(None, None)], "client 0: train: has no samples"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_used_is_refused_with_what_can(data: object, message: str) -> None:
    with pytest.raises(UserError) as refusal:
        loaded(data)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_partition_must_fit_what_was_handed_over() -> None:
    with pytest.raises(
        UserError, match=r"partition\.name = 'given': the data do not come client by client; use another"
    ):
        loaded((X, Y), clients=2)
    with pytest.raises(UserError, match=r"partition\.name = 'iid': the data come client by client; use 'given'"):
        loaded([(X, Y)], partition="iid")
    with pytest.raises(UserError, match=r"data: partition\.key = 'site': has no 'site'; apart from samples and labels"):
        loaded((X, Y), partition={"name": "column", "key": "site"}, clients=2)


def test_reading_twice_changes_nothing() -> None:
    once = handed_over(pair())
    assert isinstance(once, dict)
    again = handed_over(once)
    assert isinstance(again, dict)
    arrays: list[NDArray[Any]] = [again["x"], again["y"]]
    assert all(mine is given for mine, given in zip(arrays, (once["x"], once["y"]), strict=True))
    experiment = Experiment(dataset="arrays", partition={"name": "iid"}, clients=2)  # type: ignore[arg-type]
    assert federate(once, experiment).fingerprint() == federate(pair(), experiment).fingerprint()
