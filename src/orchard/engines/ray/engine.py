"""The driver's side: the server is here, and each client on a node of the cluster, where its data stay.

A round's vectors enter the object store once and travel once to every node that needs them, not once per client. What
a client remembers is here too after every round: it is what checkpoints hold, and what a client of a lost node goes on
from elsewhere.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from orchard.core.contract import ClientUpdate, Diagnostics, Download, Failure, Party, Server
from orchard.core.federation import Federation
from orchard.core.selftest import check_network
from orchard.core.vector import Model
from orchard.data.clients import DataDistribution, FederatedData
from orchard.engines.engine import Selections
from orchard.engines.guards import check_keys, tensors_in
from orchard.engines.local import quorum_of
from orchard.engines.memory import return_freed_memory, share
from orchard.engines.offload import Offloader
from orchard.engines.ray.cluster import join
from orchard.engines.ray.host import Answer
from orchard.engines.ray.packing import Place, pack_state, place_vectors, unpack, unpack_state
from orchard.engines.ray.placement import Placed, Placement
from orchard.errors import RunFailed
from orchard.experiment import Experiment, RunOptions

SMALL = 1 << 16
"""Bytes of a vector that travels with the call: in the object store it would cost more."""


class Kept(Party):
    """What a client remembers, and its buffers, as of the last round."""

    state_keys = ("state_and_buffers",)

    def __init__(self, state_and_buffers: dict[str, Any]) -> None:
        self.state_and_buffers = state_and_buffers


@dataclass(frozen=True)
class Sent:
    """A round as it was sent, to be repeated for clients whose node is lost."""

    round: int
    places: Mapping[int, Mapping[str, Place]]
    arrays: Mapping[int, Any]
    """Object references; small arrays themselves."""
    states: Mapping[int, dict[str, Any]]
    """What each client remembered before the round."""


class RayEngine:
    """Runs the clients of a federation on a Ray cluster. Use it as a context manager."""

    def __init__(
        self, experiment: Experiment, data: FederatedData, options: RunOptions, offloader: Offloader | None = None
    ) -> None:
        join(options.address)
        self.experiment, self.offloader = experiment, offloader
        self.distribution = data.distribution()
        self._largest = max(data.clients, key=lambda client: len(client.train.y))
        self.placement = Placement(data, options)
        self.kept: dict[int, Kept] = {}
        self._diagnostics: dict[int, Diagnostics] = {}
        self._sent: Sent | None = None
        # The server computes in this thread, with as many threads as with the local engine.
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(options.threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.set_num_threads(self._threads_before)
        self.placement.close()

    def quorum(self, failures: Sequence[Failure]) -> int:
        """Return how many of all must answer, as with the local engine; a lost node is another matter."""
        return quorum_of(len(self.distribution.clients), failures)

    def enrol(self) -> DataDistribution:
        """Return each client's samples by class."""
        return self.distribution

    def start(self, federation: Federation) -> Selections:
        """Make the clients on their nodes; return what each selects for the first round."""
        network = federation.network()
        check_network(federation, [self._largest.to(network.vector)])
        buffers = network.buffers()
        for i in range(federation.clients):
            client = self.experiment.method.client(i, federation)
            check_keys(client)
            self.kept[i] = Kept({"client": client.state(), "buffers": dict(buffers)})
        selected, self._diagnostics = self.placement.start(federation)
        return selected

    def prepare(self, server: Server, selected: Selections) -> None:
        """Let the server, and what is kept here of clients, share the models that all clients are about to download."""
        share(server, list(self.kept.values()), selected)

    def exchange(self, downloads: dict[int, Download]) -> dict[int, ClientUpdate | Failure]:
        """Run all clients' rounds on their nodes; those of a node that dies are repeated on others."""
        vectors = {i: download.vectors for i, download in downloads.items()}
        self._sent = None  # frees the last round's objects
        self._sent = self._put(next(iter(downloads.values())).round, vectors)
        downloads.clear()
        updates: dict[int, ClientUpdate | Failure] = {}
        for i, answer in self._answers(self._sent, vectors).items():
            updates[i] = self._taken(i, answer, vectors[i])
        if self.offloader:
            self.offloader.tidy()
        return_freed_memory()
        return {i: updates[i] for i in vectors}

    def diagnostics(self) -> Sequence[Diagnostics]:
        """Return the clients' private figures, which a simulation may see."""
        return [self._diagnostics[i] for i in self.kept]

    def models(self) -> Iterator[Model]:
        """Yield each client's model as last evaluated at the method's own moment."""
        for i in self.kept:
            vector, buffers = unpack_state(self._model(i), {})
            yield vector, buffers

    def state(self) -> list[dict[str, Any]]:
        """Return each client's state and buffers."""
        return [self.kept[i].state_and_buffers for i in self.kept]

    def restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Restore each client's state and buffers."""
        for i, state in zip(list(self.kept), states, strict=True):
            known = self.kept[i].state_and_buffers["client"]
            if set(state["client"]) != set(known):
                raise ValueError(f"a client has the state {sorted(known)}, not {sorted(state['client'])}")
            self.kept[i] = Kept(dict(state))
        now = {i: kept.state_and_buffers for i, kept in self.kept.items()}

        def restore(host: Placed) -> Any:
            return host.actor.restore.remote({i: pack_state(now[i], {}) for i in host.clients})

        _, lost = self.placement.call(restore, self.placement.hosts)
        if lost:
            self.placement.replace(lost, now, "while clients were restored")

    # --- Messages ---

    def _put(self, number: int, vectors: Mapping[int, Mapping[str, Tensor]]) -> Sent:
        """Put a round's vectors into the object store, each once."""
        import ray

        places, packed = place_vectors(vectors)
        arrays = {key: it if it.array.nbytes < SMALL else ray.put(it) for key, it in packed.items()}
        return Sent(number, places, arrays, {i: kept.state_and_buffers for i, kept in self.kept.items()})

    def _answers(self, sent: Sent, clients: Iterable[int]) -> dict[int, Answer]:
        """Return the answers of clients; where a node is lost, repeat the round for its clients on others."""
        answers: dict[int, Answer] = {}
        missing = set(clients)
        while asked := missing & sent.places.keys():

            def ask(host: Placed, asked: Set[int] = asked) -> Any:
                mine = {i: sent.places[i] for i in host.clients if i in asked}
                keys = {place.key for places in mine.values() for place in places.values()}
                return host.actor.round.remote(sent.round, mine, {key: sent.arrays[key] for key in keys})

            found, lost = self.placement.call(ask, self.placement.having(asked))
            for theirs in found.values():
                answers |= theirs
                missing -= theirs.keys()
            if lost:  # those who had answered already are again as they were before, and answer again
                missing |= self.placement.replace(lost, sent.states, f"round {sent.round + 1}")
        self.placement.losses = 0
        return answers

    def _taken(self, i: int, answer: Answer, vectors: Mapping[str, Tensor]) -> ClientUpdate | Failure:
        """Keep what a client remembers now; return its update."""
        upload = {name: unpack(packed).clone() for name, packed in answer.upload.items()}
        before = tensors_in(self.kept[i].state_and_buffers)
        known: dict[tuple[Any, ...], Tensor] = {("before", k): tensor for k, tensor in enumerate(before)}
        known |= {("download", name): vector for name, vector in vectors.items()}
        known |= {("upload", name): vector for name, vector in upload.items()}
        now = unpack_state(answer.state, known)
        self.kept[i] = Kept(self.offloader.offload(now, before) if self.offloader else now)
        self._diagnostics[i] = answer.diagnostics
        return answer.update if isinstance(answer.update, Failure) else replace(answer.update, upload=upload)

    def _model(self, i: int) -> Any:
        """Return a client's model from its node; if that is lost, after its last round was repeated elsewhere."""
        while True:
            (host,) = self.placement.having([i])
            found, lost = self.placement.call(lambda host: host.actor.model.remote(i), [host])
            if not lost:
                return found[host]
            if self._sent is None:
                raise RunFailed("a node was lost before the first round")
            again = self.placement.replace(lost, self._sent.states, f"after round {self._sent.round + 1}")
            self._answers(self._sent, again)
