"""pFedMe: its limit, the minimum that θ is near, and what stays. See test_quadratic_clients for where it leads."""

import pytest
import torch

import orchard
from helpers import SmallFederation, method, small_experiment
from orchard.methods.pfedme import PFedMeClient


def test_with_one_step_and_all_the_way_it_is_fedavg_local_by_plain_sgd() -> None:
    """η·λ = 1/16 · 16, γ = 0.03."""
    federation = SmallFederation(method=method("pfedme", lam=16.0, inner_steps=1, inner_lr=0.03), lr=1 / 16).run(3)
    fedavg = SmallFederation(method="fedavg-local", lr=0.03, momentum=0.0).run(3)
    assert torch.equal(federation.models(), fedavg.models())
    assert torch.equal(federation.global_model(), fedavg.global_model())


def test_after_many_steps_theta_is_the_minimum_near_w_which_follows_by_the_envelopes_gradient() -> None:
    lam, lr = 8.0, 0.05
    own = method("pfedme", lam=lam, inner_steps=60, inner_lr=0.03)
    federation = SmallFederation(method=own, model="logistic", lr=lr, epochs=1, batch_size=1000)
    start = federation.federation.initial_model()
    update, context = federation.round(0)[1], federation.contexts[1]
    theta, network = federation.trained[1], federation.federation.network()
    network.vector.copy_(theta)
    x, y = context.data.train
    torch.autograd.backward(torch.nn.functional.cross_entropy(network.module(x), y))
    assert network.gradient.norm() > 0.1
    torch.testing.assert_close(lam * (start - theta), network.gradient, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(update.upload["model"], start - lr * network.gradient, rtol=0, atol=1e-5)


def test_a_stronger_pull_stays_nearer_to_the_global_model() -> None:
    distances = []
    for lam in (1.0, 5.0, 25.0):
        federation = SmallFederation(method=method("pfedme", lam=lam), epochs=1, batch_size=1000).run(1)
        distances.append((federation.models() - federation.federation.initial_model()).norm().item())
    assert distances[0] > distances[1] > distances[2]


def test_the_personal_model_is_evaluated_and_not_uploaded() -> None:
    federation = SmallFederation(method="pfedme")
    for i, update in enumerate(federation.round(0)):
        assert list(update.upload) == ["model"]
        assert not torch.equal(update.upload["model"], federation.trained[i])


def test_a_round_depends_on_the_global_model_alone() -> None:
    federation, forgetful = (SmallFederation(method="pfedme").run(1) for _ in range(2))
    forgetful.clients = [forgetful.experiment.method.client(i, forgetful.federation) for i in range(4)]
    assert torch.equal(federation.run(1).models(), forgetful.run(1).models())
    assert all(client.state().keys() == {"model"} for client in federation.clients)


def test_what_was_received_is_used_until_training() -> None:
    federation = SmallFederation(method="pfedme").run(1)
    client = federation.clients[0]
    assert isinstance(client, PFedMeClient)
    client.receive(federation.contexts[0], federation.download(0, 1))
    assert torch.equal(client.personalised(), federation.global_model())


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_the_server_goes_beta_of_the_way_to_the_average_by_samples(beta: float) -> None:
    federation = SmallFederation(method=method("pfedme", beta=beta))
    start, updates = federation.global_model().double(), federation.round(0)
    weighted = zip(federation.federation.shares, updates, strict=True)
    mean = torch.stack([share * update.upload["model"].double() for share, update in weighted]).sum(0)
    torch.testing.assert_close(federation.global_model().double(), start + beta * (mean - start), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("parameters", "momentum", "reason"),
    [
        ({}, 0.9, "method.name = 'pfedme': its steps are plain gradient descent; leave momentum out"),
        ({"lam": 50.0}, None, "method.lam = 50: lr × lam = 2.5, but SGD diverges beyond 2"),
        ({"inner_lr": 0.2}, None, "method.lam = 15: inner_lr × lam = 3, but SGD diverges beyond 2"),
        ({"lam": 0.0}, None, "method.lam = 0.0: input should be greater than 0"),
        ({"inner_steps": 0}, None, "method.inner_steps = 0: input should be greater than or equal to 1"),
        ({"beta": 0.0}, None, "method.beta = 0.0: input should be greater than 0"),
    ],
)
def test_what_would_diverge_or_stand_still_is_refused(
    parameters: dict[str, float], momentum: float | None, reason: str
) -> None:
    with pytest.raises(orchard.UserError, match=reason):
        small_experiment(method=method("pfedme", **parameters), momentum=momentum)


def test_its_momentum_is_zero_by_default() -> None:
    assert small_experiment(method="pfedme").local_momentum == 0
