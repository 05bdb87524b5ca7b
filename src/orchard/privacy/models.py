"""Which networks can be trained privately: those in which no sample leaves a mark but by its own gradient."""

from typing import TYPE_CHECKING

import torch
from torch import nn

from orchard.errors import UserError
from orchard.privacy.gradients import TRIED, in_general, way_for

if TYPE_CHECKING:
    from orchard.core.vector import Network

BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def check_private(network: "Network", shape: tuple[int, ...]) -> None:
    """Raise if a network mixes samples, remembers them, or cannot be differentiated sample by sample."""
    for name, layer in network.module.named_modules():
        if isinstance(layer, BATCH_NORM):
            raise UserError(
                f"[privacy]: the model's layer {name!r} is BatchNorm, which mixes the samples of a batch and keeps "
                "their means; take GroupNorm, e.g. nn.GroupNorm(8, channels)"
            )
    with in_general(network) as numbers, network.preserved_buffers(), torch.no_grad():
        x, others = 3 * torch.randn((2, TRIED, *shape), generator=numbers).to(network.vector)
        before = network.buffers()
        first = network.module.eval()(x)
        for training in (True, False):
            network.module.train(training)(others)
        changed = [name for name, b in network.module.named_buffers() if not torch.equal(b, before[name])]
        together, alone = network.module(x), torch.cat([network.module(one) for one in torch.split(x, 1)])
        network.module.train()
    if changed:
        raise UserError(f"[privacy]: a sample changes the model's buffer {changed[0]!r}, which would have no noise")
    try:
        network.per_sample = way_for(network, shape)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"[privacy]: the model cannot be differentiated sample by sample: {reason}") from None
    rounding = 1e-4 * float(alone.nan_to_num().abs().max())
    if not torch.allclose(together, first, rtol=1e-3, atol=rounding, equal_nan=True):
        raise UserError("[privacy]: what the model says of a sample depends on which it saw before (or on chance)")
    if not torch.allclose(together, alone, rtol=1e-3, atol=rounding, equal_nan=True):
        raise UserError(
            "[privacy]: what the model says of a sample depends on which others are in its batch (or on chance), also "
            "in evaluation; one record would show in the losses of all"
        )
