"""Repeat an experiment, and watch what the parties see: the downloads and uploads of every round, and the last models.

A record's loss is taken by every model that somebody sees, so that no model has to be kept:

    last          the client's last upload, as the server has it
    uploads       all its uploads, mean over rounds, as the server has them
    peers         what another client downloads: the upload itself if it is passed on, else what was made of all
    personalised  the client's own model at the end, which nobody is sent, but which may be handed out

Of methods that let only a part of a model travel, or nothing, the personalised model alone can be asked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from orchard.core.contract import ClientUpdate, Download, Failure, Vectors
from orchard.core.evaluation import outputs_of
from orchard.core.federation import Federation
from orchard.core.vector import Model, Network
from orchard.data.clients import FederatedData
from orchard.data.samples import Samples
from orchard.engines.local import LocalEngine
from orchard.errors import Stopped
from orchard.experiment import Experiment, RunOptions
from orchard.runs.loop import Stop, new_run, run_to_end
from orchard.runs.result import Result

Watch = Callable[[Federation, Mapping[int, Download], Mapping[int, ClientUpdate]], None]
"""Called after every exchange with what was sent to the clients and what they answered."""
Step = Callable[[], None]
"""Called after every exchange."""
Losses = dict[str, Tensor]
"""By who sees a model, the losses of all clients' records, one client after another."""
Buffers = Sequence[Mapping[str, Tensor]]
"""Of each client's network; nothing if only its vector is seen."""


class WatchedEngine(LocalEngine):
    """All clients in this process, with somebody who reads their messages."""

    watch: Watch

    def exchange(self, downloads: dict[int, Download]) -> dict[int, ClientUpdate | Failure]:
        """Exchange messages, and show them."""
        sent = dict(downloads)
        updates = super().exchange(downloads)
        answers = {i: update for i, update in updates.items() if isinstance(update, ClientUpdate)}
        self.watch(self.federation, sent, answers)
        return updates


def repeat(
    experiment: Experiment,
    data: FederatedData,
    options: RunOptions,
    watch: Watch,
    *,
    step: Step = lambda: None,
    stop: Stop | None = None,
    exchanges: int | None = None,
) -> tuple[Result, list[Model]]:
    """Run an experiment once more, or its first exchanges; return its figures and each client's last model."""
    done = 0

    def ended() -> bool:
        return (stop is not None and stop()) or done == exchanges

    def count(federation: Federation, sent: Mapping[int, Download], answers: Mapping[int, ClientUpdate]) -> None:
        nonlocal done
        done += 1
        watch(federation, sent, answers)
        step()

    with WatchedEngine(experiment, data, options) as engine:
        engine.watch = count
        run = new_run(experiment, engine, options)
        if not run_to_end(run, None, options, None, ended) and done != exchanges:
            raise Stopped("stopped; what was measured is kept, and the same command goes on from there")
        return run.result, [(model.clone(), buffers) for model, buffers in engine.models()]


def whole_model(vectors: Vectors, parameters: int) -> Tensor | None:
    """Return the model in an upload; None if only a part of one travels, or none."""
    return next((vector for vector in vectors.values() if len(vector) == parameters), None)


@dataclass
class Recorder:
    """Takes the losses of each client's records by all that is seen of it."""

    records: Sequence[Samples]
    compared: bool = False
    """Whether to tell each loss from that by the other clients' models, so that hard records do not look unknown."""
    network: Network | None = None
    taken: dict[str, list[dict[int, Tensor]]] = field(default_factory=dict)
    """By who sees a model, for each round, the losses of those clients' records that it tells of."""
    before: dict[int, Tensor] = field(default_factory=dict)
    """The last uploads."""

    def __call__(
        self, federation: Federation, sent: Mapping[int, Download], answers: Mapping[int, ClientUpdate]
    ) -> None:
        """Take the losses of a round."""
        if self.network is None:
            self.network = federation.network()
            self.records = [
                Samples(x.to(self.network.vector), y.to(self.network.vector.device)) for x, y in self.records
            ]
        self._add("peers", self._passed_on(federation, sent))
        models = {i: whole_model(answer.upload, federation.parameters) for i, answer in answers.items()}
        uploads = {i: model for i, model in models.items() if model is not None}
        if uploads:
            self._add("uploads", {i: [model] for i, model in uploads.items()})
            self.before = uploads

    def _passed_on(self, federation: Federation, sent: Mapping[int, Download]) -> dict[int, list[Tensor]]:
        """Return what the next client is sent of each client's last upload: the upload, or models made of all."""
        found = dict[int, list[Tensor]]()
        for i, upload in self.before.items() if federation.clients > 1 else ():
            peer = sent.get((i + 1) % federation.clients)
            models = [v for v in peer.vectors.values() if len(v) == federation.parameters] if peer else []
            same = [model for model in models if torch.equal(model, upload)]
            others = any(torch.equal(model, one) for model in models for one in self.before.values())
            if same or (models and not others):  # a peer that is sent others' uploads is not sent this one
                found[i] = same[:1] or models
        return found

    def _add(self, seen: str, models: Mapping[int, Sequence[Tensor]], buffers: Buffers = ()) -> None:
        losses = self._losses(models, buffers)
        self.taken.setdefault(seen, []).append(losses)
        if seen == "uploads":
            self.taken["last"] = [losses]

    def losses(self, models: Sequence[Model]) -> Losses:
        """Return all losses, with those by the clients' last models."""
        self._add("personalised", {i: [vector] for i, (vector, _) in enumerate(models)}, [own for _, own in models])
        clients = range(len(self.records))
        return {
            seen: torch.cat([_mean([losses[i] for losses in rounds if i in losses]) for i in clients]).cpu()
            for seen, rounds in self.taken.items()
            if all(any(i in losses for losses in rounds) for i in clients)
        }

    def _losses(self, models: Mapping[int, Sequence[Tensor]], buffers: Buffers = ()) -> dict[int, Tensor]:
        """Return the mean losses of each client's records by its models; less those by others' models, if asked."""
        assert self.network is not None  # noqa: S101  # made with the first exchange
        network = self.network

        def mean(i: int, owner: int) -> Tensor:
            if buffers:
                network.load_buffers(buffers[owner])
            return _mean([losses_of(network, model, self.records[i]) for model in models[owner]])

        found = {i: mean(i, i) for i in models}
        for i in models if self.compared else ():
            # Where all clients have the same model there is nothing to compare it with.
            if others := [mean(i, j) for j in models if not _same(models[i], models[j])]:
                found[i] = found[i] - _mean(others)
        return found


def _mean(losses: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(losses)).mean(0)


def _same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))


def losses_of(network: Network, model: Tensor, samples: Samples) -> Tensor:
    """Return each sample's loss, in float64."""
    outputs = outputs_of(network, model, samples.x).clone()  # an ordinary tensor
    task = network.task
    each: Tensor = torch.vmap(lambda output, y: task.loss(output[None], y[None], "sum"))(outputs, samples.y)
    return each.detach().double()


def trained_on(data: FederatedData, parts: Sequence[Samples]) -> FederatedData:
    """Return the data with other training parts."""
    clients = [replace(client, train=part) for client, part in zip(data.clients, parts, strict=True)]
    return replace(data, clients=tuple(clients))
