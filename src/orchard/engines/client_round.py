"""One client's round: the same steps wherever the client is."""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from torch import Tensor

from orchard.core.contract import Client, ClientUpdate, Download, check_selected, check_vectors
from orchard.core.evaluation import Scores, evaluate
from orchard.core.models import needs_two_samples, seeded_layers
from orchard.core.training import ClientContext, NotFinite
from orchard.core.vector import Network
from orchard.data.clients import ClientData
from orchard.engines.guards import StateGuard, tensors_in
from orchard.errors import UserError
from orchard.experiment import Experiment
from orchard.method import Moment, Traffic
from orchard.privacy.accounting import account_of
from orchard.privacy.models import check_private
from orchard.randomness import derived_seed

OnEvaluation = Callable[[Moment, Tensor], None]
"""Called with each model before it is evaluated, while the network still has the buffers that belong to it."""


def run_client_round(
    client: Client,
    context: ClientContext,
    download: Download,
    traffic: Traffic,
    on_evaluation: OnEvaluation = lambda moment, model: None,
) -> ClientUpdate:
    """Receive, evaluate what aggregation gave, train, evaluate what training gave, and return the update.

    The download after the last round is for evaluation only. After that, and after an error, the client is restored
    to its state from before. (Parties replace their state and never modify it in place.)
    """
    guard = StateGuard(client, download.vectors)
    seed = derived_seed(context.experiment.seed, "round", context.client, download.round)
    finished = False
    seen = context.guarded(download.round)
    try:
        context.network.private = seen.private
        with seeded_layers(seed) if context.random_layers else nullcontext():
            update = _steps(client, context, seen, download, on_evaluation)
        guard.check()
        if download.round < context.experiment.rounds:
            _check_traffic(client, update, traffic)
            _check_clones(client, context.network, [update.upload, client.state()])
            guard.end_round()
            finished = True
        return update
    finally:
        context.network.private = None
        if not finished:
            vars(client).clear()
            vars(client).update(guard.before)


def _steps(
    client: Client, context: ClientContext, seen: ClientContext, download: Download, on_evaluation: OnEvaluation
) -> ClientUpdate:
    """Take a round's steps; the client sees `seen`, which under privacy withholds its samples."""
    kind, own = type(client).__name__, context.experiment.method.moment

    def evaluated(moment: Moment, model: Tensor) -> Scores:
        _check_model(f"{kind}.{'finetune' if moment == 'after_finetuning' else 'personalised'}()", model, context)
        on_evaluation(moment, model)
        scores = evaluate(context, model)
        if seen.private is None:  # else a method could learn from figures that have no noise
            client.on_evaluated(moment, scores)
        return scores

    client.receive(seen, download)
    after_aggregation = after_finetuning = None
    if download.round > 0:
        after_aggregation = evaluated("after_aggregation", client.personalised())
        with context.network.preserved_buffers():  # the fine-tuned copy is discarded, and its changes to them too
            copy = client.finetune(seen, download.round)
            if copy is not None:
                after_finetuning = evaluated("after_finetuning", copy)
            elif own == "after_finetuning":
                raise TypeError(f"{kind}.finetune() returns None, but the method is evaluated after_finetuning")
    if download.round == context.experiment.rounds:
        return ClientUpdate({}, (), None, None, after_aggregation, after_finetuning)
    loss = client.train(seen, download.round)
    if not isinstance(loss, float):
        raise TypeError(f"{kind}.train() must return the mean training loss as a float, not {loss!r}")
    if not math.isfinite(loss):
        raise NotFinite("the mean training loss is not finite")
    if seen.private is not None:  # which the method has not seen
        loss = seen.private.mean_loss
    after_training = evaluated("after_training", client.personalised())
    selected = tuple(client.select(download.round + 1))
    return ClientUpdate(client.upload(), selected, loss, after_training, after_aggregation, after_finetuning)


def _check_model(source: str, model: object, context: ClientContext) -> None:
    """Raise if what is to be evaluated is not a model of the client's own."""
    like = context.network.vector
    if not isinstance(model, Tensor) or model.shape != like.shape:
        got = f"shape {tuple(model.shape)}" if isinstance(model, Tensor) else type(model).__name__
        raise TypeError(f"{source} must return a vector of length {len(like)}, not {got}")
    if _is_part_of(context.network, model):
        raise TypeError(f"{source} returns the network's own vector, which the next client overwrites: clone it")


def _check_traffic(client: Client, update: ClientUpdate, traffic: Traffic) -> None:
    """Raise if the client's upload or selection does not match what the method declares."""
    kind = type(client).__name__
    check_vectors(update.upload, traffic.up, f"{kind}.upload()")
    if missing := sorted(traffic.up.keys() - update.upload.keys()):
        raise TypeError(f"{kind}.upload() lacks {missing[0]!r}, which traffic() declares")
    check_selected(update.selected, traffic.down, f"{kind}.select()")


def _check_clones(client: Client, network: Network, kept: object) -> None:
    """Raise if the client keeps or uploads the network's own vector."""
    if any(_is_part_of(network, tensor) for tensor in tensors_in(kept)):
        kind = type(client).__name__
        raise TypeError(f"{kind} keeps or uploads the network's own vector, which the next client overwrites: clone it")


def _is_part_of(network: Network, tensor: Tensor) -> bool:
    own = {t.untyped_storage().data_ptr() for t in (network.vector, network.gradient)}
    return tensor.numel() > 0 and tensor.untyped_storage().data_ptr() in own


def check_training(
    network: Network, shape: tuple[int, ...], experiment: Experiment, clients: Sequence[ClientData]
) -> None:
    """Raise if the model cannot be trained as it is to be: privately, or on a last batch of one sample."""
    if experiment.privacy is not None:
        check_private(network, shape)
        for client in clients:
            account_of(experiment, len(client.train.y))  # takes a second at first, and is then known
        return
    size = experiment.batch_size
    alone = [client.name for client in clients if size == 1 or len(client.train.y) % size == 1]
    if alone and needs_two_samples(network, shape):
        raise UserError(
            f"batch_size = {size}: leaves a last batch of one sample for {', '.join(alone)}, "
            "on which this model cannot train (BatchNorm?); choose another batch size"
        )
