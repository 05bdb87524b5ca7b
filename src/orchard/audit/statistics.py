"""What attacks are worth, with how sure that is.

ROC: a score says how sure an attacker is that a record was trained on.

    AUC            P(score of a member > that of a non-member), ties counting half; interval: J. Hanley and B. McNeil,
                   "The Meaning and Use of the Area under a ROC Curve", Radiology 1982
    TPR at FPR     the share of members above the lowest threshold that lets at most this share of non-members through

Counts: C. Clopper and E. Pearson, "The Use of Confidence or Fiducial Limits", Biometrika 1934. The limits of a share,
of v right guesses in r, are those under which v or more, or v or fewer, are just as improbable as is still believed.

ε: T. Steinke, M. Nasr and M. Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023,
https://arxiv.org/abs/2305.08846. Of m canaries each is trained on with probability ½; an attacker guesses of r ≤ m of
them whether they were. If training is (ε, δ)-differentially private, v or more guesses are right with probability

    at most   P[B ≥ v] + 2·m·δ·max_i P[v > B ≥ v − i]/i      with B ~ Binomial(r, e^ε/(1 + e^ε))

The bound is the largest ε for which that is below 5 %. For δ = 0 it is Clopper and Pearson's lower limit of the share
of right guesses, as the ε of randomised response.
"""

from dataclasses import dataclass
from functools import cache
from math import comb, exp, fsum, lgamma, log, log1p, sqrt

import torch
from torch import Tensor

from orchard.runs.uncertainty import Z, wilson
from orchard.tasks.task import area_under_roc

SURE = 0.95
FALSE_POSITIVES = 0.01
STEPS = 40
"""Of a bisection."""
LARGEST_EPSILON = 50.0
GUESSED = (1.0, 0.5, 0.25)
"""The shares of canaries that an attacker tries to guess, the surest first; the level is divided among these."""


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Guesses:
    """How many of the canaries were guessed, how many of them rightly, and what that says of ε."""

    canaries: int
    guessed: int
    right: int
    share: Estimate
    epsilon: float
    """The lower bound."""


def area(members: Tensor, others: Tensor) -> Estimate:
    """Return the AUC of scores."""
    scores = torch.cat([members, others]).double()
    positive = torch.arange(len(scores)) < len(members)
    found = area_under_roc(scores, positive)
    if found is None:
        return Estimate(0.5, 0.0, 1.0)
    both, one = found / (2 - found), 2 * found**2 / (1 + found)
    spread = found * (1 - found) + (len(members) - 1) * (both - found**2) + (len(others) - 1) * (one - found**2)
    half = Z * sqrt(max(0.0, spread) / (len(members) * len(others)))
    return Estimate(found, max(0.0, found - half), min(1.0, found + half))


def true_positives(members: Tensor, others: Tensor, false_positives: float = FALSE_POSITIVES) -> Estimate:
    """Return the share of members that are found where at most this share of the others is."""
    let_through = int(false_positives * len(others))
    threshold = others.sort(descending=True).values[let_through]  # nobody with this score is let through
    share = float((members > threshold).double().mean())
    return Estimate(share, *wilson(share, len(members)))


def binomial(k: int, trials: int, share: float) -> float:
    """Return P[B = k]."""
    if share in (0.0, 1.0):
        return float(k == trials * share)
    if trials < 50:
        return comb(trials, k) * share**k * (1 - share) ** (trials - k)
    ways = lgamma(trials + 1) - lgamma(k + 1) - lgamma(trials - k + 1)
    return exp(ways + k * log(share) + (trials - k) * log1p(-share))


def at_least(k: int, trials: int, share: float) -> float:
    """Return P[B ≥ k]."""
    return min(1.0, fsum(binomial(i, trials, share) for i in range(max(k, 0), trials + 1)))


def clopper_pearson(right: int, trials: int, sure: float = SURE) -> Estimate:
    """Return the share of right guesses with its two-sided interval."""
    if not trials:
        return Estimate(0.0, 0.0, 1.0)
    rest = (1 - sure) / 2
    return Estimate(right / trials, lower_limit(right, trials, rest), 1 - lower_limit(trials - right, trials, rest))


def lower_limit(right: int, trials: int, level: float) -> float:
    """Return the share with which so many or more right guesses have the probability `level`."""
    low, high = 0.0, 1.0
    for _ in range(STEPS if right else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if at_least(right, trials, middle) < level else (low, middle)
    return low


def chance_of_guesses(right: int, guessed: int, canaries: int, epsilon: float, delta: float) -> float:
    """Return a bound on the probability of so many or more right guesses under (ε, δ)-differential privacy."""
    share = 1 / (1 + exp(-epsilon))
    likely = at_least(right, guessed, share)
    if not delta:
        return likely
    steepest = below = 0.0
    for i in range(1, right + 1):
        below += binomial(right - i, guessed, share)
        steepest = max(steepest, below / i)
    return min(1.0, likely + 2 * canaries * delta * steepest)


@cache
def epsilon_bound(right: int, guessed: int, canaries: int, delta: float = 0.0, level: float = 1 - SURE) -> float:
    """Return the largest ε that so many right guesses rule out; 0 if they rule out none."""
    low, high = 0.0, LARGEST_EPSILON
    if chance_of_guesses(right, guessed, canaries, low, delta) >= level:
        return 0.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        ruled_out = chance_of_guesses(right, guessed, canaries, middle, delta) < level
        low, high = (middle, high) if ruled_out else (low, middle)
    return low


def guess(scores: Tensor, included: Tensor, delta: float = 0.0) -> Guesses:
    """Guess that the canaries with the highest scores were trained on and those with the lowest were not.

    The attacker may abstain from those in the middle. What is best is not known before; so several shares are tried,
    each at its part of the level.
    """
    order, m = scores.argsort(descending=True), len(scores)
    best: Guesses | None = None
    for share in GUESSED:
        each = int(m * share) // 2
        right = int(included[order[:each]].sum()) + int((~included[order[m - each :]]).sum())
        bound = epsilon_bound(right, 2 * each, m, delta, (1 - SURE) / len(GUESSED))
        if best is None or bound > best.epsilon:
            best = Guesses(m, 2 * each, right, clopper_pearson(right, 2 * each), bound)
    assert best is not None  # noqa: S101  # there are shares
    return best
