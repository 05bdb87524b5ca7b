"""What a client's list of wanted models tells about its relationships, which never leave it.

Under a budget a client asks for some of the others' models each round, by name, and rather for those that help it. The
server counts who is asked for how often. Where all models are asked for, the list tells nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

import torch
from torch import Tensor

from orchard.core.contract import Vectors
from orchard.runs.result import Result

Lists = Sequence[Sequence[Sequence[int]]]
"""Rounds × clients: whose models were asked for."""


@dataclass(frozen=True)
class Wanted:
    """How much the lists tell, over clients."""

    clients: int
    most_wanted_is_strongest: int
    """Of how many clients whoever is asked for most is the strongest relationship (in absolute value)."""
    rank_correlation: float | None
    """Spearman's, of counts and strengths, mean over clients; None if nobody's counts differ."""


def wanted(lists: Lists, result: Result) -> Wanted | None:
    """Compare how often models were asked for with the last relationships; None if there are no lists or none."""
    relationships = result.relationships
    if relationships is None or not lists:
        return None
    strengths = torch.from_numpy(relationships[-1])
    n = len(strengths)
    counts = torch.zeros(n, n, dtype=torch.float64)
    for by_client in lists:
        for i, names in enumerate(by_client):
            counts[i, list(names)] += 1
    others = ~torch.eye(n, dtype=torch.bool)
    if n < 3 or all(bool((counts[i][others[i]] == counts[i][others[i]][0]).all()) for i in range(n)):
        return None
    hits, correlations = 0, []
    for i in range(n):
        asked, strong = counts[i][others[i]], strengths[i][others[i]].abs()
        hits += int(asked.argmax() == strong.argmax())
        correlations.append(rank_correlation(asked, strong))
    known = [value for value in correlations if value is not None]
    return Wanted(n, hits, mean(known) if known else None)


def rank_correlation(a: Tensor, b: Tensor) -> float | None:
    """Return Spearman's ρ, ties having their mean rank; None if all values of one are the same."""
    return correlation(_ranks(a), _ranks(b))


def correlation(a: Tensor, b: Tensor) -> float | None:
    """Return Pearson's correlation; None if all values of one are the same."""
    a, b = a.double() - a.double().mean(), b.double() - b.double().mean()
    lengths = float(a.norm() * b.norm())
    return float(a @ b) / lengths if lengths > 1e-300 else None


def _ranks(values: Tensor) -> Tensor:
    below = (values[:, None] > values).sum(1)
    same = (values[:, None] == values).sum(1)
    return below + (same - 1) / 2


def asked_for(vectors: Vectors) -> list[int]:
    """Return whose models a client asked for, from the names of what it was sent, e.g. "core 3"."""
    last = [name.rpartition(" ")[2] for name in vectors]
    return [int(number) for number in last if number.isdecimal()]
