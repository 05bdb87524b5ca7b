"""How far figures can be trusted: intervals of a share of test cases, and whether methods are apart.

Wilson's 95 % interval of a share p of n cases, with z = 1.96:

    (p + z²/2n ± z·√(p(1 − p)/n + z²/4n²)) / (1 + z²/n)

Two shares p > q of n cases each differ within noise if Newcombe's interval of the difference holds 0:

    p − q ≤ √((p − lower(p))² + (upper(q) − q)²)

Two methods on the same clients are apart by the paired t-test of the clients' differences. Seeds are averaged before,
since the runs of one client are no new clients.
"""

from collections.abc import Sequence
from math import atan, cos, inf, pi, sin, sqrt
from statistics import mean, stdev

Z = 1.959964
"""Of a normal distribution, 95 % are within so many standard deviations."""
SURE = 0.05
"""Methods are apart if chance alone would part them in fewer cases than this."""


def wilson(share: float, cases: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of test cases; nothing is known of a share of none."""
    if not cases:
        return 0.0, 1.0
    middle = (share + Z**2 / (2 * cases)) / (1 + Z**2 / cases)
    half = Z * sqrt(share * (1 - share) / cases + Z**2 / (4 * cases**2)) / (1 + Z**2 / cases)
    return max(0.0, middle - half), min(1.0, middle + half)


def within_noise(share: float, other: float, cases: int) -> bool:
    """Tell whether two shares of so many test cases may differ by the choice of test cases alone."""
    low, high = sorted((share, other))
    return high - low <= sqrt((high - wilson(high, cases)[0]) ** 2 + (wilson(low, cases)[1] - low) ** 2)


def chance_of(differences: Sequence[float]) -> float:
    """Return the two-sided p of a paired t-test; 1 for fewer than two differences."""
    count = len(differences)
    if count < 2 or not any(differences):
        return 1.0
    deviation = stdev(differences)
    # Differences that are all the same but for rounding have no deviation to measure them by.
    t = inf if deviation < 1e-12 else abs(mean(differences)) / (deviation / sqrt(count))
    return max(0.0, 1 - _within(t, count - 1))


def _within(t: float, freedom: int) -> float:
    """Return the probability of a value in −t … t of Student's distribution: its series for whole degrees."""
    angle = atan(t / sqrt(freedom))
    odd = freedom % 2
    term = total = cos(angle) if odd else 1.0
    for k in range(2 + odd, freedom, 2):
        term *= cos(angle) ** 2 * (k - 1) / k
        total += term
    if not odd:
        return sin(angle) * total
    return 2 / pi * (angle + (sin(angle) * total if freedom > 1 else 0.0))
