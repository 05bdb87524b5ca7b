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

from orchard.contract import Answer, Client, Enrolment, Failure, Federation, Notes, Reply, kept_by
from orchard.data import ClientData, FederatedData
from orchard.engines.turn import Keep, take_turn
from orchard.errors import Refusal
from orchard.experiment import Experiment, Moment
from orchard.models import draws_randomly, needs_two_samples
from orchard.shelf import Shelf, tensors_in
from orchard.training import NotFinite, Site
from orchard.vector import Network

Model = tuple[Tensor, dict[str, Tensor]]
"""A model's vector, and the buffers of the client it belongs to."""


class LocalEngine:
    """Runs the client halves of a federation in this process; close it when done.

    With a shelf, what clients keep for long lies there; without one all of it is in memory.
    """

    def __init__(self, experiment: Experiment, data: FederatedData, shelf: Shelf | None = None) -> None:
        self.experiment = experiment
        self.shelf = shelf
        self.shape, self.classes = data.shape, len(data.classes)
        self.data = data.clients
        self.clients: list[Client] = []
        self.buffers: list[dict[str, Tensor]] = []
        self._models: dict[int, Model] = {}
        self._worker = threading.local()
        # The server's work in this thread too: its last bits then do not depend on the number of cores.
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(experiment.threads)
        self._pool = ThreadPoolExecutor(
            max_workers=min(experiment.workers or _cores(), len(self.data)),
            thread_name_prefix="orchard",
            initializer=torch.set_num_threads,
            initargs=(experiment.threads,),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        torch.set_num_threads(self._threads_before)

    def enrol(self) -> Sequence[Enrolment]:
        """Say what each client brings."""
        return [Enrolment(len(client.train.y), self.shape, self.classes) for client in self.data]

    def start(self, federation: Federation) -> dict[int, tuple[int, ...]]:
        """Make the client halves; return what each wants in the first round."""
        self.federation = federation
        method = self.experiment.method
        self.clients = [method.client(i, federation) for i in range(federation.clients)]
        probe = federation.network()
        self.data = tuple(client.beside(probe.vector) for client in self.data)
        refuse_single_samples(probe, self.shape, self.experiment, self.data)
        self.buffers = [probe.buffers() for _ in self.clients]
        self.random_layers = draws_randomly(probe, self.shape)
        return {i: client.wants(0) for i, client in enumerate(self.clients)}

    def exchange(self, replies: Mapping[int, Reply]) -> dict[int, Answer | Failure]:
        """Let all clients take their turns, the one with the most data first so that none is left to wait for."""
        order = sorted(replies, key=lambda i: -len(self.data[i].train.y))
        turns = {i: self._pool.submit(self._turn, i, replies[i]) for i in order}
        answers = {i: turns[i].result() for i in replies}
        if self.shelf:
            self.shelf.tidy()
        return answers

    def notes(self) -> Sequence[Notes]:
        """Look at the clients' private figures: this is a simulation."""
        return [client.notes() for client in self.clients]

    def models(self) -> Iterator[Model]:
        """Yield each client's model as it was last measured at the method's own moment."""
        if self.experiment.method.moment == "trained":
            # What a client has trained is its model until its next turn, so it is made when asked for, and not held
            # besides: by a worker, whose number of threads decides the last bits.
            for client, buffers in zip(self.clients, self.buffers, strict=True):
                yield self._pool.submit(client.personalised).result(), buffers
                self._lay_down(client)
        else:
            yield from (self._models[i] for i in sorted(self._models))

    def state(self) -> list[dict[str, Any]]:
        """Return all that each client remembers."""
        halves = zip(self.clients, self.buffers, strict=True)
        return [{"half": client.state(), "buffers": buffers} for client, buffers in halves]

    def restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Take over what the clients remembered; what they had just trained is their model again."""
        for i, (client, state) in enumerate(zip(self.clients, states, strict=True)):
            client.restore(state["half"])
            self.buffers[i] = state["buffers"]

    def _keeper(self, index: int, network: Network) -> Keep:
        """Keep the model that the round's figures are about, if the client itself does not."""

        def keep(moment: Moment, model: Tensor) -> None:
            if moment == self.experiment.method.moment != "trained":
                self._models[index] = (model, network.buffers())

        return keep

    def _turn(self, index: int, reply: Reply) -> Answer | Failure:
        try:
            network = self._network()
            network.load_buffers(self.buffers[index])
            site = Site(index, self.experiment, self.data[index], network, self.random_layers)
            client, before = self.clients[index], tensors_in(kept_by(self.clients[index]))
            answer = take_turn(client, site, reply, self._keeper(index, network))
            if reply.round < self.experiment.rounds:
                self.buffers[index] = network.buffers()
                self._lay_down(client, before)
            else:
                self._lay_down(client)
            return answer
        except Exception as error:
            return Failure(f"{self.data[index].name}, round {reply.round}: {_reason(error)}", error)

    def _lay_down(self, client: Client, before: Sequence[Tensor] = ()) -> None:
        if self.shelf:
            vars(client).update(self.shelf.lay_down(kept_by(client), before))

    def _network(self) -> Network:
        """Return this worker's own network."""
        if not hasattr(self._worker, "network"):
            self._worker.network = self.federation.network()
        network: Network = self._worker.network
        return network


def refuse_single_samples(
    network: Network, shape: tuple[int, ...], experiment: Experiment, clients: Sequence[ClientData]
) -> None:
    """Refuse a last batch of one sample where the model, like one with BatchNorm, cannot train on it."""
    size = experiment.batch_size
    alone = [client.name for client in clients if size == 1 or len(client.train.y) % size == 1]
    if alone and needs_two_samples(network, shape):
        raise Refusal(
            f"batch_size = {size}: leaves a last batch of one sample for {', '.join(alone)}, "
            "on which this model cannot train (BatchNorm?); choose another batch size"
        )


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, NotFinite) else f"{type(error).__name__}: {error}"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
