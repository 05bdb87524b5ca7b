"""An average that a dishonest minority cannot move far: what servers use in place of Σ (n_i/n)·w_i if `robust` is set.

Y. Allouah et al., "Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity", AISTATS 2023,
    https://arxiv.org/abs/2302.01772
K. Pillutla, S. M. Kakade, Z. Harchaoui, "Robust Aggregation for Federated Learning", IEEE Transactions on Signal
Processing 2022, https://arxiv.org/abs/1912.13445

First every w_i becomes the mean of the N − f vectors nearest to it, itself among them, f = ⌊N/4⌋: honest clients
whose data differ come close to each other, and what is far from all is in few of these means. Then their geometric
median z = argmin Σ_i ‖w_i − z‖ by Weiszfeld's steps, which fewer than half of the vectors cannot carry away. Of three
or two vectors it is their own geometric median: none can be left out.

Weights are numbers of samples, which a client can only claim: so none counts for more than the median client.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from orchard.core.federation import capped
from orchard.core.vector import float64_blocks, mixture

FEWEST = 4
"""Of so many vectors one is left out, of each so many more another one."""
STEPS = 200
"""Of Weiszfeld; each takes N² operations."""


def robust_mean(vectors: Mapping[int, Tensor], samples: Sequence[int]) -> Tensor:
    """Return the geometric median of the clients' vectors, each first averaged with those nearest to it.

    Every step is a weighted mean of the vectors, so only their distances count: N² numbers, however long vectors are.
    """
    clients = sorted(vectors)
    rows = [vectors[i].cpu() for i in clients]
    weights = torch.tensor(capped([samples[i] for i in clients]), dtype=torch.float64)
    squares = squared_distances(rows)
    if len(rows) < FEWEST:
        shares = geometric_median(squares, weights)
    else:
        near = nearest_mixing(squares, weights)
        gaps = near[:, None] - near  # between two means, as weights of the vectors
        mixed = (-0.5 * torch.einsum("abi,ij,abj->ab", gaps, squares, gaps)).clamp(min=0)
        shares = geometric_median(mixed, torch.ones_like(weights)) @ near
    return mixture(shares, rows).to(vectors[clients[0]])


def squared_distances(rows: Sequence[Tensor]) -> Tensor:
    """Return ‖w_i − w_j‖² of every pair; from differences, so that one huge vector does not drown the others."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for block in float64_blocks(rows):
        total += torch.cdist(block, block, compute_mode="donot_use_mm_for_euclid_dist") ** 2
    return total


def nearest_mixing(squares: Tensor, weights: Tensor) -> Tensor:
    """Return the matrix that averages each vector with those nearest to it."""
    n = len(squares)
    nearest = squares.argsort(dim=1, stable=True)[:, : n - n // FEWEST]
    mixing = torch.zeros_like(squares).scatter_(1, nearest, weights[nearest])
    return mixing / mixing.sum(dim=1, keepdim=True)


def geometric_median(squares: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted geometric median of vectors as shares of them, from their squared distances."""
    shares = weights / weights.sum()
    nearly_zero = 1e-6 * squares.sqrt().median().clamp(min=1e-150)
    for _ in range(STEPS):
        from_it = squares @ shares - 0.5 * (shares @ squares @ shares)
        pulls = weights / from_it.clamp(min=0).sqrt().clamp(min=nearly_zero)
        shares = pulls / pulls.sum()
    return shares
