"""What attacks are worth: figures by hand, published tables, and mechanisms whose ε is known."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from orchard.audit.membership import confidence, halves, likelihood_attack, likelihood_ratio, threshold_attack
from orchard.audit.statistics import (
    area,
    at_least,
    binomial,
    chance_of_guesses,
    clopper_pearson,
    epsilon_bound,
    guess,
    true_positives,
)

TRIALS = 200
"""Of a mechanism with a known ε; a bound at 95 % may be above it in 5 % of them."""


def test_the_area_counts_pairs_and_ties_half() -> None:
    found = area(torch.tensor([3.0, 2.0]), torch.tensor([1.0, 2.0]))
    assert found.value == (1 + 1 + 1 + 0.5) / 4
    # Hanley and McNeil, by hand: Q1 = A/(2 − A), Q2 = 2A²/(1 + A)
    a = 0.875
    spread = a * (1 - a) + (a / (2 - a) - a**2) + (2 * a**2 / (1 + a) - a**2)
    assert found.low == pytest.approx(a - 1.959964 * math.sqrt(spread / 4))
    assert found.high == 1.0
    assert area(torch.zeros(5), torch.zeros(7)).value == 0.5


def test_true_positives_are_above_all_but_one_percent_of_the_others() -> None:
    others = torch.arange(200.0)  # two of them may be let through: the threshold is 197
    members = torch.tensor([197.0, 197.5, 300.0, 0.0])
    assert true_positives(members, others).value == 0.5
    assert true_positives(members, torch.tensor([300.0, 1.0])).value == 0.0  # of so few none may be let through
    assert true_positives(torch.zeros(9), torch.zeros(9)).value == 0.0


@given(st.integers(0, 200), st.integers(1, 200), st.floats(1e-6, 1 - 1e-6))
def test_binomial_tails_are_scipys(k: int, trials: int, share: float) -> None:
    assert binomial(min(k, trials), trials, share) == pytest.approx(
        stats.binom.pmf(min(k, trials), trials, share), rel=1e-6, abs=1e-12
    )
    assert at_least(k, trials, share) == pytest.approx(stats.binom.sf(k - 1, trials, share), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("right", "trials", "low", "high"),
    # tables of exact limits, e.g. Geigy's: 95 %, two-sided
    [(0, 10, 0.0, 0.3085), (1, 10, 0.0025, 0.4450), (5, 10, 0.1871, 0.8129), (10, 10, 0.6915, 1.0)],
)
def test_clopper_and_pearsons_limits_are_those_of_tables(right: int, trials: int, low: float, high: float) -> None:
    found = clopper_pearson(right, trials)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)
    assert found.value == right / trials


def test_limits_of_no_trial_say_nothing() -> None:
    assert (clopper_pearson(0, 0).low, clopper_pearson(0, 0).high) == (0.0, 1.0)


def steinke(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """The bound as the paper has it, with scipy's distribution."""
    q = 1 / (1 + math.exp(-epsilon))
    steepest = max((stats.binom.cdf(v - 1, r, q) - stats.binom.cdf(v - i - 1, r, q)) / i for i in range(1, m + 1))
    return min(1.0, float(stats.binom.sf(v - 1, r, q)) + 2 * m * delta * max(0.0, float(steepest)))


@pytest.mark.parametrize(("m", "r", "v"), [(100, 100, 70), (100, 40, 40), (200, 50, 41), (50, 0, 0)])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-2])
def test_the_chance_of_guesses_is_the_papers(m: int, r: int, v: int, delta: float) -> None:
    for epsilon in (0.0, 0.5, 3.0):
        assert chance_of_guesses(v, r, m, epsilon, delta) == pytest.approx(steinke(m, r, v, epsilon, delta), abs=1e-9)


def test_without_delta_the_bound_is_that_of_the_share_of_right_guesses() -> None:
    for right in (60, 80, 100):
        limit = stats.beta.ppf(0.05, right, 101 - right)
        assert epsilon_bound(right, 100, 100) == pytest.approx(max(0.0, math.log(limit / (1 - limit))), abs=1e-6)
    # All right: q^r = 5 %.
    q = 0.05 ** (1 / 100)
    assert epsilon_bound(100, 100, 100) == pytest.approx(math.log(q / (1 - q)))
    assert epsilon_bound(50, 100, 100) == 0.0


def test_delta_makes_the_bound_smaller() -> None:
    bounds = [epsilon_bound(95, 100, 100, delta) for delta in (0.0, 1e-6, 1e-4, 1e-2)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[2] > bounds[3]


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_randomised_response_is_never_found_worse_than_it_is(epsilon: float) -> None:
    """Each coin is told rightly with probability e^ε/(1 + e^ε): the worst that ε allows."""
    draw = torch.Generator().manual_seed(1)
    share = 1 / (1 + math.exp(-epsilon))
    bounds = {}
    for m in (40, 200):
        coins = torch.rand(TRIALS, m, generator=draw) < 0.5
        truth = torch.rand(TRIALS, m, generator=draw) < share
        told = torch.where(coins == truth, 1.0, -1.0)
        told += 1e-3 * torch.rand(told.shape, generator=draw)  # ties are broken by chance, not by place
        bounds[m] = torch.tensor([guess(t, c).epsilon for t, c in zip(told, coins, strict=True)])
        assert (bounds[m] > epsilon).double().mean() <= 0.05
    assert bounds[40].mean() < bounds[200].mean() < epsilon
    assert bounds[200].mean() > 0.35 * epsilon


def test_the_gaussian_mechanism_is_never_found_worse_than_it_is() -> None:
    """A coin plus noise of deviation σ is (ε, δ)-private; δ(ε) by Balle and Wang's formula."""
    draw = torch.Generator().manual_seed(2)
    epsilon, sigma = 2.0, 1.0
    normal = stats.norm.cdf
    delta = normal(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * normal(-0.5 / sigma - epsilon * sigma)
    means = []
    for m in (40, 200):
        coins = torch.rand(TRIALS, m, generator=draw) < 0.5
        seen = coins + sigma * torch.randn(coins.shape, generator=draw)
        bounds = torch.tensor([guess(s, c, float(delta)).epsilon for s, c in zip(seen, coins, strict=True)])
        assert (bounds > epsilon).double().mean() <= 0.05
        means.append(float(bounds.mean()))
    plain = [guess(s, c).epsilon for s, c in zip(seen, coins, strict=True)]
    assert sum(plain) / TRIALS > 0.5  # what is told of it grows with what is seen


def test_guesses_are_counted_on_both_sides() -> None:
    found = guess(torch.tensor([4.0, 3.0, 2.0, 1.0] * 2), torch.tensor([True, True, False, False] * 2))
    assert (found.canaries, found.guessed, found.right) == (8, 8, 8)
    assert found.share.value == 1.0
    assert guess(torch.arange(8.0), torch.tensor([True] * 4 + [False] * 4)).epsilon == 0.0  # all wrong


def test_a_model_that_knows_by_heart_is_found_and_a_constant_one_is_not() -> None:
    members = torch.arange(400) < 200
    heart = torch.where(members, 0.01, 2.0) + torch.rand(400)
    found = threshold_attack(heart, members, "last")
    assert found.auc.value > 0.95
    assert found.tpr.value > 0.5
    assert found.records == 200
    constant = threshold_attack(torch.ones(400), members, "last")
    assert (constant.auc.value, constant.tpr.value) == (0.5, 0.0)


def test_every_record_is_in_half_of_the_shadows() -> None:
    trained = halves(37, 6, seed=3)
    assert trained.shape == (6, 37)
    assert trained.sum(0).tolist() == [3] * 37
    assert not torch.equal(trained, halves(37, 6, seed=4))


def test_the_likelihood_ratio_by_hand() -> None:
    losses = torch.tensor([0.5, 1.0])
    shadows = torch.tensor([[0.4, 0.9], [0.6, 0.7], [1.0, 1.5], [2.0, 1.1]])
    trained = torch.tensor([[True, True], [True, True], [False, False], [False, False]])

    def phi(loss: float) -> float:
        return -math.log(math.expm1(loss))

    inside, outside = ([[phi(x) for x in row] for row in part] for part in (shadows[:2].tolist(), shadows[2:].tolist()))
    expected = []
    for k in range(2):
        score = 0.0
        for sign, part in ((1, inside), (-1, outside)):
            variance = sum((part[0][j] - part[1][j]) ** 2 / 2 for j in range(2)) / 2  # of both records together
            mean = (part[0][k] + part[1][k]) / 2
            score -= sign * ((phi(losses[k].item()) - mean) ** 2 / (2 * variance) + math.log(variance) / 2)
        expected.append(score)
    assert likelihood_ratio(losses, shadows, trained).tolist() == pytest.approx(expected, rel=1e-5)


def test_shadows_find_members_whose_losses_alone_do_not_tell() -> None:
    """Hard records have high losses, members or not: only beside its own shadows a record tells."""
    draw = torch.Generator().manual_seed(5)
    members = torch.rand(600, generator=draw) < 0.5
    hardness = 1 + 20 * torch.rand(600, generator=draw)
    trained = halves(600, 8, seed=0)

    def losses(inside: torch.Tensor) -> torch.Tensor:
        return hardness - 0.3 * inside + 0.1 * torch.randn(inside.shape, generator=draw)

    run, shadows = losses(members), losses(trained)
    assert threshold_attack(run, members, "last").auc.value < 0.6
    assert likelihood_attack(run, shadows, trained, members, "last").auc.value > 0.95


def test_confidence_is_finite() -> None:
    assert confidence(torch.tensor([0.0, 1e-30, math.log(2), 1e9])).isfinite().all()
    assert confidence(torch.tensor([math.log(2)])).item() == pytest.approx(0.0, abs=1e-6)  # p = ½
