"""An average that a dishonest minority cannot move far: what servers use in place of Σ (n_i/n)·w_i if `robust` is set.

Y. Allouah et al., "Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity", AISTATS 2023,
    https://arxiv.org/abs/2302.01772
K. Pillutla, S. M. Kakade, Z. Harchaoui, "Robust Aggregation for Federated Learning", IEEE Transactions on Signal
Processing 2022, https://arxiv.org/abs/1912.13445

First every w_i becomes the mean of the N − f vectors nearest to it, itself among them, f = max(1, ⌊N/4⌋): honest
clients whose data differ come close to each other, and what is far from all is in few of these means. Then their
geometric median z = argmin Σ_i ‖w_i − z‖ by Weiszfeld's steps, which fewer than half of the vectors cannot carry away.

Weights are numbers of samples, which a client can only claim: so none counts for more than the median client.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from orchard.core.federation import capped
from orchard.core.vector import float64_blocks, mixture

STEPS = 100
PRECISION = 1e-8
"""Weiszfeld's steps end when no weight changes by more."""


def robust_mean(vectors: Mapping[int, Tensor], samples: Sequence[int]) -> Tensor:
    """Return the geometric median of the clients' vectors, each first averaged with those nearest to it.

    Every step is a weighted mean of the vectors, so only their distances count: N² numbers, however long vectors are.
    """
    clients = sorted(vectors)
    rows = [vectors[i].cpu() for i in clients]
    weights = capped([samples[i] for i in clients])
    squares = squared_distances(rows)
    near = nearest_mixing(squares, torch.tensor(weights, dtype=torch.float64))
    gaps = near[:, None] - near  # between two means, as weights of the vectors
    mixed = (-0.5 * torch.einsum("abi,ij,abj->ab", gaps, squares, gaps)).clamp(min=0)
    return mixture(geometric_median(mixed) @ near, rows).to(vectors[clients[0]])


def squared_distances(rows: Sequence[Tensor]) -> Tensor:
    """Return ‖w_i − w_j‖² of every pair; from differences, so that one huge vector does not drown the others."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for block in float64_blocks(rows):
        total += torch.cdist(block, block, compute_mode="donot_use_mm_for_euclid_dist") ** 2
    return total


def nearest_mixing(squares: Tensor, weights: Tensor) -> Tensor:
    """Return the matrix that averages each vector with those nearest to it."""
    n = len(squares)
    left_out = max(1, n // 4) if n > 2 else 0
    nearest = squares.argsort(dim=1, stable=True)[:, : n - left_out]
    mixing = torch.zeros_like(squares).scatter_(1, nearest, weights[nearest])
    return mixing / mixing.sum(dim=1, keepdim=True)


def geometric_median(squares: Tensor) -> Tensor:
    """Return the geometric median of vectors as weights on them, from their squared distances."""
    shares = torch.full((len(squares),), 1 / len(squares), dtype=torch.float64)
    nearly_zero = 1e-6 * squares.max().sqrt().clamp(min=1e-150)
    for _ in range(STEPS):
        from_it = squares @ shares - 0.5 * (shares @ squares @ shares)
        pulls = 1 / from_it.clamp(min=0).sqrt().clamp(min=nearly_zero)
        before, shares = shares, pulls / pulls.sum()
        if (shares - before).abs().max() < PRECISION:
            break
    return shares
