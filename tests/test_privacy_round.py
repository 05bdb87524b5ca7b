"""A round under privacy: batches, noise, what is counted, what is withheld; and every method from start to end."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import orchard
from helpers import (
    SMALL,
    Dropping,
    SmallFederation,
    federation_of,
    method,
    small_arrays,
    small_data,
    small_experiment,
    small_run,
)
from orchard.core.contract import Download
from orchard.core.training import ClientContext, gradient, run_epochs
from orchard.core.vector import Network
from orchard.data.clients import ClientData
from orchard.data.samples import Samples
from orchard.errors import RunFailed, Stopped, UserError
from orchard.experiment import Experiment
from orchard.method import Queries
from orchard.methods.fedavg import FedAvgClient, FedAvgLocal
from orchard.methods.registry import BUILT_IN
from orchard.privacy.accounting import account, account_of
from orchard.privacy.noise import Noise
from orchard.privacy.private_round import LOSS_LIMIT, PrivateRound
from orchard.privacy.settings import Privacy
from orchard.tasks.regression import Regression

NOISY: dict[str, Any] = {"noise_multiplier": 1.0}


def context_of(experiment: Experiment, client: int = 0, round: int = 0) -> ClientContext:
    data = small_data(experiment)
    network = federation_of(experiment, data).network()
    context = ClientContext(client, experiment, data.clients[client], network).guarded(round)
    network.private = context.private
    return context


def inside(context: ClientContext, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the samples of a batch, which a method does not see."""
    assert context.private is not None
    part = context.private._part(x, y)
    return part.x, part.y


def taken(context: ClientContext, round: int = 0) -> list[Tensor]:
    return [inside(context, *batch)[0] for epoch in range(2) for batch in context.batches(round, epoch)]


def test_the_gradient_is_the_clipped_sum_with_noise_divided_by_the_expected_batch() -> None:
    privacy = Privacy(noise_multiplier=2.0, clip=0.5)
    context = context_of(small_experiment(privacy=privacy))
    assert context.private is not None
    for x, y in context.private.batches(1):
        samples, _ = inside(context, x, y)
    draws = Noise.of_seed(42, 0).of(b"round 0")
    chosen = draws.generator(1).random(17) < 8 / 17
    data = small_data(small_experiment()).clients[0].train
    assert torch.equal(samples, data.x[chosen])
    # Only the batch that is being trained on has a gradient: its turn is over.
    with pytest.raises(UserError, match="no batch of run_epochs"):
        gradient(context.network, x, y)
    context = context_of(small_experiment(privacy=privacy))
    x, y = next(context.batches(0, 0))
    gradient(context.network, x, y)
    x, y = inside(context, x, y)
    noised = context.network.gradient.clone()
    context.network.private = None
    expected = torch.zeros_like(noised)
    for i in range(len(y)):
        gradient(context.network, x[i : i + 1], y[i : i + 1])
        expected += context.network.gradient * min(1.0, 0.5 / float(context.network.gradient.norm()))
    noise = torch.from_numpy(draws.generator(2).standard_normal(len(expected)))
    torch.testing.assert_close(noised.double(), (expected.double() + 2.0 * 0.5 * noise) / 8, rtol=1e-3, atol=1e-5)


def test_batches_are_poisson_samples() -> None:
    experiment = small_experiment(batch_size=4, privacy=NOISY)
    sizes = [len(batch) for r in range(3) for batch in taken(context_of(experiment, 3, r), r)]  # of 34 samples
    assert len(sizes) == 3 * 18
    assert 2.5 < np.mean(sizes) < 5.5
    assert len(set(sizes)) > 4
    assert min(sizes) < 3


def test_an_empty_batch_takes_a_step_of_noise_alone() -> None:
    experiment = small_experiment(batch_size=1, privacy=NOISY)
    for r in range(20):
        context = context_of(experiment, round=r % 3)
        for x, y in context.batches(0, 0):
            loss = gradient(context.network, x, y)
            if not len(inside(context, x, y)[1]):
                assert loss == 0
                assert bool(context.network.gradient.any())
                return
    pytest.fail("no batch was empty")


def test_full_batches_with_hardly_any_noise_are_plain_training() -> None:
    changes: dict[str, Any] = {"batch_size": 1000, "rounds": 3}
    plain = small_run(**changes, method="fedavg")
    private = small_run(**changes, method="fedavg", privacy={"noise_multiplier": 1e-9, "clip": 1e3})
    for (one, _), (other, _) in zip(plain.models, private.models, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    assert private.rounds[-1].loss == pytest.approx(plain.rounds[-1].loss, rel=1e-3)


def test_a_round_gives_no_more_than_it_may_ask() -> None:
    experiment = small_experiment(privacy=NOISY)
    context = context_of(experiment)
    taken(context)  # both epochs
    with pytest.raises(UserError, match=r"asks more batches in a round than its queries\(\) says"):
        taken(context)
    context = context_of(experiment)
    x, y = next(iter(context.batches(0, 0)))
    gradient(context.network, x, y)
    with pytest.raises(UserError, match="asks more 1 gradients of a batch"):
        gradient(context.network, x, y)
    with pytest.raises(UserError, match="asks more train losses"):
        context.loss(context.network.vector.clone(), "train")


@pytest.mark.parametrize(("record", "shift"), [(1e3, 1.0), (math.nan, 0.0), (math.inf, 0.0)])
def test_all_that_shows_of_a_record_is_the_mixture_that_the_account_is_made_of(record: float, shift: float) -> None:
    """Of a record whose gradient is as long as can be: N(0, σ²) or, with probability q, N(1, σ²), along it."""
    from scipy.stats import kstest, norm

    sigma, clip, rate = 0.8, 0.3, 0.5
    network = Network(torch.nn.Linear(1, 1, bias=False), task=Regression(("t",), (0.0,), (1.0,)))
    network.vector.zero_()
    # f(x) = w·x = 0: of the first record, y = 0, the gradient is 0, of the second −2·record, which is clipped.
    both = Samples(torch.tensor([[1.0], [record]]), torch.tensor([[0.0], [1.0]]))
    privacy = Privacy(noise_multiplier=sigma, clip=clip)
    spent = account(privacy, 2, 1, Queries(1))
    assert spent.rate == rate
    found = []
    for draw in range(2000):
        private = PrivateRound(privacy, spent, Queries(1), Noise(f"{draw}".encode()), ClientData("a", both, both, both))
        for x, y in private.batches(1):
            private.gradient(network, x, y)
            found.append(-network.gradient.item() * private.expected / clip)

    def mixture(z: Any) -> Any:
        return (1 - rate) * norm.cdf(z, 0, sigma) + rate * norm.cdf(z, shift, sigma)

    assert kstest(found, mixture).pvalue > 0.01
    assert kstest(found, lambda z: norm.cdf(z, 1 - shift, sigma)).pvalue < 1e-6


def test_halves_are_disjoint_and_cost_one_gradient() -> None:
    context = context_of(small_experiment(batch_size=1000, privacy=NOISY))
    assert context.private is not None
    x, y = next(context.batches(0, 0))
    everything, _ = inside(context, x, y)
    first, second = context.private.halves(x, y)
    one, other = (inside(context, *half)[0] for half in (first, second))
    assert len(one) + len(other) == 17
    assert {tuple(row) for row in torch.cat([one, other]).tolist()} == {tuple(row) for row in everything.tolist()}
    gradient(context.network, *first)
    # One half twice would cost its samples two.
    with pytest.raises(UserError, match="asks more"):
        gradient(context.network, *first)
    gradient(context.network, *second)
    with pytest.raises(UserError, match="asks more"):
        gradient(context.network, *second)
    for wrong in ((x, y), (first[0], second[1])):
        with pytest.raises(UserError, match="no batch"):
            gradient(context.network, *wrong)


def test_a_mean_loss_is_clipped_and_noised() -> None:
    experiment = small_experiment(method="ifca", privacy=NOISY)
    context = context_of(experiment)
    model = context.network.vector.clone()
    found = context.loss(model, "train")
    data = small_data(experiment).clients[0].train
    context.network.vector.copy_(model)
    losses = torch.nn.functional.cross_entropy(context.network.module(data.x), data.y, reduction="none")
    limit = LOSS_LIMIT * math.log(3)
    spent = account_of(experiment, 17)
    noise = (
        spent.train_loss_multiplier * limit / 17 * Noise.of_seed(42, 0).of(b"round 0").generator(1).standard_normal()
    )
    assert found == pytest.approx(losses.clamp(0, limit).mean().item() + noise, rel=1e-4)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_counts_as_the_limit(broken: float) -> None:
    experiment = small_experiment(method="ifca", privacy={"noise_multiplier": 1e9})
    context = context_of(experiment)
    outputs = torch.zeros(4, 3)
    outputs[0] = broken
    quiet = replace(account(Privacy(noise_multiplier=1.0), 4, 4, Queries(1, 1, 9)), train_loss_multiplier=0.0)
    private = PrivateRound(Privacy(noise_multiplier=1.0), quiet, Queries(1, 1, 9), Noise(b"k"), context.data)
    found = private.loss(context.network.task, outputs, torch.tensor([0, 1, 2, 0]), "train")
    assert found == pytest.approx((LOSS_LIMIT + 3) * math.log(3) / 4)


def test_a_method_does_not_see_samples_but_their_number() -> None:
    context = context_of(small_experiment(privacy=NOISY))
    assert len(context.data.train.y) == len(context.data.train.x) == 17
    for look in (
        lambda: context.data.train.x.sum(),
        lambda: context.data.train.y[0],
        lambda: context.data.validation.x.mean(),
        lambda: context.data.test.y.tolist(),
    ):
        with pytest.raises(UserError, match="this one reads samples itself"):
            look()


class Curious(FedAvgLocal):
    """Looks at its samples."""

    name: str = "curious"  # type: ignore[assignment]

    def client(self, index: int, federation: Any) -> FedAvgClient:
        return CuriousClient(federation)


class CuriousClient(FedAvgClient):
    def receive(self, context: ClientContext, download: Download) -> None:
        super().receive(context, download)
        self.model = self.model + 0 * context.data.train.x.sum()


def test_a_method_that_reads_samples_is_refused_with_a_sentence() -> None:
    assert small_run(method=Curious())
    with pytest.raises(
        RunFailed, match=r"sees its data through run_epochs, local_sgd, gradient and context\.loss only"
    ):
        small_run(method=Curious(), privacy=NOISY)


class Own(FedAvgLocal):
    """Makes a gradient of its own in its steps, as one that adds a term to the loss may."""

    name: str = "own"  # type: ignore[assignment]
    look: ClassVar[Callable[[ClientContext, Tensor, Tensor], Any]]

    def client(self, index: int, federation: Any) -> FedAvgClient:
        return OwnClient(federation, type(self).look)


class OwnClient(FedAvgClient):
    def __init__(self, federation: Any, look: Callable[[ClientContext, Tensor, Tensor], Any]) -> None:
        super().__init__(federation)
        self.look = look

    def train(self, context: ClientContext, round: int) -> float:
        def step(x: Tensor, y: Tensor) -> Tensor:
            self.look(context, x, y)
            return gradient(context.network, x, y)

        return run_epochs(context, round, step)


@pytest.mark.parametrize(
    "look",
    [
        lambda context, x, y: context.network.module(x).sum().backward(),
        lambda context, x, y: torch.bincount(y),
        lambda context, x, y: x[:1],
        lambda context, x, y: len(y) < 2,  # who else is in a batch is secret
    ],
    ids=["loss", "labels", "sample", "size"],
)
def test_a_method_does_not_see_what_is_in_a_batch(
    look: Callable[[ClientContext, Tensor, Tensor], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Own, "look", staticmethod(look), raising=False)
    assert small_run(method=Own(), rounds=1)
    with pytest.raises(RunFailed, match="this one reads samples itself"):
        small_run(method=Own(), rounds=1, privacy=NOISY)


def test_a_network_with_batch_norm_is_refused_before_training() -> None:
    def normalised() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))

    with pytest.raises(UserError, match="take GroupNorm"):
        small_run(model=normalised, privacy=NOISY, batch_size=7)


# --- Whole runs ---


def vectors(result: orchard.Result) -> Tensor:
    return torch.stack([vector for vector, _ in result.models])


class Watched(ClientContext):
    """Remembers what a client has seen in each round."""

    seen: ClassVar[list[ClientContext]] = []

    def guarded(self, round: int) -> ClientContext:
        self.seen.append(super().guarded(round))
        return self.seen[-1]


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_method_asks_what_its_account_counts(name: str) -> None:
    """No more, which each round enforces; and no less, or its noise would be more than need be."""
    federation = SmallFederation(method=name, privacy=NOISY, rounds=2, clients=2)
    federation.contexts = [Watched(**vars(context)) for context in federation.contexts]
    Watched.seen.clear()
    federation.run(3)
    assert bool(federation.models().isfinite().all())
    rounds = [seen.private for seen in Watched.seen if seen.private]
    assert len(rounds) == 2 * 3
    for r, left in enumerate([private.left for private in rounds]):
        assert left.batches == left.validation_losses == 0, f"round {r // 2}"
        # In graft's a client's core is compared with the pool only if the pool is no better than before.
        assert left.train_losses == 0 or name == "graft"


@pytest.mark.parametrize("workers", [1, 3])
def test_in_a_simulation_noise_follows_from_the_seed(workers: int) -> None:
    found = vectors(small_run(privacy=NOISY, workers=workers))
    assert torch.equal(found, vectors(small_run(privacy=NOISY)))
    assert not torch.equal(found, vectors(small_run(privacy=NOISY, seed=1)))


@pytest.mark.parametrize("name", ["fedavg-ft", "graft"])
def test_a_resumed_run_ends_as_without_the_interruption(name: str, tmp_path: Path) -> None:
    changes = {**SMALL, "method": name, "privacy": NOISY, "rounds": 4}
    whole = orchard.run(data=small_arrays(), **changes)
    calls = iter([False, False, True])
    with pytest.raises(Stopped):
        orchard.run(data=small_arrays(), out=tmp_path / "run", stop=lambda: next(calls, True), **changes)
    resumed = orchard.resume(tmp_path / "run", small_arrays())
    assert torch.equal(vectors(resumed), vectors(whole))


def test_a_run_is_resumed_with_the_same_privacy_only(tmp_path: Path) -> None:
    changes = {**SMALL, "privacy": NOISY}
    calls = iter([False, False, True])
    with pytest.raises(Stopped):
        orchard.run(data=small_arrays(), out=tmp_path / "run", stop=lambda: next(calls, True), **changes)
    file = tmp_path / "run" / "experiment.toml"
    file.write_text(file.read_text("utf-8").replace("noise_multiplier = 1.0", "noise_multiplier = 0.5"), "utf-8")
    with pytest.raises(UserError, match=r"privacy.noise_multiplier \(was 1.0, now 0.5\)"):
        orchard.resume(tmp_path / "run", small_arrays())


def test_secret_noise_is_not_the_seeds_and_never_the_same() -> None:
    def draw(noise: Noise) -> float:
        return float(noise.of(b"round 1").generator(3).standard_normal())

    assert draw(Noise.of_seed(42, 0)) == draw(Noise.of_seed(42, 0))
    others = {draw(noise) for noise in (Noise.of_seed(42, 0), Noise.of_seed(42, 1), Noise.of_seed(43, 0))}
    assert len(others | {draw(Noise.secret()), draw(Noise.secret())}) == 5
    assert Noise(b"a" * 32).of(b"x").generator(1).random() == Noise(b"a" * 32).of(b"x").generator(1).random()


def test_dropout_is_private_too() -> None:
    one, other = (small_run(model=Dropping, privacy=NOISY, workers=w) for w in (1, 2))
    assert torch.equal(vectors(one), vectors(other))


def test_an_account_of_epsilon_holds_for_every_client() -> None:
    experiment = small_experiment(privacy={"epsilon": 3.0}, method=method("graft"))
    for n in (17, 22, 28, 34):
        assert 2.9 < account_of(experiment, n).epsilon <= 3.0
