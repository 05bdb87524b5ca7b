"""Membership inference: was this record trained on? Asked of as many records that were as of others.

    threshold   a record with a low loss ℓ was. S. Yeom, I. Giacomelli, M. Fredrikson and S. Jha, "Privacy Risk in
                Machine Learning", CSF 2018, https://arxiv.org/abs/1709.01604
    likelihood  N. Carlini, S. Chien, M. Nasr, S. Song, A. Terzis and F. Tramèr, "Membership Inference Attacks From
                First Principles", S&P 2022, https://arxiv.org/abs/2112.03570. The federation is run again several times
                ("shadows"); each record is trained on in half of these. With φ = log(p/(1 − p)), p = e^−ℓ, a record's
                score is log N(φ; μ_in, σ_in²) − log N(φ; μ_out, σ_out²): means of its own, deviations of all records,
                as that paper advises for a few shadows.

The second attacker knows all other records and can train as the federation does. An attack is a lower bound: who knows
a better one finds more.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from orchard.audit.canaries import joined, put_aside
from orchard.audit.statistics import Estimate, area, true_positives
from orchard.data.clients import FederatedData
from orchard.data.samples import Samples
from orchard.randomness import generator

RECORDS = 250
"""So many records that each client trained on are asked for, and as many others, at most."""
LOSSES = (1e-6, 30.0)
"""φ is finite for losses between these."""


@dataclass(frozen=True)
class Found:
    """How well members are told from others by one attack on what one party sees."""

    attack: str
    sees: str
    records: int
    """Members, and as many others."""
    auc: Estimate
    tpr: Estimate


@dataclass(frozen=True)
class Asked:
    """Of each client, the records asked for, the members first, and the rest of its training part."""

    records: list[Samples]
    rest: list[Samples]

    def members(self) -> Tensor:
        """Return who was trained on, one client after another."""
        return torch.cat([torch.arange(len(some.y)) < len(some.y) // 2 for some in self.records])


def asked_of(data: FederatedData, seed: int) -> Asked:
    """Choose as many members as others of each client; at least one member stays for every shadow to train on."""
    records, rest = list[Samples](), list[Samples]()
    for i, client in enumerate(data.clients):
        others, draw = put_aside(client), generator(seed, "records", i)
        several = min(len(client.train.y) - 1, len(others.y), RECORDS)
        mine, theirs = draw.permutation(len(client.train.y)), draw.permutation(len(others.y))
        records.append(joined(client.train.take(mine[:several]), others.take(theirs[:several])))
        rest.append(client.train.take(np.sort(mine[several:])))
    return Asked(records, rest)


def halves(records: int, shadows: int, seed: int) -> Tensor:
    """Return, shadows × records, who is trained on in which: every record in half of them."""
    draw = generator(seed, "shadows")
    order = np.array([draw.permutation(shadows) for _ in range(records)]).reshape(records, shadows)
    return torch.from_numpy(shadows // 2 > order.T)


def shadow_parts(asked: Asked, trained: Tensor) -> list[Samples]:
    """Return every client's training part in one shadow."""
    chosen = torch.split(trained, [len(some.y) for some in asked.records])
    found = zip(asked.rest, asked.records, chosen, strict=True)
    return [joined(rest, Samples(some.x[mask], some.y[mask])) for rest, some, mask in found]


def threshold_attack(losses: Tensor, members: Tensor, sees: str) -> Found:
    """Take records with a low loss for members."""
    return _found("threshold", sees, -losses, members)


def likelihood_attack(losses: Tensor, shadows: Tensor, trained: Tensor, members: Tensor, sees: str) -> Found:
    """Take records for members whose loss is rather that of the shadows that trained on them."""
    return _found("likelihood", sees, likelihood_ratio(losses, shadows, trained), members)


def likelihood_ratio(losses: Tensor, shadows: Tensor, trained: Tensor) -> Tensor:
    """Return each record's score, from the losses of the run and of the shadows (shadows × records)."""
    seen, tried = confidence(losses), confidence(shadows)
    score = torch.zeros_like(seen)
    for sign, mask in ((1, trained), (-1, ~trained)):
        mean = (tried * mask).sum(0) / mask.sum(0)
        freedom = mask.sum() - mask.shape[1]  # a mean of its own for every record
        spread = ((tried - mean).square() * mask).sum() / freedom if freedom > 0 else tried.var()
        variance = spread.clamp_min(1e-12)
        score -= sign * ((seen - mean).square() / (2 * variance) + variance.log() / 2)
    return score


def confidence(losses: Tensor) -> Tensor:
    """Return φ."""
    return -losses.double().clamp(*LOSSES).expm1().log()


def _found(attack: str, sees: str, scores: Tensor, members: Tensor) -> Found:
    mine, others = scores[members], scores[~members]
    return Found(attack, sees, len(mine), area(mine, others), true_positives(mine, others))
