"""Tensors on their way through Ray: each travels once, and arrives as it was."""

import pytest
import torch

from orchard.core.vector import stack
from orchard.engines.memory import shared_matrix
from orchard.engines.ray.packing import pack, pack_state, place_vectors, unpack, unpack_state, vectors_at


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_a_tensor_survives_packing(dtype: torch.dtype) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    for shaped in (tensor, tensor.t(), tensor[0, 0], tensor[:0]):
        back = unpack(pack(shaped))
        assert back.dtype == dtype
        assert torch.equal(back, shaped)


def test_of_a_state_only_travels_what_the_other_side_lacks() -> None:
    old, new, sent = torch.zeros(3), torch.ones(3), torch.full((3,), 2.0)
    state = {"client": {"core": sent, "copies": [old, None, new, new], "round": 7}, "buffers": {}}
    packed = pack_state(state, {id(old): ("before", 4), id(sent): ("upload", "core")})
    assert packed.tensors[:2] == [("upload", "core"), ("before", 4)]
    back = unpack_state(packed, {("before", 4): old, ("upload", "core"): sent})
    assert back["client"]["core"] is sent
    assert back["client"]["copies"][0] is old
    assert back["client"]["copies"][2] is back["client"]["copies"][3]  # it travelled once
    assert torch.equal(back["client"]["copies"][2], new)
    assert back["client"]["round"] == 7


def test_all_models_travel_as_one_matrix_that_need_not_be_copied() -> None:
    rows = list(stack([torch.full((5,), float(j)) for j in range(4)], torch.zeros(5)))
    others = {i: {f"core {j}": rows[j] for j in range(4) if j != i} for i in range(4)}
    places, arrays = place_vectors(others)
    assert len(arrays) == 1
    there = vectors_at(places, arrays, "cpu")
    for i in range(4):
        assert all(torch.equal(there[i][name], vector) for name, vector in others[i].items())
        mine = [there[i].get(f"core {j}") for j in range(4)]
        assert shared_matrix(mine) is not None
    assert there[0]["core 3"] is there[1]["core 3"]


def test_a_row_of_its_own_for_each_client_travels_alone() -> None:
    rows = list(stack([torch.full((5,), float(j)) for j in range(4)], torch.zeros(5)))
    places, arrays = place_vectors({i: {"model": rows[i]} for i in range(4)})
    assert [packed.array.nbytes for packed in arrays.values()] == [20] * 4
    assert len(place_vectors({i: {"model": rows[0]} for i in range(4)})[1]) == 1
    assert torch.equal(vectors_at(places, arrays, "cpu")[2]["model"], rows[2])
