"""How much a client's records show in all that it gives away: ε and δ, planned before the first round.

Neighbouring datasets differ in one record, which is there or contributes nothing (zero-out): numbers of samples are
public. A step is a Gaussian mechanism on a Poisson sample; dp-accounting composes all of them by their privacy loss
distributions, rounded so that ε is never too small. Training and validation data are disjoint, each record lies in one
of them, and so each has an account of its own; a client's ε is the larger one.

Neither account depends on a sample, so both can be made before anything is trained.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from orchard.errors import UserError
from orchard.method import Queries
from orchard.privacy.settings import Privacy

if TYPE_CHECKING:
    from orchard.experiment import Experiment

INTERVAL = 1e-3
"""The grid of privacy losses; a finer one makes ε a percent smaller and takes ten times as long."""
COARSE = 50.0
"""Beyond this ε is bounded by Rényi divergences: exact losses would need gigabytes, and tell nobody more."""
ORDERS = [2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 512]
LOSSES = 0.3
"""Losses that a method asks of its training data get noise of their own: so much that they alone would be
`LOSSES`·μ-private, of the account's μ altogether (in Gaussian differential privacy), which leaves 95 % to gradients."""
PRECISION = 2e-3
"""Of a calibrated σ, relative; it errs towards more noise."""


@dataclass(frozen=True)
class Account:
    """What one client spends in a run, and by which noise: the whole of it known before the first round."""

    samples: int
    """n, its training samples."""
    rate: float
    """q, the probability with which a record is in a batch."""
    total: Queries
    """Of all rounds."""
    multiplier: float
    """σ: a batch's gradient has noise of deviation σ·clip."""
    train_loss_multiplier: float
    """The same of a mean loss on training data, in units of what one sample changes in it."""
    validation_loss_multiplier: float
    train_epsilon: float
    validation_epsilon: float
    delta: float

    @property
    def epsilon(self) -> float:
        """ε of the record that shows most."""
        return max(self.train_epsilon, self.validation_epsilon)


def account_of(experiment: "Experiment", samples: int) -> Account:
    """Return the account of a client with so many training samples."""
    privacy = experiment.privacy
    if privacy is None:
        raise ValueError("the experiment has no privacy")
    rounds = [experiment.method.queries(experiment, samples, r) for r in range(experiment.rounds + 1)]
    total = Queries(
        batches=sum(asked.batches for asked in rounds),
        gradients=max(asked.gradients for asked in rounds),
        train_losses=sum(asked.train_losses for asked in rounds),
        validation_losses=sum(asked.validation_losses for asked in rounds),
    )
    return account(privacy, samples, experiment.batch_size, total)


@lru_cache(maxsize=1024)
def account(privacy: Privacy, samples: int, batch_size: int, total: Queries) -> Account:
    """Return the account of a client with so many training samples, which asks so much of its data in a run."""
    rate, delta = min(1.0, batch_size / samples), privacy.delta
    asked = _Asked(rate, total.batches, total.gradients, total.train_losses)
    if privacy.epsilon is not None:
        loss_mu = LOSSES * mu_of(privacy.epsilon, delta)
        sigma = _calibrated(asked, loss_mu, privacy.epsilon, delta)
        validation_mu = mu_of(privacy.epsilon, delta)
    else:
        sigma = privacy.noise_multiplier or 0.0
        validation_mu = mu_of(asked.epsilon(sigma, 0.0, delta), delta)
        loss_mu = LOSSES * validation_mu
    return Account(
        samples=samples,
        rate=rate,
        total=total,
        multiplier=sigma,
        train_loss_multiplier=math.sqrt(total.train_losses) / loss_mu,
        validation_loss_multiplier=math.sqrt(total.validation_losses) / validation_mu,
        train_epsilon=asked.epsilon(sigma, loss_mu, delta),
        validation_epsilon=epsilon_of(validation_mu, delta) if total.validation_losses else 0.0,
        delta=delta,
    )


@dataclass(frozen=True)
class _Asked:
    """What is asked of the training data, but for the noise."""

    rate: float
    batches: int
    gradients: int
    """Of each batch. Noise of σ on each of k gradients is that of σ/√k on all of them together."""
    losses: int

    @lru_cache(maxsize=4096)  # noqa: B019 (of plain numbers)
    def epsilon(self, sigma: float, loss_mu: float, delta: float) -> float:
        """Return ε with noise of σ on gradients; all losses together are μ-private."""
        dp, pld, rdp = _libraries()
        step = dp.GaussianDpEvent(sigma / math.sqrt(self.gradients))
        events = [(dp.PoissonSampledDpEvent(self.rate, step) if self.rate < 1 else step, self.batches)]
        if self.losses and loss_mu:
            events.append((dp.GaussianDpEvent(1 / loss_mu), 1))
        one_record = dp.NeighboringRelation.REPLACE_SPECIAL
        rough = rdp.RdpAccountant(ORDERS, one_record)
        for event, count in events:
            rough.compose(event, count)
        bound = float(rough.get_epsilon(delta))
        if bound > COARSE:
            return bound
        exact = pld.PLDAccountant(one_record, value_discretization_interval=INTERVAL)
        for event, count in events:
            exact.compose(event, count)
        return min(bound, float(exact.get_epsilon(delta)))


def _calibrated(asked: _Asked, loss_mu: float, epsilon: float, delta: float) -> float:
    """Return the least σ, within `PRECISION`, with which a run spends no more than ε."""
    from scipy.optimize import brentq

    def excess(log_sigma: float) -> float:
        return math.log(max(1e-9, asked.epsilon(math.exp(log_sigma), loss_mu, delta)) / epsilon)

    # The central limit theorem of Gaussian differential privacy gives a first guess: μ = q·√(T·(exp(k/σ²) − 1)).
    mu = mu_of(epsilon, delta)
    guess = math.log(math.sqrt(asked.gradients / math.log1p((mu / asked.rate) ** 2 / asked.batches)))
    low, high = guess - 0.2, guess + 0.2
    while excess(high) > 0:
        low, high = high, high + 0.4
    while excess(low) <= 0:
        low, high = low - 0.4, low
    sigma: float = math.exp(brentq(excess, low, high, xtol=PRECISION / 2))
    while asked.epsilon(sigma, loss_mu, delta) > epsilon:
        sigma *= 1 + PRECISION
    return sigma


# --- Gaussian differential privacy (Dong, Roth, Su, 2022): exact for Gaussian mechanisms without sampling ---


def delta_of(mu: float, epsilon: float) -> float:
    """Return δ at ε of a mechanism that is μ-private: Φ(μ/2 − ε/μ) − exp(ε)·Φ(−μ/2 − ε/μ)."""
    from scipy.special import log_ndtr

    first, second = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return float(math.exp(first) * -math.expm1(min(0.0, second - first)))


def epsilon_of(mu: float, delta: float) -> float:
    """Return ε at δ of a mechanism that is μ-private."""
    return _root(lambda epsilon: delta - delta_of(mu, epsilon))


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest μ of a mechanism that spends no more than ε at δ."""
    return _root(lambda mu: delta_of(mu, epsilon) - delta)


def _root(rising: Callable[[float], float]) -> float:
    """Return the root above 0 of a rising function; 0 if it is above 0 everywhere."""
    from scipy.optimize import brentq

    low, high = 1e-12, 1.0
    if rising(low) >= 0:
        return 0.0
    while rising(high) < 0:
        high *= 2
    return float(brentq(rising, low, high, xtol=1e-12, rtol=1e-10))


def check_installed() -> None:
    """Raise if dp-accounting is not installed."""
    _libraries()


def _libraries() -> tuple[Any, Any, Any]:
    try:
        import dp_accounting
        from dp_accounting import pld, rdp
    except ImportError:
        raise UserError("[privacy]: needs dp-accounting; install it with: pip install 'orchard[privacy]'") from None
    return dp_accounting, pld, rdp
