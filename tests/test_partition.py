"""Who holds what: the paper's golden values, and what holds for every partition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard.data.partitions import (
    IID,
    Dirichlet,
    PartitionSettings,
    Pathological,
    Practical,
    assign,
    keep_fraction,
    partition_matrix,
)
from orchard.errors import UserError

PAIRS_10 = "81 50 72 94 36 01 85 34 79 62 92 06"
PAIRS_9 = "71 50 82 43 60 15 34 78 62 82 06 75"
PAIRS_11 = [(5, 0), (9, 10), (2, 1), (8, 4), (7, 3), (6, 0), (6, 8), (1, 9), (5, 2), (10, 3), (4, 7), (6, 2)]
HOLDERS_OF_80_PERCENT = [7, 11, 11, 7, 5, 2, 0, 1, 0, 10, 2]


@pytest.mark.parametrize(
    ("classes", "pairs"),
    [
        (10, [tuple(map(int, pair)) for pair in PAIRS_10.split()]),
        (9, [tuple(map(int, pair)) for pair in PAIRS_9.split()]),
        (11, PAIRS_11),
    ],
)
def test_pathological_golden_values(classes: int, pairs: list[tuple[int, int]]) -> None:
    matrix = partition_matrix(Pathological(), classes, 12)
    held = [set(np.flatnonzero(column)) for column in matrix.T]
    assert held == [set(pair) for pair in pairs]


def test_pathological_shares_are_drawn_class_by_class_in_client_order() -> None:
    draw = np.random.RandomState(42)
    for _ in range(3):
        draw.permutation(10)
    holders_of_class_0 = [1, 5, 11]
    shares = draw.uniform(size=3)
    row = partition_matrix(Pathological(), 10, 12)[0]
    assert np.flatnonzero(row).tolist() == holders_of_class_0
    np.testing.assert_array_equal(row[holders_of_class_0], shares / shares.sum())


@pytest.mark.parametrize("classes", [9, 10, 11])
def test_practical_golden_values(classes: int) -> None:
    matrix = partition_matrix(Practical(), classes, 12)
    assert matrix.argmax(axis=1).tolist() == HOLDERS_OF_80_PERCENT[:classes]
    assert np.sort(matrix, axis=1).tolist() == [[0.01] * 10 + [0.1, 0.8]] * classes


def test_a_pair_can_coincide_unless_strict() -> None:
    seeds = range(60)
    held = [(partition_matrix(Pathological(seed=s), 9, 12) > 0).sum(axis=0) for s in seeds]
    strict = [(partition_matrix(Pathological(seed=s, strict=True), 9, 12) > 0).sum(axis=0) for s in seeds]
    assert min(map(min, held)) == 1
    assert all(set(counts) == {2} for counts in strict)
    # Where nothing coincides, strictness changes nothing.
    same = next(s for s in seeds if min(held[s]) == 2)
    np.testing.assert_array_equal(
        partition_matrix(Pathological(seed=same), 9, 12),
        partition_matrix(Pathological(seed=same, strict=True), 9, 12),
    )


def test_strictness_that_cannot_be_had_is_refused() -> None:
    with pytest.raises(UserError, match="found no draw that gives each of 3 clients two different classes out of 1"):
        partition_matrix(Pathological(strict=True), 1, 3)


def test_iid_shares_are_equal() -> None:
    np.testing.assert_allclose(partition_matrix(IID(), 3, 4), 0.25)
    labels = np.zeros(49, dtype=np.int64)
    assert [len(part) for part in assign(labels, partition_matrix(IID(), 1, 49), 0, "train")] == [1] * 49


partitions = st.integers(0, 2**32 - 1).flatmap(
    lambda seed: st.sampled_from(
        [
            Pathological(seed=seed),
            Practical(seed=seed),
            Dirichlet(seed=seed, alpha=0.1),
            Dirichlet(seed=seed, alpha=9.0),
            IID(seed=seed),
        ]
    )
)


@given(partition=partitions, classes=st.integers(2, 12), clients=st.integers(1, 30), size=st.integers(0, 400))
def test_what_holds_for_every_partition(partition: PartitionSettings, classes: int, clients: int, size: int) -> None:
    matrix = partition_matrix(partition, classes, clients)
    assert matrix.shape == (classes, clients)
    assert (matrix >= 0).all()
    sums = matrix.sum(axis=1)
    held = sums > 0  # few clients with two classes each cannot hold every class
    np.testing.assert_allclose(sums[held], 1)
    assert held.all() or (isinstance(partition, Pathological) and 2 * clients < classes)

    labels = np.random.default_rng(size).integers(classes, size=size)
    parts = assign(labels, matrix, seed=1, purpose="train")
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)  # nobody shares a sample
    for k in range(classes):
        count = int((labels == k).sum())
        given_out = [int((labels[part] == k).sum()) for part in parts]
        assert given_out == [int(share * count) for share in matrix[k]]
        assert count * held[k] - sum(given_out) in range(clients + 1)  # left out; rounding may cost one more


def test_who_gets_which_sample_of_a_class_is_drawn() -> None:
    labels = np.zeros(100, dtype=np.int64)
    halves = [assign(labels, np.full((1, 2), 0.5), seed, purpose)[0] for seed, purpose in DRAWS]
    assert all(len(half) == 50 for half in halves)
    assert len({tuple(sorted(half)) for half in halves}) == len(DRAWS)
    assert all(10 < (half < 50).sum() < 40 for half in halves)


DRAWS = [(0, "train"), (1, "train"), (0, "test")]


@given(fraction=st.floats(0.01, 1), seed=st.integers(0, 1000))
def test_a_fraction_keeps_that_share_of_every_class(fraction: float, seed: int) -> None:
    labels = np.repeat(np.arange(4), [10, 33, 100, 250])
    kept = keep_fraction(labels, fraction, seed)
    assert np.bincount(labels[kept], minlength=4).tolist() == [int(fraction * n) for n in (10, 33, 100, 250)]
    assert len(np.unique(kept)) == len(kept)
