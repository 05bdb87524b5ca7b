"""The memory of models: shared matrices, and freed memory for the system. Nothing here changes a result."""

import ctypes
from collections.abc import Sequence
from contextlib import suppress

from torch import Tensor

from orchard.core.contract import Party, Server
from orchard.core.vector import empty_matrix, fill, stack
from orchard.engines.engine import Selections
from orchard.engines.guards import map_tensors, tensors_in


def return_freed_memory() -> None:
    """Return freed memory to the system; otherwise the C library keeps it."""
    with suppress(OSError, AttributeError, TypeError):  # the C library is not glibc
        ctypes.CDLL(None).malloc_trim(0)


class Stacker:
    """Copies models into one matrix and reuses its memory: new memory costs more than the copying."""

    def __init__(self) -> None:
        self._matrix: Tensor | None = None

    def __call__(self, rows: Sequence[Tensor | None], like: Tensor) -> Tensor:
        """Return models as the rows of one matrix; without copying if they already are."""
        shared = shared_matrix(rows)
        if shared is not None:
            return shared
        if self._matrix is None or len(self._matrix) != len(rows):
            self._matrix = empty_matrix(len(rows), like)
        return fill(self._matrix, rows)


def shared_matrix(rows: Sequence[Tensor | None]) -> Tensor | None:
    """Return the matrix that the given rows are views of, in order, or None; a row that is None fits any matrix."""
    first = next((row for row in rows if row is not None and row._base is not None), None)
    if first is None:
        return None
    whole, stride = first._base, empty_matrix(0, first).stride(0)
    if whole is None or whole.shape != (len(rows), stride):
        return None
    for j, row in enumerate(rows):
        if row is not None and not (row._base is whole and row.storage_offset() == j * stride):
            return None
    return whole[:, : first.numel()]


def share(server: Server, clients: Sequence[Party], selected: Selections) -> None:
    """Move the server's models into one matrix, if every client is about to download all of them.

    Clients that hold one of these models, such as their own, then hold its row. Under a budget clients keep models of
    different ages, which are not shared: a row would keep its whole matrix in memory.
    """
    names = {name for chosen in selected.values() for name in chosen}
    if len(names) < 3 or any(len(chosen) < len(names) - 1 for chosen in selected.values()):
        return
    models = list({id(tensor): tensor for tensor in tensors_in(server.state()) if tensor.dim() == 1}.values())
    kinds = {(model.shape, model.dtype, model.device) for model in models}
    if len(models) < 2 or len(kinds) > 1 or shared_matrix(models) is not None:
        return
    rows = dict(zip(map(id, models), stack(models, models[0]), strict=True))
    for party in (server, *clients):
        vars(party).update(map_tensors(party.state(), lambda tensor: rows.get(id(tensor), tensor)))
