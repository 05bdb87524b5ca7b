"""Data handed over in Python, client by client or of all clients together.

One client's data, or all data together, come in one of these forms:

    (x, y)                                  a pair of arrays, tensors or lists
    {"x": …, "y": …}                        and {"x_train": …, "y_train": …, "x_test": …}, as in an `.npz`
    {"train": …, "test": …}                 its parts, each in one of the other forms
    torch.utils.data.Dataset                map-style, with items (x, y); read once, into memory
    a Hugging Face dataset                  with columns named as in `SAMPLE_NAMES` and `TARGET_NAMES`; read once too
    ClientArrays                            of one client
    a pandas DataFrame                      whose columns the experiment's `[table]` describes

Those of clients are in a list, or in a mapping from their names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Dataset as TorchDataset

from orchard.data.client_arrays import ClientArrays, from_arrays
from orchard.data.clients import FederatedData
from orchard.data.division import check_partition, divide, shifted
from orchard.data.image_folders import grey_or_colour
from orchard.data.own import dataset_of_arrays, part_keys
from orchard.data.owners import count_owners
from orchard.data.partitions import column_key
from orchard.data.stored import digest_of_arrays, digest_of_tables
from orchard.data.tables.datasets import dataset_of_tables, divided_by_site, settings_of
from orchard.data.tables.reading import as_table
from orchard.data.tables.targets import rows_by_site
from orchard.errors import UserError
from orchard.experiment import Experiment

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Table:
    """The rows of all sites in one table."""

    frame: "DataFrame"


@dataclass(frozen=True)
class SiteTables:
    """A table for each site, by the sites' names."""

    frames: dict[str, "DataFrame"]


HandedOver = list[ClientArrays] | dict[str, NDArray[Any]] | Table | SiteTables
"""Each client's arrays, the arrays of all clients together by name, or tables."""

PART_NAMES = {"train": "train", "val": "val", "validation": "val", "test": "test"}
"""What people call the parts, and what an `.npz` does."""
SAMPLE_NAMES = ("x", "image", "img")
TARGET_NAMES = ("y", "label")
FORMS = (
    "(x, y), a dict with 'x' and 'y' or 'x_train' and 'y_train', a torch or Hugging Face dataset, a DataFrame, or "
    "ClientArrays"
)


def federate(data: object, experiment: Experiment) -> FederatedData:
    """Return every client's part of the data that were handed over."""
    held = handed_over(data, column_key(experiment.partition))
    if isinstance(held, Table | SiteTables):
        frames = {"": held.frame} if isinstance(held, Table) else held.frames
        return replace(_of_tables(held, experiment), stored=digest_of_tables(frames))
    return _of_arrays(held, experiment)


def _of_tables(held: Table | SiteTables, experiment: Experiment) -> FederatedData:
    settings = settings_of(experiment)
    if isinstance(held, Table):
        frames, by_site = divided_by_site(held.frame, settings, "data", "data"), settings.site is not None
    else:
        frames, by_site = held.frames, True
    check_partition(experiment, by_client=by_site)
    return shifted(divide(dataset_of_tables(frames, experiment, "data"), experiment), experiment)


def _of_arrays(held: list[ClientArrays] | dict[str, NDArray[Any]], experiment: Experiment) -> FederatedData:
    check_partition(experiment, by_client=isinstance(held, list))
    if isinstance(held, list):
        return from_arrays(held, experiment)
    data = divide(dataset_of_arrays(held, experiment, "data"), experiment)
    return shifted(replace(data, stored=digest_of_arrays(held)), experiment)


def number_of_clients(held: HandedOver, settings: Mapping[str, Any]) -> int | None:
    """Return how many clients there are, if the data tell it: by their number, or by a column of owners or sites."""
    if isinstance(held, list):
        return len(held)
    if isinstance(held, SiteTables):
        return len(held.frames)
    if isinstance(held, Table):
        table = settings.get("table")
        site = table.get("site") if isinstance(table, Mapping) else getattr(table, "site", None)
        return len(rows_by_site(held.frame, site, "data")) if isinstance(site, str) else None
    key = column_key(settings.get("partition"))
    return count_owners(held, key) if key else None


def handed_over(data: object, key: str | None = None) -> HandedOver:
    """Return the arrays of the data that were handed over; `key` names the column of owners."""
    if isinstance(data, ClientArrays):
        return [data]
    if isinstance(data, Table | SiteTables):
        return data
    if _is_frame(data):
        return Table(as_table(data, "data"))  # type: ignore[arg-type]
    if named := _frames_by_name(data):
        return SiteTables({name: as_table(frame, f"data: {name}") for name, frame in named.items()})
    if _is_whole(data):
        return _arrays(data, "data", key)
    if isinstance(data, Mapping) and data:
        return [_client(value, str(name), str(name)) for name, value in data.items()]
    if isinstance(data, Sequence) and data and not isinstance(data, str | bytes):
        return [_client(value, None, f"client {i}") for i, value in enumerate(data)]
    raise UserError(f"data: expected a list with each client's data or one dataset to divide, {_not(data)}")


def _is_frame(data: object) -> bool:
    """Tell whether this is a pandas DataFrame, without importing pandas for those who have none."""
    return type(data).__name__ == "DataFrame" and hasattr(data, "iloc")


def _frames_by_name(data: object) -> dict[str, Any]:
    """Return data frames by their sites' names; none if the data are anything else."""
    if isinstance(data, Mapping):
        named: dict[str, Any] = {str(name): value for name, value in data.items()}
    else:
        named = {f"client {i}": value for i, value in enumerate(data)} if isinstance(data, list | tuple) else {}
    return named if all(map(_is_frame, named.values())) else {}


def _client(data: object, name: str | None, place: str) -> ClientArrays:
    if isinstance(data, ClientArrays):
        return replace(data, name=name or data.name)
    if not _is_whole(data):
        raise UserError(f"data: {place}: expected {_not(data)}")
    arrays = _arrays(data, place, None)
    keys = part_keys(arrays, place)
    (x_train, y_train), (x_test, y_test), (x_validation, y_validation) = (
        [arrays[key] for key in keys[part]] if part in keys else (None, None) for part in ("train", "test", "val")
    )
    return ClientArrays(x_train, y_train, x_test, y_test, x_validation, y_validation, name)  # type: ignore[arg-type]


def _not(data: object) -> str:
    return f"{FORMS}; not {type(data).__name__}"


# --- One client's data, or all data ---


def _is_whole(data: object) -> bool:
    return _is_pair(data) or _is_arrays(data) or _is_parts(data) or _is_dataset(data)


def _is_pair(data: object) -> bool:
    return isinstance(data, tuple) and len(data) == 2 and all(_is_array(value) for value in data)


def _is_array(value: object) -> bool:
    return hasattr(value, "__array__") or isinstance(value, list)


def _is_arrays(data: object) -> bool:
    return isinstance(data, Mapping) and any(name in data for name in ("x", "x_train", "train_images"))


def _is_parts(data: object) -> bool:
    return isinstance(data, Mapping) and "train" in data and set(data) <= PART_NAMES.keys()


def _is_dataset(data: object) -> bool:
    """Tell whether data are read item by item; a Hugging Face dataset is known by its columns."""
    if isinstance(data, Mapping | Sequence) or hasattr(data, "__array__"):
        return False
    named = hasattr(data, "column_names") or (hasattr(data, "__len__") and hasattr(data, "__getitem__"))
    return isinstance(data, TorchDataset) or named


def _arrays(data: Any, place: str, key: str | None) -> dict[str, NDArray[Any]]:
    """Return data in one of the forms as arrays named as in an `.npz`."""
    if _is_pair(data):
        return {name: _array(value, f"{place}: {name}") for name, value in zip("xy", data, strict=True)}
    if _is_arrays(data):
        named = {str(name).replace("_validation", "_val"): value for name, value in data.items()}
        return {name: _array(value, f"{place}: {name}") for name, value in named.items() if value is not None}
    if _is_parts(data):
        arrays: dict[str, NDArray[Any]] = {}
        for part, inner in data.items():
            if _is_parts(inner) or not _is_whole(inner):
                raise UserError(f"data: {place}: {part}: expected {_not(inner)}")
            held = _arrays(inner, f"{place}: {part}", key)
            arrays |= {f"{name}_{PART_NAMES[part]}": array for name, array in held.items()}
        return arrays
    return _read(data, place, key)


def _array(value: Any, place: str) -> NDArray[Any]:
    try:
        return np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
    except (ValueError, TypeError) as error:  # e.g. rows of different lengths
        raise UserError(f"{place}: is not an array: {error}") from None


# --- Datasets ---


def _read(dataset: Any, place: str, key: str | None) -> dict[str, NDArray[Any]]:
    """Read all items of a dataset."""
    if not hasattr(dataset, "__len__"):
        raise UserError(f"{place}: a dataset without a length cannot be divided; hand over a map-style one")
    if not len(dataset):
        raise UserError(f"{place}: the dataset is empty")
    columns: dict[str, list[NDArray[Any]]] = {}
    for i in range(len(dataset)):
        try:
            item = dataset[i]
        except Exception as error:  # somebody else's code may raise anything
            raise UserError(f"{place}: item {i}: cannot be read: {error}") from error
        for name, value in _fields(item, key, f"{place}: item {i}").items():
            columns.setdefault(name, []).append(_pixels(value, f"{place}: item {i}"))
    return {name: _stacked(values, f"{place}: {name}") for name, values in columns.items()}


def _fields(item: Any, key: str | None, place: str) -> dict[str, Any]:
    """Return an item's sample and target, and its owner if there is a column of owners."""
    if not isinstance(item, Mapping):
        if isinstance(item, tuple | list) and len(item) == 2:
            return dict(zip("xy", item, strict=True))
        raise UserError(f"{place}: expected (x, y), or a mapping from columns, not {type(item).__name__}")
    x, y = (next((name for name in names if name in item), None) for names in (SAMPLE_NAMES, TARGET_NAMES))
    if x is None or y is None:
        expected = f"{' or '.join(map(repr, SAMPLE_NAMES))}, and {' or '.join(map(repr, TARGET_NAMES))}"
        raise UserError(f"{place}: expected columns {expected}; it has {sorted(map(str, item))}")
    return {"x": item[x], "y": item[y], **({key: item[key]} if key is not None and key in item else {})}


def _pixels(value: Any, place: str) -> NDArray[Any]:
    if isinstance(value, Image.Image):
        value = grey_or_colour(value, value.format, place)
    return _array(value, place)


def _stacked(values: Sequence[NDArray[Any]], place: str) -> NDArray[Any]:
    shapes = sorted({value.shape for value in values})
    if len(shapes) > 1:
        raise UserError(f"{place}: its items differ in shape: {shapes[0]} and {shapes[-1]}; give them one shape")
    return np.stack(values)
