"""SCAFFOLD: what it is without drift, and how its control variates add up."""

import pytest
import torch

import orchard
from helpers import SmallFederation, method, small_experiment, small_run
from orchard.methods.scaffold import ScaffoldClient, ScaffoldServer


def server_of(federation: SmallFederation) -> ScaffoldServer:
    assert isinstance(federation.server, ScaffoldServer)
    return federation.server


def controls(federation: SmallFederation) -> list[torch.Tensor]:
    return [client.control for client in federation.clients if isinstance(client, ScaffoldClient)]


def test_the_first_round_is_fedavg_without_momentum() -> None:
    scaffold = SmallFederation(method="scaffold").run(1)
    fedavg = SmallFederation(method="fedavg", momentum=0.0).run(1)
    assert torch.equal(server_of(scaffold).model, fedavg.global_model())
    assert not torch.equal(scaffold.run(2).models(), SmallFederation(method="fedavg", momentum=0.0).run(2).models())


def test_one_client_is_plain_sgd() -> None:
    one = SmallFederation(method="scaffold", clients=1).run(3)
    assert torch.equal(one.models(), SmallFederation(method="separate", momentum=0.0, clients=1).run(3).models())
    assert torch.equal(controls(one)[0], server_of(one).control)


def test_the_clients_control_variates_add_up_to_the_servers() -> None:
    federation = SmallFederation(method="scaffold")
    for r in range(3):
        federation.round(r)
        total = torch.stack(controls(federation)).double().sum(0)
        torch.testing.assert_close(total, 4 * server_of(federation).control.double(), rtol=0, atol=1e-5)


def test_absent_clients_leave_the_sum_as_it_is() -> None:
    federation = SmallFederation(method="scaffold").run(1)
    before, server = server_of(federation).control.clone(), server_of(federation)
    change = torch.ones_like(before)
    server.aggregate({2: {"model": server.model, "control": change}})
    torch.testing.assert_close(server.control, before + change / 4)


def test_a_control_variate_is_the_mean_gradient_of_the_steps() -> None:
    """With one step per round, c_i is the gradient at the model received."""
    federation = SmallFederation(method="scaffold", epochs=1, batch_size=1000)
    context = federation.contexts[1]
    network = federation.federation.network()
    network.vector.copy_(federation.federation.initial_model())
    x, y = context.data.train
    torch.autograd.backward(torch.nn.functional.cross_entropy(network.module(x), y))
    federation.round(0)
    torch.testing.assert_close(controls(federation)[1], network.gradient, rtol=1e-3, atol=1e-5)


def test_the_servers_learning_rate_scales_its_step() -> None:
    start = SmallFederation(method="scaffold").federation.initial_model()
    full, half = (server_of(SmallFederation(method=method("scaffold", global_lr=lr)).run(1)).model for lr in (1.0, 0.5))
    torch.testing.assert_close(half - start, (full - start) / 2, rtol=1e-4, atol=1e-7)


def test_two_vectors_travel_each_way() -> None:
    result = small_run(method="scaffold")
    assert result.rounds[0].bytes_up == result.rounds[0].bytes_down == [2 * 4 * result.federation.parameters] * 4


@pytest.mark.parametrize(("changes", "reason"), [({"momentum": 0.9}, "plain SGD"), ({"lr": 0.0}, "a learning rate")])
def test_settings_under_which_they_are_no_gradients_are_refused(changes: dict[str, float], reason: str) -> None:
    with pytest.raises(orchard.UserError, match=f"method.name = 'scaffold': its control variates need {reason}"):
        small_experiment(method="scaffold", **changes)


def test_its_momentum_is_zero_by_default() -> None:
    assert small_experiment(method="scaffold").local_momentum == 0
    assert small_experiment(method="fedavg").local_momentum == 0.9
