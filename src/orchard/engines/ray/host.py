"""A node's side: an actor with the clients that are placed there, which train as with the local engine."""

import pickle
import platform
import tempfile
import traceback
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import orchard
from orchard.core.contract import ClientUpdate, Diagnostics, Download, Failure
from orchard.core.federation import Federation
from orchard.data.clients import FederatedData
from orchard.engines.engine import Selections
from orchard.engines.guards import tensors_in
from orchard.engines.local import LocalEngine
from orchard.engines.machine import processor
from orchard.engines.offload import Offloader
from orchard.engines.pages import use_large_pages
from orchard.engines.ray.packing import (
    Packed,
    PackedState,
    Place,
    pack,
    pack_state,
    unpack_data,
    unpack_state,
    vectors_at,
)
from orchard.experiment import RunOptions


@dataclass(frozen=True)
class Answer:
    """What a client sends after its round: its update and, for the case that this node dies, its new state.

    Of the state only those tensors travel that the driver does not have: from before, as a download or as an upload.
    """

    update: ClientUpdate | Failure
    upload: Mapping[str, Packed]
    state: PackedState
    diagnostics: Diagnostics


def software() -> dict[str, str]:
    """Return what must be the same on all nodes."""
    versions = {"torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version()}
    return {"orchard": orchard.__version__, **versions}


class Host:
    """Some of the federation's clients, on one node."""

    def start(self, options: RunOptions, federation: tuple[Any, ...]) -> tuple[dict[str, str], str]:
        """Make an engine without clients; return this node's software and processor."""
        use_large_pages()
        experiment, samples, shape, task, moments = federation
        self.engine = LocalEngine(experiment, FederatedData((), task, shape), options)
        self.engine.start(Federation(experiment, samples, shape, task, options.device, moments))
        self._folder = tempfile.TemporaryDirectory(prefix="orchard-")
        self.offloader = Offloader(Path(self._folder.name))
        return software(), processor()

    def admit(
        self, data: Mapping[int, Any], states: Mapping[int, PackedState]
    ) -> tuple[Selections, dict[int, Diagnostics]]:
        """Make clients from their data, in the given states; return what they select for the first round."""
        import ray

        held = dict(zip(data, map(unpack_data, ray.get(list(data.values()))), strict=True))
        selected = self.engine.admit(held)
        self.restore(states)
        return selected, {i: self.engine.clients[i].diagnostics() for i in data}

    def restore(self, states: Mapping[int, PackedState]) -> None:
        """Restore clients."""
        for i, packed in states.items():
            self.engine.restore_client(i, unpack_state(packed, {}, self.engine.device))

    def round(
        self, number: int, places: Mapping[int, Mapping[str, Place]], arrays: Mapping[int, Any]
    ) -> dict[int, Answer]:
        """Run a round of some clients."""
        import ray

        refs = {key: array for key, array in arrays.items() if isinstance(array, ray.ObjectRef)}
        fetched = dict(zip(refs, ray.get(list(refs.values())), strict=True))
        vectors = vectors_at(places, {**arrays, **fetched}, self.engine.device)
        known: dict[int, dict[int, tuple[Hashable, ...]]] = {}
        before = {i: tensors_in(self.engine.client_state(i)) for i in places}
        for i, mine in vectors.items():
            known[i] = {id(tensor): ("before", k) for k, tensor in enumerate(before[i])}
            known[i] |= {id(vector): ("download", name) for name, vector in mine.items()}
        updates = self.engine.exchange({i: Download(number, mine) for i, mine in vectors.items()})
        answers: dict[int, Answer] = {}
        for i, update in updates.items():
            client, upload = self.engine.clients[i], {} if isinstance(update, Failure) else update.upload
            known[i] |= {id(vector): ("upload", name) for name, vector in upload.items()}
            sent = {name: pack(vector) for name, vector in upload.items()}
            state = pack_state(self.engine.client_state(i), known[i])
            bare = _portable(update) if isinstance(update, Failure) else replace(update, upload={})
            answers[i] = Answer(bare, sent, state, client.diagnostics())
            # Models that stay for long would fill the object store.
            vars(client).update(self.offloader.offload(client.state(), before[i]))
        self.offloader.tidy()
        return answers

    def model(self, client: int) -> PackedState:
        """Return a client's model as last evaluated at the method's own moment."""
        vector, buffers = self.engine.model(client)
        return pack_state([vector, dict(buffers)], {})

    def close(self) -> None:
        """Delete what is on this node's disk."""
        self._folder.cleanup()


def _portable(failure: Failure) -> Failure:
    """Return a failure whose error arrives whole, with the traceback as a note."""
    error = failure.error
    if error is None:
        return failure
    trace = "".join(traceback.format_exception(error))
    try:
        copy: Exception = pickle.loads(pickle.dumps(error))  # noqa: S301
    except Exception:
        copy = RuntimeError(f"{type(error).__name__}: {error}")
    copy.add_note(f"On the node:\n{trace}")
    return replace(failure, error=copy)
