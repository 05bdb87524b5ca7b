"""FedDyn: its first round, what the server does by hand, and how gradient terms add up. See test_quadratic_clients."""

import pytest
import torch
from torch import Tensor

import orchard
from helpers import SmallFederation, method, small_experiment
from orchard.methods.feddyn import FedDynClient, FedDynServer


def server_of(federation: SmallFederation) -> FedDynServer:
    assert isinstance(federation.server, FedDynServer)
    return federation.server


def gradient_terms(federation: SmallFederation) -> list[Tensor]:
    return [client.gradient for client in federation.clients if isinstance(client, FedDynClient)]


def test_the_first_local_copies_are_those_of_fedprox() -> None:
    first = SmallFederation(method=method("feddyn", alpha=0.3))
    assert torch.equal(first.run(1).models(), SmallFederation(method=method("fedprox", mu=0.3)).run(1).models())
    assert not torch.equal(first.run(2).models(), SmallFederation(method=method("fedprox", mu=0.3)).run(2).models())


def test_the_server_by_hand() -> None:
    """α = ½; the clients move by 1, 2, 3 and 6, however many samples they have; then only the last one does, by 4."""
    server = server_of(SmallFederation(method=method("feddyn", alpha=0.5)))
    start = server.model.double()
    server.aggregate({i: {"model": server.model + move} for i, move in enumerate((1.0, 2.0, 3.0, 6.0))})
    torch.testing.assert_close(server.h, torch.full_like(server.h, -0.5 * 3))
    torch.testing.assert_close(server.model.double(), start + 3 + 3, rtol=0, atol=1e-5)
    server.aggregate({3: {"model": server.model + 4.0}})
    torch.testing.assert_close(server.h, torch.full_like(server.h, -1.5 - 0.5))
    torch.testing.assert_close(server.model.double(), start + 6 + 4 + 4, rtol=0, atol=1e-5)


def test_h_is_the_mean_of_the_gradient_terms() -> None:
    federation = SmallFederation(method=method("feddyn", alpha=0.5))
    for r in range(3):
        federation.round(r)
        mean = torch.stack(gradient_terms(federation)).double().mean(0)
        assert mean.norm() > 0.01
        torch.testing.assert_close(server_of(federation).h.double(), mean, rtol=0, atol=1e-6)


def test_a_gradient_term_is_the_gradient_where_local_training_has_ended() -> None:
    federation = SmallFederation(
        method=method("feddyn", alpha=3.0), momentum=0.0, epochs=60, batch_size=1000, model="logistic"
    )
    (update, *_), context = federation.round(0), federation.contexts[0]
    network = federation.federation.network()
    network.vector.copy_(update.upload["model"])
    x, y = context.data.train
    torch.autograd.backward(torch.nn.functional.cross_entropy(network.module(x), y))
    torch.testing.assert_close(gradient_terms(federation)[0], network.gradient, rtol=1e-3, atol=1e-4)


def test_only_the_model_is_uploaded() -> None:
    federation = SmallFederation(method="feddyn")
    assert [list(update.upload) for update in federation.round(0)] == [["model"]] * 4


@pytest.mark.parametrize(
    ("alpha", "reason"),
    [
        (0.0, "method.alpha = 0.0: input should be greater than 0"),
        (100.0, "method.alpha = 100: lr × alpha = 5, but SGD diverges beyond 3.8"),
    ],
)
def test_a_pull_that_is_none_or_too_strong_is_refused(alpha: float, reason: str) -> None:
    with pytest.raises(orchard.UserError, match=reason):
        small_experiment(method=method("feddyn", alpha=alpha))
