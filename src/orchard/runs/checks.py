"""Checks that save an hour: what is likely to go wrong in a run, said before it begins or after its first rounds.

A check returns a sentence with advice, or nothing. None draws random numbers or changes what is trained. Commands
print the sentences. `orchard.run` does not, since it is called in loops and by programs: there is `orchard.check`.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from orchard.core.federation import Federation
from orchard.core.models import MODELS
from orchard.core.vector import Network
from orchard.data.clients import FederatedData
from orchard.experiment import Experiment
from orchard.methods.fedbn import FedBN
from orchard.privacy.statement import before_a_run
from orchard.runs.result import Result
from orchard.runs.run import Data, define, load_data

FEW_TESTS = 20
"""With fewer test samples than this, one of them is more than five percent."""
SAMPLED = 256
"""So many samples of all clients, and moments of a signal, show how large features are; more would take time."""
LARGE, SMALL, OFF_CENTRE = 100.0, 0.01, 10.0
"""Features are far from standardised if their root mean square is above `LARGE`, if no value reaches `SMALL`, or if
their mean is above 1 and `OFF_CENTRE` deviations from 0. Zeros and ones, however rare, are none of that."""
TRIED = 8
"""Samples to try a network on."""
FIRST_ROUNDS = 5
MOVED = 0.01
"""A training loss that stays within this share of its first value in the first rounds has not moved."""
NAMES_SHOWN = 12

Check = Callable[[Experiment, FederatedData], str]


def check(experiment: Experiment | None = None, data: Data | None = None, **settings: Any) -> list[str]:
    """Return what is likely to go wrong with a run, each with advice; the arguments are those of `orchard.run`."""
    experiment, options, data = define(experiment, data, settings)
    return findings(experiment, load_data(experiment, data, options.data_dir))


def findings(experiment: Experiment, data: FederatedData, checks: Sequence[Check] | None = None) -> list[str]:
    """Return what the checks say, all of them unless some are named."""
    return list(filter(None, (one(experiment, data) for one in checks or (*OF_A_CLIENT, *OF_ALL_CLIENTS))))


# --- Before a run ---


def large_batches(experiment: Experiment, data: FederatedData) -> str:
    """Tell whether a batch is larger than most clients' training data."""
    sizes = data.sizes()["train"]
    small = sum(n < experiment.batch_size for n in sizes)
    if 2 * small <= len(sizes):
        return ""
    half = int(median(sizes))
    better = 1 << max(0, (half // 4).bit_length() - 1)  # a power of two; four batches or more
    return (
        f"batch_size = {experiment.batch_size}: is more than the training data of {_clients(small, len(sizes))} "
        f"(median: {half} samples), so that an epoch is a single step; try batch_size = {better}"
    )


def unscaled_features(experiment: Experiment, data: FederatedData) -> str:
    """Tell whether features, or channels of signals, are far from standardised; images are not looked at."""
    if len(data.shape) > 2:
        return ""
    each = -(-SAMPLED // len(data.clients))
    x = torch.cat([client.train.x[:each] for client in data.clients])
    columns = (x if x.dim() == 2 else x[:, :, :: -(-x.shape[2] // SAMPLED)].movedim(1, -1).flatten(0, 1)).double()
    mean, deviation = columns.mean(0), columns.std(0, correction=0)
    largest = columns.abs().amax(0)
    off_centre = (mean.abs() > OFF_CENTRE * deviation) & (mean.abs() > 1) & (deviation > 0)
    far = off_centre | (columns.square().mean(0).sqrt() > LARGE) | ((largest > 0) & (largest < SMALL))
    if not bool(far.any()):
        return ""
    first, kind = int(far.nonzero()[0]), "features" if x.dim() == 2 else "channels"
    return (
        f"{int(far.sum())} of {len(far)} {kind} are far from mean 0 and deviation 1 (number {first}: mean "
        f"{mean[first]:.3g}, deviation {deviation[first]:.3g}), with which training is slow or fails; standardise them"
    )


def probabilities_as_outputs(experiment: Experiment, data: FederatedData) -> str:
    """Tell whether a network of the user's own ends in a softmax or sigmoid, where the loss expects scores.

    Outputs between 0 and 1 may be chance. Those that stay there when the last layer is a thousand times as large are
    not.
    """
    if experiment.model in MODELS or data.task.name == "regression":
        return ""
    network = _federation(experiment, data).network()
    x = data.clients[0].train.x[:TRIED].to(network.vector, copy=True)  # the network may write into it
    outputs = _outputs(network, x)
    head = network.layout.part([network.layout.last_layer()])
    network.vector.copy_(head.replaced(network.vector, 1000 * head.of(network.vector)))
    if not _between_0_and_1(outputs) or not _between_0_and_1(_outputs(network, x)):
        return ""
    end = "softmax" if torch.allclose(outputs.sum(1), torch.ones(()).to(outputs), atol=1e-3) else "sigmoid"
    name = experiment.model_dump()["model"]
    return f"model = {name!r}: gives probabilities, but the loss expects scores; remove the {end} at its end"


def _outputs(network: Network, x: Tensor) -> Tensor:
    with torch.inference_mode():
        outputs: Tensor = network.module.eval()(x)
    return outputs


def _between_0_and_1(outputs: Tensor) -> bool:
    return bool(((outputs >= 0) & (outputs <= 1)).all()) and bool(outputs.any())


def nothing_normalised(experiment: Experiment, data: FederatedData) -> str:
    """Tell whether FedBN has nothing to keep, since the model has no normalisation layer."""
    if not isinstance(experiment.method, FedBN) or len(_federation(experiment, data).normalisation):
        return ""
    return (
        "method = 'fedbn': the model has no normalisation layers with parameters, so that this is fedavg-local; take a "
        "model that has some (BatchNorm, GroupNorm), or another method, e.g. fedper"
    )


def _federation(experiment: Experiment, data: FederatedData) -> Federation:
    return Federation(experiment, tuple(data.sizes()["train"]), data.shape, data.task)


def few_tests(experiment: Experiment, data: FederatedData) -> str:
    """Tell which clients have a small test part."""
    few = {client.name: len(client.test.y) for client in data.clients if len(client.test.y) < FEW_TESTS}
    if not few:
        return ""
    fewest = min(few, key=lambda name: few[name])
    return (
        f"fewer than {FEW_TESTS} test samples at {_clients(len(few), len(data.clients))} ({fewest} has {few[fewest]}): "
        "their own figures are coarse; trust means over clients and seeds"
    )


def classes_without_samples(experiment: Experiment, data: FederatedData) -> str:
    """Tell which classes no client has a training sample of."""
    counts = [sum(column) for column in zip(*(data.task.counts(c.train.y) for c in data.clients), strict=True)]
    missing = [name for name, count in zip(data.task.classes, counts, strict=True) if count == 0]
    if not missing:
        return ""
    some = ", ".join(missing[:NAMES_SHOWN]) + (", …" if len(missing) > NAMES_SHOWN else "")
    return (
        f"no training sample is of {len(missing)} of {len(counts)} classes ({some}), so that they are not learned; "
        "number labels from 0 without gaps, or use more of the data"
    )


def _clients(some: int, of: int) -> str:
    return "the client" if of == 1 else f"{some} of {of} clients"


def private_cost(experiment: Experiment, data: FederatedData) -> str:
    """Say what privacy each client has, and what that will likely cost."""
    if experiment.privacy is None:
        return ""
    parameters = _federation(experiment, data).parameters
    samples = {client.name: len(client.train.y) for client in data.clients}
    said = before_a_run(experiment, samples, parameters)
    if experiment.scale is not None or (data.task.scale() is None and data.preparations() is None):
        return said
    return f"{said}\n  not covered: exact means and deviations, by which numbers are standardised (see: scale)"


OF_A_CLIENT: tuple[Check, ...] = (
    private_cost,
    large_batches,
    unscaled_features,
    probabilities_as_outputs,
    nothing_normalised,
    few_tests,
)
"""What a site can say of itself and of the model."""
OF_ALL_CLIENTS: tuple[Check, ...] = (classes_without_samples,)


# --- After its first rounds ---


def unmoved_loss(result: Result) -> str:
    """Tell whether the mean training loss of the first rounds has not moved."""
    losses = [[loss for loss in round.loss if loss is not None] for round in result.rounds[:FIRST_ROUNDS]]
    if len(losses) < FIRST_ROUNDS or not all(losses):
        return ""
    means = [sum(values) / len(values) for values in losses]
    if not max(means) - min(means) < MOVED * abs(means[0]):
        return ""
    experiment = result.experiment
    said = f"the training loss has not moved by {100 * MOVED:.0f} % in the first {FIRST_ROUNDS} rounds"
    if experiment.method.name == "apple":
        remedy = "APPLE starts slowly; if it stays there, try --set method.initial=shared, or graft"
    else:
        remedy = (
            f"if it stays there, try a larger learning rate (lr = {experiment.lr:g}), or smaller batches "
            f"(batch_size = {experiment.batch_size})"
        )
    return f"{said} (it is {means[-1]:.4g}); {remedy}"
