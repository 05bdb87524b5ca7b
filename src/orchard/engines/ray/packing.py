"""Tensors on their way through Ray's object store, which arrays enter without being pickled and leave uncopied."""

import warnings
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from orchard.core.contract import Vectors
from orchard.data.clients import ClientData
from orchard.data.samples import Samples
from orchard.data.tables.scaling import Preparation
from orchard.engines.guards import map_tensors, tensors_in


@dataclass(frozen=True)
class Packed:
    """A tensor as an array; NumPy has no bfloat16, which travels as whole numbers."""

    array: NDArray[Any]
    dtype: torch.dtype


PackedData = tuple[str, Preparation | None, list[Packed]]
"""A client's data: name, preparation, and inputs and targets of the three parts."""


@dataclass(frozen=True)
class PackedState:
    """A state: its plain values, and each tensor, or where the receiver has it already."""

    plain: Any
    tensors: list[Packed | tuple[Hashable, ...]]


@dataclass(frozen=True)
class Place:
    """Where a vector of a download is: an array, or a row of one that has all models."""

    key: int
    row: int | None = None
    length: int = 0


def pack(tensor: Tensor) -> Packed:
    """Return a tensor as an array, sharing its memory if it can."""
    plain = tensor.detach().cpu().contiguous()
    return Packed((plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain).numpy(), plain.dtype)


def unpack(packed: Packed) -> Tensor:
    """Return the tensor, sharing the array's memory, which may be read-only: everybody keeps from changing it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        tensor = torch.from_numpy(packed.array)
    return tensor if tensor.dtype == packed.dtype else tensor.view(packed.dtype)


def pack_state(state: Any, known: Mapping[int, tuple[Hashable, ...]]) -> PackedState:
    """Return a state to send; `known` says of a tensor, by its id, where the receiver has it."""
    packed: dict[int, Packed] = {}  # one array per tensor, so that one that is there twice travels once
    tensors = [known.get(id(tensor)) or packed.setdefault(id(tensor), pack(tensor)) for tensor in tensors_in(state)]
    return PackedState(map_tensors(state, lambda tensor: torch.empty(0)), tensors)


def unpack_state(state: PackedState, known: Mapping[tuple[Hashable, ...], Tensor], device: str = "cpu") -> Any:
    """Return the state that was packed; its new tensors are copies, since arrays would hold the whole message."""
    copies: dict[int, Tensor] = {}
    tensors = iter(state.tensors)

    def tensor(_: Tensor) -> Tensor:
        source = next(tensors)
        if not isinstance(source, Packed):
            return known[source]
        if id(source.array) not in copies:
            copies[id(source.array)] = unpack(source).clone().to(device)
        return copies[id(source.array)]

    return map_tensors(state.plain, tensor)


def pack_data(data: ClientData) -> PackedData:
    """Return a client's data to send."""
    return data.name, data.preparation, [pack(tensor) for part in data.parts() for tensor in part]


def unpack_data(packed: PackedData) -> ClientData:
    """Return the data that were packed."""
    name, preparation, arrays = packed
    tensors = map(unpack, arrays)
    train, validation, test = (Samples(x, y) for x, y in zip(tensors, tensors, strict=True))
    return ClientData(name, train, validation, test, preparation)


def place_vectors(downloads: Mapping[int, Vectors]) -> tuple[dict[int, dict[str, Place]], dict[int, Packed]]:
    """Return where each client finds the vectors of its download, and the arrays: each vector is there once.

    Models in one matrix, of which a client gets all or all but its own, stay one matrix: nodes need not copy them.
    """
    arrays: dict[int, Packed] = {}
    places = {
        i: {name: _placed(vector, len(vectors), arrays) for name, vector in vectors.items()}
        for i, vectors in downloads.items()
    }
    return places, arrays


def _placed(vector: Tensor, together: int, arrays: dict[int, Packed]) -> Place:
    whole = vector._base
    is_row = whole is not None and whole.dim() == 2 and whole.is_contiguous() and vector.stride() == (1,)
    if whole is None or not is_row or len(whole) > together + 1:
        if id(vector) not in arrays:
            arrays[id(vector)] = pack(vector)
        return Place(id(vector))
    if id(whole) not in arrays:
        arrays[id(whole)] = pack(whole)
    row, start = divmod(int(vector.storage_offset() - whole.storage_offset()), whole.stride(0))
    if start:
        raise ValueError("a model that is no whole row of its matrix")
    return Place(id(whole), row, len(vector))


def vectors_at(
    places: Mapping[int, Mapping[str, Place]], arrays: Mapping[int, Packed], device: str
) -> dict[int, dict[str, Tensor]]:
    """Return the vectors at their places; a vector that several clients get is one tensor."""
    tensors = {key: unpack(array).to(device) for key, array in arrays.items()}
    found: dict[Place, Tensor] = {}
    for place in {place for mine in places.values() for place in mine.values()}:
        tensor = tensors[place.key]
        found[place] = tensor if place.row is None else tensor[place.row, : place.length]
    return {i: {name: found[place] for name, place in mine.items()} for i, mine in places.items()}
