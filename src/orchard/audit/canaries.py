"""Canaries: records that nobody else has, each trained on with probability ½, and guessed afterwards.

A canary is a sample that its client has put aside (of the validation and test parts) with the target of another one:
a wrong one, which is learned by heart or not at all. It was trained on if its client's models know it better than the
other clients' do. The coins are the only thing that is guessed, so what follows for ε holds whatever the canaries are.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from orchard.data.clients import ClientData, FederatedData
from orchard.data.samples import Samples
from orchard.randomness import generator

DRAWS = 20
"""How often another target is looked for."""


@dataclass(frozen=True)
class Canaries:
    """Every client's canaries, and the coins."""

    samples: list[Samples]
    included: list[Tensor]

    def coins(self) -> Tensor:
        """Return which canaries were trained on, one client after another."""
        return torch.cat(self.included)

    def training_parts(self, data: FederatedData) -> list[Samples]:
        """Return every client's training part with the canaries that are trained on."""
        found = zip(data.clients, self.samples, self.included, strict=True)
        return [joined(client.train, Samples(*(part[coins] for part in some))) for client, some, coins in found]


def joined(*parts: Samples) -> Samples:
    """Return samples one after another."""
    return Samples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))


def put_aside(client: ClientData) -> Samples:
    """Return the samples that a client does not train on."""
    return joined(client.validation, client.test)


def canaries_of(data: FederatedData, count: int, seed: int) -> Canaries:
    """Make canaries, for each client as many as fit its share of the training samples, and throw the coins."""
    sizes = data.sizes()["train"]
    targets = torch.cat([client.train.y for client in data.clients])
    samples, included = list[Samples](), list[Tensor]()
    for i, client in enumerate(data.clients):
        draw, held = generator(seed, "canaries", i), put_aside(client)
        several = min(len(held.y), max(1, round(count * sizes[i] / sum(sizes))))
        chosen = held.take(draw.permutation(len(held.y))[:several])
        samples.append(Samples(chosen.x, _others(chosen.y, targets, draw)))
        included.append(torch.from_numpy(draw.random(several) < 0.5))
    return Canaries(samples, included)


def _others(own: Tensor, targets: Tensor, draw: np.random.Generator) -> Tensor:
    """Return for each target another one, of any client."""
    found = own
    for _ in range(DRAWS):
        same = (found == own).flatten(1).all(1) if own.dim() > 1 else found == own
        drawn = targets[torch.from_numpy(draw.integers(len(targets), size=len(own)))]
        found = torch.where(same.reshape(-1, *[1] * (own.dim() - 1)), drawn, found)
    return found
