"""All clients in this process, on a pool of workers.

A worker is a thread with a network of its own; PyTorch's arithmetic runs outside Python's global lock, so
clients train at the same time on different cores while they share data and core models in memory. Each worker
computes with one thread by default: a client's result then does not depend on how many workers there are.
"""

import os
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
from orchard.data.clients import DataDistribution, FederatedData
from orchard.engines.client_round import OnEvaluation, check_single_samples, run_client_round
from orchard.engines.engine import Selections
from orchard.engines.guards import check_keys, tensors_in
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
        self.distribution, self.data = data.distribution(), data.clients
        self.clients: list[Client] = []
        self.buffers: list[Mapping[str, Tensor]] = []
        self._models: dict[int, Model] = {}
        self._failed: set[int] = set()
        """Clients that failed in the last exchange."""
        self._worker = threading.local()
        # The server computes in this thread; its results must not depend on the number of cores either.
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(options.threads)
        self._pool = ThreadPoolExecutor(
            max_workers=min(options.workers or _cores(), len(self.data)),
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
        """Return more than half, if some diverge after a first round that went well; else all.

        Those go on from their last good state. Whoever fails in the first round, or by an error, would fail again.
        """
        diverged = all(isinstance(failure.error, NotFinite) and failure.round > 0 for failure in failures)
        return len(self.data) // 2 + 1 if diverged else len(self.data)

    def enrol(self) -> DataDistribution:
        """Return each client's samples by class."""
        return self.distribution

    def start(self, federation: Federation) -> Selections:
        """Make the clients; return what each selects for the first round."""
        self.federation = federation
        method = self.experiment.method
        self.clients = [method.client(i, federation) for i in range(federation.clients)]
        for client in self.clients:
            check_keys(client)
        probe = federation.network()
        self.data = tuple(client.to(probe.vector) for client in self.data)
        check_single_samples(probe, federation.shape, self.experiment, self.data)
        check_network(federation, self.data)
        self.buffers = [probe.buffers() for _ in self.clients]
        self.random_layers = draws_randomly(probe, federation.shape)
        declared = federation.traffic.down
        return {
            i: check_selected(client.select(0), declared, f"{type(client).__name__}.select()")
            for i, client in enumerate(self.clients)
        }

    def prepare(self, server: Server, selected: Selections) -> None:
        """Let server and clients share the models that all clients are about to download."""
        share(server, self.clients, selected)

    def exchange(self, downloads: dict[int, Download]) -> dict[int, ClientUpdate | Failure]:
        """Run all clients' rounds, starting with the one that has the most data."""
        clients = list(downloads)
        order = sorted(clients, key=lambda i: -len(self.data[i].train.y))
        rounds = {i: self._pool.submit(self._round, i, downloads.pop(i)) for i in order}
        updates = {i: rounds[i].result() for i in clients}
        self._failed = {i for i, update in updates.items() if isinstance(update, Failure)}
        if self.offloader:
            self.offloader.tidy()
        return_freed_memory()  # the last round's models are freed by now, and there are no new ones yet
        return updates

    def diagnostics(self) -> Sequence[Diagnostics]:
        """Return the clients' private figures, which a simulation may see."""
        return [client.diagnostics() for client in self.clients]

    def models(self) -> Iterator[Model]:
        """Yield each client's model as last evaluated at the method's own moment."""
        for i, client in enumerate(self.clients):
            if i in self._models:
                yield self._models[i]
            else:
                # Computed by a worker, since the number of threads affects the last bits.
                yield self._pool.submit(client.personalised).result(), self.buffers[i]
                self._offload(client)

    def state(self) -> list[dict[str, Any]]:
        """Return each client's state and buffers; and the last model of one that failed, which has no newer one."""
        states: list[dict[str, Any]] = []
        for i, (client, buffers) in enumerate(zip(self.clients, self.buffers, strict=True)):
            kept = {"model": self._models[i]} if i in self._failed and i in self._models else {}
            states.append({"client": client.state(), "buffers": dict(buffers), **kept})
        return states

    def restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Restore each client's state and buffers."""
        for i, (client, state) in enumerate(zip(self.clients, states, strict=True)):
            client.restore(state["client"])
            self.buffers[i] = state["buffers"]
            if "model" in state:
                self._failed.add(i)
                self._models[i] = state["model"]

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


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
