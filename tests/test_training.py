"""The local loop: the same batches for every method, the optimiser of the paper, and no silent divergence."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from helpers import federation_of, measures, small_data, small_experiment
from orchard.core.evaluation import evaluate
from orchard.core.training import (
    ClientContext,
    MomentumSGD,
    NotFinite,
    check_finite,
    fixed,
    gradient,
    local_sgd,
    pull,
    run_epochs,
)
from orchard.data.samples import Samples
from orchard.experiment import Experiment


def small_context(experiment: Experiment, client: int = 0) -> ClientContext:
    data = small_data(experiment)
    return ClientContext(client, experiment, data.clients[client], federation_of(experiment, data).network())


def batches_of(context: ClientContext, round: int) -> list[Tensor]:
    seen: list[Tensor] = []

    def look(x: Tensor, y: Tensor) -> Tensor:
        seen.append(x)
        return torch.zeros(())

    run_epochs(context, round, look)
    return seen


def test_every_epoch_sees_every_sample_once_the_last_partial_batch_too() -> None:
    context = small_context(small_experiment(epochs=2, batch_size=8))
    batches = batches_of(context, 0)
    assert [len(batch) for batch in batches] == [8, 8, 1, 8, 8, 1]  # int(0.85 · 20) = 17 samples
    for epoch in (batches[:3], batches[3:]):
        seen = torch.cat(epoch)
        assert torch.equal(seen[seen[:, 0].argsort()], context.data.train.x[context.data.train.x[:, 0].argsort()])


def test_batch_order_depends_on_seed_client_round_and_epoch_alone() -> None:
    def first(client: int = 0, round: int = 0, **changes: object) -> Tensor:
        experiment = small_experiment(**changes)
        data = small_data(experiment).clients[0]  # the same data, whoever holds it
        context = ClientContext(client, experiment, data, federation_of(experiment, small_data(experiment)).network())
        return torch.cat(batches_of(context, round)[:3])

    reference = first()
    assert torch.equal(reference, first(lr=0.5, rounds=99, momentum=0.5))
    assert not torch.equal(reference, first(seed=1))
    assert not torch.equal(reference, first(client=1))
    assert not torch.equal(reference, first(round=1))
    both_epochs = torch.cat(batches_of(small_context(small_experiment()), 0)).split(17)  # type: ignore[no-untyped-call]
    assert not torch.equal(*both_epochs)


def test_the_optimiser_is_pytorchs_momentum_sgd() -> None:
    mine, theirs = torch.randn(50), torch.nn.Parameter(torch.empty(50))
    theirs.data.copy_(mine)
    sgd, reference = MomentumSGD(mine, small_experiment(lr=0.1), 0), torch.optim.SGD([theirs], lr=0.1, momentum=0.9)
    for _ in range(5):
        theirs.grad = torch.randn(50)
        sgd.step(theirs.grad)
        reference.step()
    torch.testing.assert_close(mine, theirs.data)


def test_two_momentum_steps_by_hand() -> None:
    x = torch.tensor([1.0])
    sgd = MomentumSGD(x, small_experiment(lr=0.5), 0)
    sgd.step(torch.tensor([2.0]))  # v = 2, x = 1 − 0.5·2 = 0
    sgd.step(torch.tensor([1.0]))  # v = 0.9·2 + 1 = 2.8, x = 0 − 0.5·2.8 = −1.4
    assert x.item() == pytest.approx(-1.4)


def test_momentum_and_decay_are_the_experiments() -> None:
    experiment = small_experiment(momentum=0.5, lr=0.4, lr_decay=0.5)
    for lr, rate in ((None, 0.1), (0.8, 0.2)):  # two rounds halve both learning rates twice
        x = torch.tensor([1.0])
        sgd = MomentumSGD(x, experiment, 2, lr)
        sgd.step(torch.tensor([2.0]))
        sgd.step(torch.tensor([1.0]))  # v = 0.5·2 + 1 = 2
        assert x.item() == pytest.approx(1 - rate * 2 - rate * 2)


def test_a_correction_changes_the_gradient_before_the_momentum() -> None:
    context = small_context(small_experiment(epochs=2, batch_size=1000))
    start = context.network.vector.clone()
    x, y = context.data.train
    lr, velocity, w = context.experiment.lr, torch.zeros_like(start), start.clone()
    for _ in range(2):
        context.network.vector.copy_(w)
        gradient(context.network, x, y)
        velocity = 0.9 * velocity + context.network.gradient + 3.0 * (w - (start + 1))
        w = w - lr * velocity
    trained, _ = local_sgd(context, 0, start, correction=pull(start + 1, 3.0))
    torch.testing.assert_close(trained, w)


def test_a_fixed_part_stays_and_the_rest_moves_as_it_would_alone() -> None:
    context = small_context(small_experiment(model="logistic", epochs=1))
    start, layout = context.network.vector.clone(), context.network.layout
    weight, bias = layout.part(["output.weight"]), layout.part(["output.bias"])
    trained, _ = local_sgd(context, 0, start, correction=fixed(weight))
    assert torch.equal(weight.of(trained), weight.of(start))
    assert not torch.equal(bias.of(trained), bias.of(start))
    context.network.module.get_parameter("output.weight").requires_grad_(False)  # PyTorch's way of fixing it
    frozen, _ = local_sgd(context, 0, start)
    assert torch.equal(frozen, trained)


def test_a_later_phase_goes_on_with_batches_and_draws_of_its_own() -> None:
    context = dataclasses.replace(small_context(small_experiment(epochs=3)), random_layers=True)

    def seen(epochs: int, first_epoch: int) -> tuple[list[Tensor], Tensor]:
        batches, draws = [], []

        def look(x: Tensor, y: Tensor) -> Tensor:
            batches.append(x)
            draws.append(torch.rand(()))
            return torch.zeros(())

        run_epochs(context, 1, look, epochs, first_epoch)
        return batches, torch.stack(draws)

    (whole, _), (first, draws), (second, others) = seen(3, 0), seen(1, 0), seen(2, 1)
    assert all(map(torch.equal, whole, first + second))
    assert len(whole) == len(first + second)
    assert not bool(torch.isin(draws, others).any())


def test_the_reported_loss_is_the_mean_over_samples() -> None:
    experiment = small_experiment(epochs=1)
    context = small_context(experiment)
    x, y = context.data.train
    loss = run_epochs(context, 0, lambda a, b: gradient(context.network, a, b))
    assert loss == pytest.approx(functional.cross_entropy(context.network.module(x), y).item(), rel=1e-5)


def test_a_loss_that_is_not_finite_names_its_step() -> None:
    context = small_context(small_experiment())
    calls = iter([1.0, 2.0, 3.0, 4.0, float("inf"), float("nan")])
    with pytest.raises(NotFinite, match="the loss or a gradient is not finite at step 2 of epoch 2"):
        run_epochs(context, 0, lambda _x, _y: torch.tensor(next(calls)))


def test_accuracy_by_hand() -> None:
    context = small_context(small_experiment())
    network = context.network
    network.vector.zero_()
    network.vector[-3:] = torch.tensor([0.0, 1.0, 0.0])  # the biases alone decide: always class 1
    always_one = network.vector.clone()
    samples = Samples(torch.randn(4, 6), torch.tensor([1, 0, 1, 1]))
    data = dataclasses.replace(context.data, test=samples)
    scores = evaluate(dataclasses.replace(context, data=data), always_one)
    assert scores.test == measures(accuracy=0.75, balanced_accuracy=0.5, auroc=0.5)
    assert scores.validation["accuracy"] == float((context.data.validation.y == 1).double().mean())


def test_what_is_not_finite_is_found_and_large_values_are_not_taken_for_it() -> None:
    largest = torch.finfo(torch.float32).max
    check_finite("model", torch.full((9,), largest))  # their sum is not finite
    for bad in (math.nan, math.inf, -math.inf):
        for rest in (0.0, largest):
            values = torch.full((9,), rest)
            values[4] = bad
            with pytest.raises(NotFinite, match="the model is not finite"):
                check_finite("model", values)
    with pytest.raises(NotFinite):
        check_finite("model", torch.tensor([math.inf, -math.inf]))
