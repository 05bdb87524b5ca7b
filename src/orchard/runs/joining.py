"""A client that was never in a federation learns from what a finished run has left.

The newcomer downloads from the server as it was after the last round, trains as any client of the method does, and
tells it what it would upload; the server answers with what it would get then, and keeps nothing. So nobody else's model
changes. Beside it, the newcomer trains alone for as many rounds, to see what joining is worth.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor, nn

from orchard.core.contract import Client, Diagnostics, Download, Server, Vectors, check_vectors
from orchard.core.evaluation import Scores, evaluate
from orchard.core.federation import Federation
from orchard.core.models import draws_randomly
from orchard.core.selftest import check_network
from orchard.core.training import ClientContext, NotFinite
from orchard.core.vector import Model
from orchard.data.clients import ClientData, FederatedData
from orchard.data.division import scaled
from orchard.data.site import site_data
from orchard.data.tables.scaling import Scaling
from orchard.engines.client_round import check_training, run_client_round
from orchard.engines.memory import Stacker
from orchard.errors import RunFailed, UserError
from orchard.experiment import Experiment
from orchard.method import MethodSettings, Moment
from orchard.methods.separate import Separate
from orchard.privacy.noise import Noise
from orchard.runs import JOIN_ROUNDS
from orchard.runs.offer import Offer
from orchard.runs.result import module_of

Progress = Callable[[], None]
"""Called after every round."""


@dataclass(frozen=True)
class Trained:
    """A model that the newcomer could use: of the round with its best validation score; under privacy the last."""

    model: Model
    round: int
    scores: Scores


@dataclass(frozen=True, repr=False)
class Joined:
    """What joining gave a newcomer, and what it would have had without."""

    federation: Federation
    """With the newcomer as its last client."""
    names: list[str]
    """Of the clients that it joins, and its own."""
    data: FederatedData
    """The newcomer's alone."""
    received: Scores
    """Of the model that it had before it trained."""
    joined: Trained
    alone: Trained
    diagnostics: Diagnostics
    """The newcomer's private figures after the last round, e.g. its directed relationships."""

    def __repr__(self) -> str:
        """Return what joining was worth, in a line."""
        task = self.federation.task
        score = task.measures[task.score]
        joined, alone = (score.text(one.scores.test[task.score]) for one in (self.joined, self.alone))
        method = self.federation.experiment.method.name
        return f"<Joined: {self.client.name}, method {method}, {score.title} {joined}, alone {alone}>"

    def module(self) -> nn.Module:
        """Return the newcomer's model as an ordinary module."""
        return module_of(self.federation, self.joined.model)

    @property
    def client(self) -> ClientData:
        """The newcomer's samples."""
        return self.data.clients[0]


def join(
    run: Path | str,
    data: Path | str,
    name: str = "newcomer",
    rounds: int = JOIN_ROUNDS,
    progress: Progress = lambda: None,
) -> Joined:
    """Let a newcomer with the data in a file or a folder learn from a finished run, or from what it offers."""
    offer = Offer.read(Path(run))
    if rounds < 1:
        raise UserError(f"rounds = {rounds}: at least one")
    if name in offer.clients:
        raise UserError(f"name = {name!r}: is one of the run's clients; choose another")
    newcomer, method = len(offer.clients), offer.experiment.method
    experiment = offer.experiment.model_copy(update={"rounds": rounds, "clients": newcomer + 1})
    held = _data(offer, experiment, Path(data), name)
    samples = (*offer.samples, len(held.clients[0].train.y))
    federation = Federation(experiment, samples, tuple(offer.shape), offer.task)
    context = _context(federation, held, newcomer)
    try:
        server = method.server(offer.federation())
        server.restore(offer.server)
        received = _received(method.client(newcomer, federation), server, context)
        client = method.client(newcomer, federation)
        joined = _trained(method, client, server, federation, context, progress)
        alone = replace(federation, experiment=experiment.model_copy(update={"method": Separate()}))
        by_itself = _trained(Separate(), Separate().client(newcomer, alone), Server(), alone, context, progress)
    except NotFinite as diverged:
        raise RunFailed(f"{name}: {diverged}; the run's learning rate may be too high for these data") from None
    except (ValueError, KeyError) as error:
        raise UserError(f"{run}: does not fit the code of {method.name}: {error}") from error
    names = [*offer.clients, name]
    return Joined(federation, names, held, received, joined, by_itself, client.diagnostics())


def _data(offer: Offer, experiment: Experiment, path: Path, name: str) -> FederatedData:
    """Return the newcomer's data, prepared as those of the run were."""
    data = site_data(path, name, len(offer.clients), offer.task, experiment, offer.table)
    if tuple(data.shape) != tuple(offer.shape):
        mine, theirs = ("×".join(map(str, shape)) for shape in (data.shape, offer.shape))
        raise UserError(f"{path}: a sample is {mine}, but {theirs} in the run")
    if data.unscaled is None:
        return data
    scaling = offer.scaling or Scaling.of(offer.shared_moments(), data.unscaled)
    return replace(data, clients=(scaled(data.clients[0], data.unscaled, scaling),), unscaled=None)


def _context(federation: Federation, data: FederatedData, newcomer: int) -> ClientContext:
    network = federation.network()
    held = data.clients[0].to(network.vector)
    check_training(network, federation.shape, federation.experiment, [held])
    check_network(federation, [held])
    random_layers = draws_randomly(network, federation.shape)
    return ClientContext(newcomer, federation.experiment, held, network, random_layers, Stacker())


def _received(client: Client, server: Server, context: ClientContext) -> Scores:
    """Return the scores of what a newcomer has before it trains."""
    client.receive(context, _download(client, server, context, 0, None))
    return evaluate(context, client.personalised())


def _download(client: Client, server: Server, context: ClientContext, round: int, upload: Vectors | None) -> Download:
    selected = client.select(round)
    sent = server.welcome(context.client, selected, upload)
    return Download(round, {name: sent[name] for name in selected})


def _trained(
    method: MethodSettings,
    client: Client,
    server: Server,
    federation: Federation,
    context: ClientContext,
    progress: Progress,
) -> Trained:
    """Train for all rounds against a server that stays as it is; return the model that does best in validation.

    Under privacy it is the last one: a choice by exact figures would be on no account.
    """
    experiment, score, declared = federation.experiment, federation.task.score, federation.traffic
    # A newcomer is somebody's own client: its noise is a secret, of this call alone.
    context = replace(context, experiment=experiment, noise=Noise.secret())
    context.network.load_buffers(federation.network().buffers())
    moment, models = newcomers_moment(method, server), dict[Moment, Model]()
    best: Trained | None = None

    def keep(at: Moment, model: Tensor) -> None:
        models[at] = (model.clone(), context.network.buffers())

    upload: Vectors | None = None
    for r in range(experiment.rounds + 1):  # in the last one it only evaluates
        download = _download(client, server, context, r, upload)
        check_vectors(download.vectors, declared.down, f"{type(server).__name__}.welcome()")
        update = run_client_round(client, context, download, declared, keep)
        upload = update.upload or upload
        scores: Scores | None = getattr(update, moment)
        if scores and (best is None or experiment.privacy or _value(scores, score) > _value(best.scores, score)):
            best = Trained(models[moment], r if moment == "after_training" else r - 1, scores)
        progress()
    if best is None:
        raise RunFailed(f"{method.name}: nothing was evaluated {moment.replace('_', ' ')}")
    return best


def newcomers_moment(method: MethodSettings, server: Server) -> Moment:
    """Return when a newcomer is evaluated: as the others were, or after training if the exchange changes nothing."""
    unchanging = type(server).welcome is Server.welcome
    return "after_training" if method.moment == "after_aggregation" and unchanging else method.moment


def _value(scores: Scores, score: str) -> float:
    value = scores.validation[score]
    return -math.inf if value is None or math.isnan(value) else value
