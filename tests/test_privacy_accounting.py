"""The accountant against published values, against Opacus, and against closed forms."""

import math
import sys
import warnings

import pytest

from helpers import method, small_experiment
from orchard.errors import UserError
from orchard.method import Queries
from orchard.methods.registry import BUILT_IN
from orchard.privacy.accounting import Account, account, account_of, delta_of, epsilon_of, mu_of
from orchard.privacy.settings import Privacy


def spent(rate: float, sigma: float, steps: int, delta: float = 1e-5) -> float:
    """ε of so many steps on batches that each record is in with probability 1/k, k a whole number."""
    per_million = round(rate * 1_000_000)
    total = Queries(batches=steps)
    return account(Privacy(noise_multiplier=sigma, delta=delta), 1_000_000, per_million, total).epsilon


@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "delta", "published"),
    [
        # Abadi et al. 2016, section 3.2: "1.26" by the moments accountant.
        (0.01, 4.0, 10_000, 1e-5, 1.26),
        # TensorFlow Privacy's tutorial of MNIST, 60,000 images in batches of 256: 15 epochs, then 60.
        (256 / 60_000, 1.3, 3516, 1e-5, 1.19),
        (256 / 60_000, 1.1, 14_063, 1e-5, 3.01),
    ],
)
def test_epsilon_is_a_little_below_what_older_accountants_published(
    rate: float, sigma: float, steps: int, delta: float, published: float
) -> None:
    """They bound moments; privacy loss distributions are exact, and so up to a fourth lower."""
    assert 0.7 * published < spent(rate, sigma, steps, delta) <= published


def test_epsilon_agrees_with_opacus() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants import PRVAccountant, RDPAccountant
    for rate, sigma, steps in ((0.01, 1.0, 1000), (0.1, 2.0, 400), (0.5, 6.0, 200)):
        mine = spent(rate, sigma, steps)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exact, bound = PRVAccountant(), RDPAccountant()
            exact.history = bound.history = [(sigma, rate, steps)]
            assert mine == pytest.approx(exact.get_epsilon(1e-5, eps_error=0.01), abs=0.03)
            assert mine <= bound.get_epsilon(1e-5)


def test_without_sampling_epsilon_has_a_closed_form() -> None:
    """δ(ε) = Φ(μ/2 − ε/μ) − exp(ε)·Φ(−μ/2 − ε/μ) with μ = √T/σ, by Python's own error function."""

    def phi(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    for sigma, steps in ((5.0, 25), (20.0, 400)):
        mu = math.sqrt(steps) / sigma
        epsilon = epsilon_of(mu, 1e-5)
        assert phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu) == pytest.approx(1e-5)
        assert delta_of(mu, epsilon) == pytest.approx(1e-5)
        assert mu_of(epsilon, 1e-5) == pytest.approx(mu)
        assert epsilon <= spent(1.0, sigma, steps) == pytest.approx(epsilon, rel=2e-3)


def test_a_given_epsilon_is_spent_and_not_exceeded() -> None:
    for samples in (17, 100, 5000):
        for epsilon in (1.0, 8.0):
            found = account(Privacy(epsilon=epsilon), samples, 64, Queries(batches=300))
            assert 0.98 * epsilon < found.epsilon <= epsilon
            known = account(Privacy(noise_multiplier=found.multiplier), samples, 64, Queries(batches=300))
            assert known.epsilon == found.epsilon


def test_a_batch_larger_than_the_client_is_all_of_it() -> None:
    assert account(Privacy(noise_multiplier=1.0), 17, 64, Queries(1)).rate == 1


def test_k_gradients_of_one_batch_are_one_with_less_noise() -> None:
    def epsilon(sigma: float, gradients: int) -> float:
        return account(Privacy(noise_multiplier=sigma), 1000, 50, Queries(100, gradients)).epsilon

    assert epsilon(4.0, 4) == epsilon(2.0, 1)
    assert epsilon(4.0, 4) > epsilon(4.0, 1)


def test_losses_are_on_the_account_of_their_part() -> None:
    def found(**losses: int) -> Account:
        return account(Privacy(noise_multiplier=2.0), 1000, 50, Queries(100, **losses))

    plain, train, validation = found(), found(train_losses=20), found(validation_losses=20)
    assert plain.epsilon == plain.train_epsilon < train.train_epsilon < 1.2 * plain.train_epsilon
    assert validation.train_epsilon == plain.train_epsilon
    # On validation data nothing but the losses is spent: as much as on training data, which is the larger account.
    assert validation.validation_epsilon == pytest.approx(validation.train_epsilon)
    mu = math.sqrt(20) / validation.validation_loss_multiplier
    assert epsilon_of(mu, 1e-5) == pytest.approx(validation.validation_epsilon)


def test_little_noise_is_a_large_epsilon_found_at_once() -> None:
    assert spent(1.0, 1e-4, 1000) > 1e9
    assert spent(0.1, 0.05, 1000) > 1000


@pytest.mark.parametrize(
    ("parameters", "batches", "gradients", "train", "validation"),
    [
        # 17 samples in batches of 8 are 3 steps an epoch; 3 rounds of 2 epochs.
        (method("apple"), 18, 1, 0, 0),
        (method("fedavg-ft"), 18 + 6, 1, 0, 0),  # with E_ft = E a round's fine-tuning is its training, but for the last
        (method("fedavg-ft", tuning_epochs=1), 18 + 9, 1, 0, 0),
        (method("fedprox-ft"), 18 + 18, 1, 0, 0),
        (method("per-fedavg"), 18 + 9, 1, 0, 0),
        (method("fedrep"), 3 * (6 + 3), 1, 0, 0),
        (method("ditto"), 36, 1, 0, 0),
        (method("apfl"), 18, 2, 0, 0),
        (method("pfedme", inner_steps=3), 18, 3, 0, 0),
        (method("fedala"), 18 + 9, 1, 0, 0),
        (method("ifca", clusters=3), 18, 1, 3 * 4, 0),
        (method("graft"), 18, 1, 2 * 3, 0),
        (method("graft", stock=0.0), 18, 1, 0, 0),
        (method("fedfomo"), 18, 1, 0, 3 * 5),
        (method("fedfomo", budget=1), 18, 1, 0, 3 * 3),
    ],
)
def test_what_a_run_asks_in_total(
    parameters: dict[str, object], batches: int, gradients: int, train: int, validation: int
) -> None:
    experiment = small_experiment(method=parameters, privacy={"noise_multiplier": 1.0})
    assert account_of(experiment, 17).total == Queries(batches, gradients, train, validation)


def test_settings_are_checked() -> None:
    for wrong in ({}, {"epsilon": 1.0, "noise_multiplier": 1.0}):
        with pytest.raises(UserError, match=r"privacy\.epsilon: set either this, with delta, or noise_multiplier"):
            small_experiment(privacy=wrong)
    for wrong in ({"epsilon": 0.0}, {"epsilon": 1.0, "delta": 1.0}, {"epsilon": 1.0, "clip": 0.0}):
        with pytest.raises(UserError, match="privacy"):
            small_experiment(privacy=wrong)
    assert set(BUILT_IN) >= {"apple", "graft"}


def test_without_dp_accounting_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(UserError, match=r"needs dp-accounting; install it with: pip install 'orchard\[privacy\]'"):
        account(Privacy(noise_multiplier=1.5), 12_345, 64, Queries(batches=3))


def test_cores_are_not_left_out_by_exact_losses() -> None:
    with pytest.raises(UserError, match=r"method\.robust = true: leaves cores out by exact validation losses"):
        small_experiment(method="apple", robust=True, privacy={"noise_multiplier": 1.0})
    assert small_experiment(method="fedavg", robust=True, privacy={"noise_multiplier": 1.0})
