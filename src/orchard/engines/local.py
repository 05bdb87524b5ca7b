"""All clients in this process, on a pool of workers.

A worker is a thread with a network of its own; PyTorch's arithmetic runs outside Python's global lock, so
clients train at the same time on different cores while they share data and core models in memory. Each worker
computes with one thread by default: a client's result then does not depend on how many workers there are.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from orchard.core.contract import Client, ClientUpdate, Diagnostics, Download, Failure, Server, check_selected
from orchard.core.federation import Federation
from orchard.core.models import draws_randomly
from orchard.core.selftest import check_network
from orchard.core.training import ClientContext, NotFinite
from orchard.core.vector import Model, Network
from orchard.data.clients import ClientData, DataDistribution, FederatedData
from orchard.engines.client_round import OnEvaluation, check_training, run_client_round
from orchard.engines.engine import Selections
from orchard.engines.guards import check_keys, tensors_in
from orchard.engines.machine import cores
from orchard.engines.memory import Stacker, return_freed_memory, share
from orchard.engines.offload import Offloader
from orchard.experiment import Experiment, RunOptions
from orchard.method import Moment


class LocalEngine:
    """Runs the clients of a federation in this process. Use it as a context manager.

    With an offloader, models that clients keep for long go to disk; without one they stay in memory.
    """

    def __init__(
        self, experiment: Experiment, data: FederatedData, options: RunOptions, offloader: Offloader | None = None
    ) -> None:
        self.experiment, self.device, self.offloader = experiment, options.device, offloader
        self.distribution = data.distribution()
        self.data = dict(enumerate(data.clients))
        self.clients: dict[int, Client] = {}
        self.buffers: dict[int, Mapping[str, Tensor]] = {}
        self._models: dict[int, Model] = {}
        self._failed: set[int] = set()
        """Clients that failed in the last exchange."""
        self._worker = threading.local()
        # The server computes in this thread; its results must not depend on the number of cores either.
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(options.threads)
        self._pool = ThreadPoolExecutor(
            max_workers=options.workers or cores(),
            thread_name_prefix="orchard",
            initializer=torch.set_num_threads,
            initargs=(options.threads,),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        torch.set_num_threads(self._threads_before)

    def quorum(self, failures: Sequence[Failure]) -> int:
        """Return how many of all must answer: see `quorum_of`."""
        return quorum_of(len(self.data), failures)

    def enrol(self) -> DataDistribution:
        """Return each client's samples by class."""
        return self.distribution

    def start(self, federation: Federation) -> Selections:
        """Make the clients; return what each selects for the first round."""
        self.federation = federation
        selected = self.admit(self.data)
        if self.data:
            check_network(federation, list(self.data.values()))
        return selected

    def admit(self, data: Mapping[int, ClientData]) -> Selections:
        """Make some of the federation's clients; return what each selects for the first round."""
        federation = self.federation
        made = {i: self.experiment.method.client(i, federation) for i in data}
        for client in made.values():
            check_keys(client)
        probe = federation.network()
        self.data |= {i: held.to(probe.vector) for i, held in data.items()}
        check_training(probe, federation.shape, self.experiment, [self.data[i] for i in made])
        self.clients |= made
        self.buffers |= {i: probe.buffers() for i in made}
        self.random_layers = draws_randomly(probe, federation.shape)
        declared = federation.traffic.down
        return {
            i: check_selected(client.select(0), declared, f"{type(client).__name__}.select()")
            for i, client in made.items()
        }

    def prepare(self, server: Server, selected: Selections) -> None:
        """Let server and clients share the models that all clients are about to download."""
        share(server, list(self.clients.values()), selected)

    def exchange(self, downloads: dict[int, Download]) -> dict[int, ClientUpdate | Failure]:
        """Run all clients' rounds, starting with the one that has the most data."""
        clients = list(downloads)
        order = sorted(clients, key=lambda i: -len(self.data[i].train.y))
        rounds = {i: self._pool.submit(self._round, i, downloads.pop(i)) for i in order}
        updates = {i: rounds[i].result() for i in clients}
        self._failed -= updates.keys()
        self._failed |= {i for i, update in updates.items() if isinstance(update, Failure)}
        if self.offloader:
            self.offloader.tidy()
        return_freed_memory()  # the last round's models are freed by now, and there are no new ones yet
        return updates

    def diagnostics(self) -> Sequence[Diagnostics]:
        """Return the clients' private figures, which a simulation may see."""
        return [client.diagnostics() for client in self.clients.values()]

    def models(self) -> Iterator[Model]:
        """Yield each client's model as last evaluated at the method's own moment."""
        for i, client in self.clients.items():
            yield self.model(i)
            if i not in self._models:
                self._offload(client)

    def model(self, index: int) -> Model:
        """Return a client's model as last evaluated at the method's own moment."""
        if index in self._models:
            return self._models[index]
        # Computed by a worker, since the number of threads affects the last bits.
        return self._pool.submit(self.clients[index].personalised).result(), self.buffers[index]

    def state(self) -> list[dict[str, Any]]:
        """Return each client's state and buffers; and the last model of one that failed, which has no newer one."""
        return [self.client_state(i) for i in self.clients]

    def client_state(self, index: int) -> dict[str, Any]:
        """Return the same of one client."""
        kept = {"model": self._models[index]} if index in self._failed and index in self._models else {}
        return {"client": self.clients[index].state(), "buffers": dict(self.buffers[index]), **kept}

    def restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Restore each client's state and buffers."""
        for i, state in zip(list(self.clients), states, strict=True):
            self.restore_client(i, state)

    def restore_client(self, index: int, state: Mapping[str, Any]) -> None:
        """Restore one client."""
        self.clients[index].restore(state["client"])
        self.buffers[index] = state["buffers"]
        if "model" in state:
            self._failed.add(index)
            self._models[index] = state["model"]

    def _keeper(self, index: int, network: Network) -> OnEvaluation:
        """Return a callback that keeps the model that the round's figures are about."""

        def keep(moment: Moment, model: Tensor) -> None:
            if moment == self.experiment.method.moment:
                self._models[index] = (model, network.buffers())

        return keep

    def _drop_repeatable(self, index: int) -> None:
        """Drop the kept model if the client's state gives the same again, as with APPLE under a budget."""
        client, own = self.clients[index], self.experiment.method.moment
        repeatable = own == "after_training" and not client.round_keys
        if repeatable and torch.equal(client.personalised(), self._models[index][0]):
            del self._models[index]

    def _round(self, index: int, download: Download) -> ClientUpdate | Failure:
        try:
            client, network = self.clients[index], self._network()
            network.load_buffers(self.buffers[index])
            context = ClientContext(
                index, self.experiment, self.data[index], network, self.random_layers, self._worker.stacker
            )
            before = tensors_in(client.state())
            update = run_client_round(client, context, download, self.federation.traffic, self._keeper(index, network))
            if download.round < self.experiment.rounds:
                self.buffers[index] = network.buffers()
                self._drop_repeatable(index)
                self._offload(client, before)
            else:
                self._offload(client)
            return update
        except Exception as error:
            return Failure(self.data[index].name, download.round, _reason(error), error)

    def _offload(self, client: Client, before: Sequence[Tensor] = ()) -> None:
        if self.offloader:
            vars(client).update(self.offloader.offload(client.state(), before))

    def _network(self) -> Network:
        """Return this worker's own network."""
        if not hasattr(self._worker, "network"):
            self._worker.network, self._worker.stacker = self.federation.network(), Stacker()
        network: Network = self._worker.network
        return network


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, NotFinite) else f"{type(error).__name__}: {error}"


def quorum_of(clients: int, failures: Sequence[Failure]) -> int:
    """Return more than half, if some diverge after a first round that went well; else all.

    Those go on from their last good state. Whoever fails in the first round, or by an error, would fail again.
    """
    diverged = all(isinstance(failure.error, NotFinite) and failure.round > 0 for failure in failures)
    return clients // 2 + 1 if diverged else clients
