"""Per-FedAvg: what it is without adaptation, how batches are cut, and how a client adapts."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from helpers import SmallFederation, method, small_run
from orchard.core.training import ClientContext
from orchard.methods.perfedavg import halves


class SecondHalves(ClientContext):
    """Has the second half of each batch."""

    def batches(self, round: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in super().batches(round, epoch):
            first = len(y) // 2 if len(y) > 3 else 0
            yield x[first:], y[first:]


class Normalising(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def finetuned(federation: SmallFederation) -> Tensor:
    """What the first client makes of the first model."""
    client, context = federation.clients[0], federation.contexts[0]
    client.receive(context, federation.download(0, 0))
    model = client.finetune(context, 0)
    assert model is not None
    assert torch.equal(client.personalised(), federation.federation.initial_model())
    return model


def test_without_steps_of_adaptation_it_is_fedavg_on_the_second_halves() -> None:
    federation = SmallFederation(method=method("per-fedavg", alpha=0.0)).run(3)
    fedavg = SmallFederation(method="fedavg")
    fedavg.contexts = [SecondHalves(c.client, c.experiment, c.data, c.network) for c in fedavg.contexts]
    assert torch.equal(federation.global_model(), fedavg.run(3).global_model())
    assert not torch.equal(federation.global_model(), SmallFederation(method="per-fedavg").run(3).global_model())


@pytest.mark.parametrize(
    ("samples", "first", "second"),
    [(1, [0], [0]), (2, [0, 1], [0, 1]), (3, [0, 1, 2], [0, 1, 2]), (4, [0, 1], [2, 3]), (5, [0, 1], [2, 3, 4])],
)
def test_how_batches_are_cut(samples: int, first: list[int], second: list[int]) -> None:
    assert [list(range(samples)[half]) for half in halves(samples)] == [first, second]


@pytest.mark.parametrize(("batch_size", "client"), [(2, 1), (3, 0), (5, 0)])  # of 22 and 17 samples: none is left alone
def test_a_half_is_never_too_small_for_normalisation(batch_size: int, client: int) -> None:
    federation = SmallFederation(method="per-fedavg", model=Normalising, batch_size=batch_size)
    assert federation.clients[client].train(federation.contexts[client], 0) > 0


@pytest.mark.parametrize("epochs", [1, 3])
def test_adaptation_is_plain_sgd_with_alpha(epochs: int) -> None:
    own = SmallFederation(method=method("per-fedavg", alpha=0.03, adaptation_epochs=epochs))
    plain = SmallFederation(method=method("fedavg-ft", tuning_epochs=epochs), lr=0.03, momentum=0.0)
    assert torch.equal(finetuned(own), finetuned(plain))


def test_the_rate_of_adaptation_is_the_learning_rate_unless_given() -> None:
    given, default = (SmallFederation(method=method("per-fedavg", alpha=alpha)) for alpha in (0.05, None))
    assert torch.equal(finetuned(given), finetuned(default))


def test_without_epochs_of_adaptation_the_global_model_is_evaluated() -> None:
    run = small_run(method=method("per-fedavg", adaptation_epochs=0))
    assert (run.scores() == run.scores(moment="after_aggregation")).all()
    adapted = small_run(method="per-fedavg")
    assert (adapted.scores(measure="auroc") != adapted.scores(measure="auroc", moment="after_aggregation")).any()
