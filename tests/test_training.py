"""The local loop: the same batches for every method, the optimiser of the paper, and no silent divergence."""

import dataclasses

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from helpers import federation_of, small_data, small_experiment
from orchard.data import Samples
from orchard.experiment import Experiment
from orchard.measures import Measures
from orchard.training import MomentumSGD, NotFinite, Site, evaluate, gradient, train


def small_site(experiment: Experiment, client: int = 0) -> Site:
    data = small_data(experiment)
    return Site(client, experiment, data.clients[client], federation_of(experiment, data).network())


def batches_of(site: Site, round: int) -> list[Tensor]:
    seen: list[Tensor] = []

    def look(x: Tensor, y: Tensor) -> Tensor:
        seen.append(x)
        return torch.zeros(())

    train(site, round, look)
    return seen


def test_every_epoch_sees_every_sample_once_the_last_partial_batch_too() -> None:
    site = small_site(small_experiment(epochs=2, batch_size=8))
    batches = batches_of(site, 0)
    assert [len(batch) for batch in batches] == [8, 8, 1, 8, 8, 1]  # int(0.85 · 20) = 17 samples
    for epoch in (batches[:3], batches[3:]):
        seen = torch.cat(epoch)
        assert torch.equal(seen[seen[:, 0].argsort()], site.data.train.x[site.data.train.x[:, 0].argsort()])


def test_batch_order_depends_on_seed_client_round_and_epoch_alone() -> None:
    def first(client: int = 0, round: int = 0, **changes: object) -> Tensor:
        experiment = small_experiment(**changes)
        data = small_data(experiment).clients[0]  # the same data, whoever holds it
        site = Site(client, experiment, data, federation_of(experiment, small_data(experiment)).network())
        return torch.cat(batches_of(site, round)[:3])

    reference = first()
    assert torch.equal(reference, first(lr=0.5, rounds=99, workers=2))
    assert not torch.equal(reference, first(seed=1))
    assert not torch.equal(reference, first(client=1))
    assert not torch.equal(reference, first(round=1))
    both_epochs = torch.cat(batches_of(small_site(small_experiment()), 0)).split(17)  # type: ignore[no-untyped-call]
    assert not torch.equal(*both_epochs)


def test_the_optimiser_is_pytorchs_momentum_sgd() -> None:
    mine, theirs = torch.randn(50), torch.nn.Parameter(torch.empty(50))
    theirs.data.copy_(mine)
    sgd, reference = MomentumSGD(mine, lr=0.1), torch.optim.SGD([theirs], lr=0.1, momentum=0.9)
    for _ in range(5):
        theirs.grad = torch.randn(50)
        sgd.step(theirs.grad)
        reference.step()
    torch.testing.assert_close(mine, theirs.data)


def test_two_momentum_steps_by_hand() -> None:
    x = torch.tensor([1.0])
    sgd = MomentumSGD(x, lr=0.5)
    sgd.step(torch.tensor([2.0]))  # v = 2, x = 1 − 0.5·2 = 0
    sgd.step(torch.tensor([1.0]))  # v = 0.9·2 + 1 = 2.8, x = 0 − 0.5·2.8 = −1.4
    assert x.item() == pytest.approx(-1.4)


def test_the_reported_loss_is_the_mean_over_samples() -> None:
    experiment = small_experiment(epochs=1)
    site = small_site(experiment)
    x, y = site.data.train
    loss = train(site, 0, lambda a, b: gradient(site.network, a, b))
    assert loss == pytest.approx(functional.cross_entropy(site.network.module(x), y).item(), rel=1e-5)


def test_a_loss_that_is_not_finite_names_its_step() -> None:
    site = small_site(small_experiment())
    calls = iter([1.0, 2.0, 3.0, 4.0, float("inf"), float("nan")])
    with pytest.raises(NotFinite, match="the loss or a gradient is not finite at step 1 of epoch 1"):
        train(site, 0, lambda _x, _y: torch.tensor(next(calls)))


def test_accuracy_by_hand() -> None:
    site = small_site(small_experiment())
    network = site.network
    network.vector.zero_()
    network.vector[-3:] = torch.tensor([0.0, 1.0, 0.0])  # the biases alone decide: always class 1
    always_one = network.vector.clone()
    samples = Samples(torch.randn(4, 6), torch.tensor([1, 0, 1, 1]))
    data = dataclasses.replace(site.data, test=samples)
    scores = evaluate(dataclasses.replace(site, data=data), always_one)
    assert scores.test == Measures(accuracy=0.75, balanced_accuracy=0.5, auroc=0.5)
    assert scores.validation.accuracy == float((site.data.validation.y == 1).double().mean())
