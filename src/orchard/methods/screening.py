"""Models of others that a client leaves out of its mixture, for what they do to it on data that it does not train on.

Left out is a model much longer than most, on which training would diverge. Then, one after the other, the model without
which the validation loss is lowest, as long as that is lower by a tenth of the loss of guessing or more: this is a
defence against what wrecks a mixture, not a choice of the best one.
"""

import math
from collections.abc import Sequence
from statistics import median_low

import torch
from torch import Tensor

from orchard.core.evaluation import mean_loss
from orchard.core.training import ClientContext

LONGEST = 3.0
"""In medians of all models' lengths; honest ones differ by less than two."""
CLEARLY = 0.1


def spoilers(context: ClientContext, weights: Tensor, models: Sequence[Tensor], own: int) -> list[int]:
    """Return whose models to leave out of Σ_j weights_j·models_j; never the client's own."""
    lengths = [float(torch.linalg.vector_norm(model, dtype=torch.float64)) for model in models]
    most = LONGEST * median_low([length if math.isfinite(length) else math.inf for length in lengths])
    kept = [j for j, length in enumerate(lengths) if j == own or length <= most < math.inf]
    mixed = torch.zeros_like(models[own])
    for j in kept:
        mixed.addcmul_(models[j], weights[j])
    guess = context.network.task.guess_loss(context.data.train.y)
    loss = _loss(context, mixed)
    while len(kept) > 1:
        limit = loss - CLEARLY * max(guess, loss) if math.isfinite(loss) else math.inf
        without = {j: _loss(context, mixed - weights[j] * models[j], limit) for j in kept if j != own}
        worst = min(without, key=lambda j: without[j])
        if not without[worst] < limit:
            break
        kept.remove(worst)
        mixed, loss = mixed - weights[worst] * models[worst], without[worst]
    return [j for j in range(len(models)) if j not in kept]


def _loss(context: ClientContext, model: Tensor, limit: float = math.inf) -> float:
    loss = mean_loss(context.network, model, context.data.validation, limit)
    return math.inf if math.isnan(loss) else loss
