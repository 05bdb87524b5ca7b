"""APFL against FedAvg, separate training and finite differences. "is" in a name means bit for bit."""

import pytest
import torch
from torch import Tensor, nn

import orchard
from helpers import Dropping, SmallFederation, method, small_arrays, small_experiment
from orchard.core.evaluation import mean_loss
from orchard.methods.apfl import APFLClient
from test_vector import Residual


def apfl(**parameters: object) -> SmallFederation:
    return SmallFederation(method=method("apfl", **parameters))


def apfl_clients(federation: SmallFederation) -> list[APFLClient]:
    return [client for client in federation.clients if isinstance(client, APFLClient)]


def test_apfl_with_alpha_one_is_separate(alone: Tensor) -> None:
    federation = apfl(alpha=1.0, adaptive=False).run(3)
    assert torch.equal(torch.stack([client.private for client in apfl_clients(federation)]), alone)
    assert torch.equal(federation.models(), alone)


def test_apfl_with_alpha_zero_is_fedavg_local_and_the_private_model_stays() -> None:
    federation = apfl(alpha=0.0, adaptive=False)
    start = apfl_clients(federation)[0].private.clone()
    federation.run(3)
    assert torch.equal(federation.models(), SmallFederation(method="fedavg-local").run(3).models())
    assert all(torch.equal(client.private, start) for client in apfl_clients(federation))


def test_the_global_branch_of_apfl_is_fedavg_whatever_alpha() -> None:
    fedavg = SmallFederation(method="fedavg").run(3).global_model()
    for parameters in ({}, {"alpha": 0.9}, {"alpha": 0.3, "adaptive": False}):
        assert torch.equal(apfl(**parameters).run(3).global_model(), fedavg)


def test_alpha_stays_between_zero_and_one() -> None:
    federation = SmallFederation(method="apfl", lr=0.9, rounds=9)
    for r in range(9):
        federation.round(r)
        assert all(0 <= client.alpha.item() <= 1 for client in apfl_clients(federation))


def test_alpha_moves_once_a_round_by_its_gradient() -> None:
    federation = SmallFederation(method="apfl", model=lambda: torch.nn.Linear(6, 3).double(), batch_size=1000, rounds=9)
    client, context = apfl_clients(federation)[1], federation.contexts[1]
    client.private = client.private + 0.1 * torch.randn(21, dtype=torch.float64)

    def objective(alpha: float) -> float:
        mixed = alpha * client.private + (1 - alpha) * client.model
        return mean_loss(context.network, mixed, context.data.train)

    before, h = client.alpha.item(), 1e-5
    slope = (objective(before + h) - objective(before - h)) / (2 * h)
    client.train(context, 0)  # two epochs of one step each
    assert client.alpha.item() == pytest.approx(before - federation.experiment.lr * slope, rel=1e-6)


@pytest.mark.parametrize(("model", "shape"), [(Dropping, (6,)), (Residual, (2, 6, 6))], ids=["dropout", "batchnorm"])
def test_with_random_layers_and_statistics_the_special_cases_still_hold(
    model: type[nn.Module], shape: tuple[int, ...]
) -> None:
    arrays = small_arrays(shape=shape)
    alone, private, local, shared = (
        orchard.run(small_experiment(method=name, model=model), arrays)
        for name in (
            "separate",
            method("apfl", alpha=1.0, adaptive=False),
            "fedavg-local",
            method("apfl", alpha=0.0, adaptive=False),
        )
    )
    for (mine, my_statistics), (theirs, their_statistics) in zip(private.models, alone.models, strict=True):
        assert torch.equal(mine, theirs)
        assert all(torch.equal(my_statistics[name], value) for name, value in their_statistics.items())
    for (mine, _), (theirs, _) in zip(shared.models, local.models, strict=True):
        assert torch.equal(mine, theirs)
