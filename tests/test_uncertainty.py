"""How far figures can be trusted: against scipy, and where it matters."""

import numpy as np
import pytest
from scipy import stats

from orchard.runs.uncertainty import chance_of, wilson, within_noise


@pytest.mark.parametrize(("right", "cases"), [(0, 12), (7, 12), (12, 12), (1, 1), (930, 1000)])
def test_the_interval_is_wilsons(right: int, cases: int) -> None:
    theirs = stats.binomtest(right, cases).proportion_ci(0.95, "wilson")
    assert wilson(right / cases, cases) == pytest.approx((theirs.low, theirs.high), abs=1e-6)


def test_nothing_is_known_without_test_cases() -> None:
    assert wilson(0.0, 0) == (0, 1)
    assert within_noise(0.0, 1.0, 0)


def test_two_of_twelve_cases_are_within_noise_and_the_same_share_of_many_is_not() -> None:
    assert within_noise(10 / 12, 8 / 12, 12)
    assert within_noise(8 / 12, 10 / 12, 12)
    assert not within_noise(10 / 12, 8 / 12, 1200)
    assert not within_noise(12 / 12, 2 / 12, 12)


@pytest.mark.parametrize("clients", range(2, 15))
def test_the_test_of_two_methods_is_the_paired_t_test(clients: int) -> None:
    mine, theirs = np.random.default_rng(clients).normal([[0.3], [0.0]], 0.4, size=(2, clients))
    assert chance_of((mine - theirs).tolist()) == pytest.approx(stats.ttest_rel(mine, theirs).pvalue, rel=1e-9)


def test_equal_methods_are_never_apart_and_one_client_tells_nothing() -> None:
    assert chance_of([0.0, 0.0, 0.0]) == 1
    assert chance_of([0.4]) == 1
    assert chance_of([0.1, 0.1, 0.1]) < 1e-6
