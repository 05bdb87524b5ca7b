"""APPLE, property by property. `=` in a name's comment means bit for bit."""

import copy
import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from helpers import SmallFederation, classes, small_experiment
from orchard.core.contract import Download
from orchard.core.federation import Federation
from orchard.core.models import CNN
from orchard.core.training import ClientContext, gradient, local_sgd
from orchard.data.clients import ClientData
from orchard.data.samples import Samples
from orchard.errors import UserError
from orchard.experiment import Experiment
from orchard.methods.apple import Apple, AppleClient, AppleServer, core_of
from test_vector import Residual


def setting(apple: Apple | None = None, **changes: object) -> tuple[Experiment, Federation, list[ClientContext]]:
    small = SmallFederation(method=apple or "apple", **changes)  # type: ignore[arg-type]
    return small.experiment, small.federation, small.contexts


def parties(experiment: Experiment, federation: Federation) -> tuple[list[AppleClient], AppleServer]:
    apple = experiment.method
    assert isinstance(apple, Apple)
    return [apple.client(i, federation) for i in range(federation.clients)], apple.server(federation)


def one_round(clients: list[AppleClient], server: AppleServer, contexts: list[ClientContext], round: int) -> None:
    receive(clients, server, contexts, round)
    for client, context in zip(clients, contexts, strict=True):
        client.train(context, round)
    server.aggregate({i: client.upload() for i, client in enumerate(clients)})


def receive(clients: list[AppleClient], server: AppleServer, contexts: list[ClientContext], round: int = 0) -> None:
    for i, client in enumerate(clients):
        client.receive(contexts[i], Download(round, server.send(i, client.select(round))))


def at_rate(context: ClientContext, lr: float) -> ClientContext:
    """The same client with another learning rate."""
    return dataclasses.replace(context, experiment=context.experiment.model_copy(update={"lr": lr}))


# --- The gradients, against the network with N branches ------------------------------------------------


class Branches(nn.Module):
    """The published formulation: N layers side by side, their outputs mixed by p."""

    def __init__(self, layers: list[nn.Module], p: Tensor) -> None:
        super().__init__()
        self.layers, self.p = nn.ModuleList(layers), p

    def forward(self, x: Tensor) -> Tensor:
        return sum((self.p[j] * layer(x) for j, layer in enumerate(self.layers)), torch.zeros(()))


def branched(modules: list[nn.Module], p: Tensor) -> nn.Module:
    """Replace every layer by N of them."""
    whole = copy.deepcopy(modules[0])
    for name, layer in list(whole.named_modules()):
        if isinstance(layer, nn.Conv2d | nn.Linear | nn.BatchNorm2d):
            parent, _, attribute = name.rpartition(".")
            branches = Branches([m.get_submodule(name) for m in modules], p)
            setattr(whole.get_submodule(parent), attribute, branches)
    return whole


@pytest.mark.parametrize(
    ("factory", "shape", "count"),
    [
        (lambda: CNN((1, 28, 28), 4).double(), (1, 28, 28), 4),
        (lambda: Residual().double(), (2, 6, 6), 3),
    ],
)
def test_one_network_has_the_gradients_of_n_branches(factory, shape, count) -> None:  # type: ignore[no-untyped-def]
    n, mine, batch = 3, 1, 10
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(batch, *shape, dtype=torch.float64, generator=draw)
    y = torch.randint(count, (batch,), generator=draw)
    p = torch.tensor([0.7, -0.4, 0.5], dtype=torch.float64)

    # One step with learning rate 1 and no momentum yet moves by exactly minus the gradient.
    apple = Apple(relationship_lr=1.0, mu=0.3, scheduler_fraction=1.0)
    experiment = small_experiment(clients=n, lr=1.0, epochs=1, batch_size=batch, model=factory)
    experiment = experiment.model_copy(update={"method": apple})
    federation = Federation(experiment, (20, 30, 50), shape, classes(count))
    client = apple.client(mine, federation)
    client.relationships = p.clone()
    samples = Samples(x, y)
    context = ClientContext(mine, experiment, ClientData("", samples, samples, samples), federation.network())
    before = client.core.clone()
    cores = {core_of(j): federation.initial_core(j) for j in range(n) if j != mine}
    client.receive(context, Download(0, cores))
    client.train(context, round=0)
    core_gradient = before - client.core
    p_gradient = p - client.relationships

    networks = [federation.network() for _ in range(n)]
    for j, network in enumerate(networks):
        network.vector.copy_(federation.initial_core(j))
    leaf = p.clone().requires_grad_()
    oracle = branched([network.module for network in networks], leaf).train()
    proximal = 0.3 / 2 * (leaf - torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)).square().sum()
    torch.autograd.backward(functional.cross_entropy(oracle(x), y) + proximal)
    torch.testing.assert_close(core_gradient, networks[mine].gradient, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(p_gradient, leaf.grad, rtol=1e-9, atol=1e-12)


def test_the_first_cores_are_independent_and_anyone_can_rebuild_them() -> None:  # =
    experiment, federation, _ = setting()
    clients, server = parties(experiment, federation)
    cores = torch.stack(server.cores)
    assert torch.equal(cores, torch.stack([client.core for client in clients]))
    resemblance = torch.corrcoef(cores) - torch.eye(4)
    assert resemblance.abs().max() < 0.3
    other = dataclasses.replace(federation, experiment=experiment.model_copy(update={"seed": 7}))
    again = dataclasses.replace(federation)
    for j in range(4):
        assert torch.equal(again.initial_core(j), cores[j])
        assert not torch.equal(other.initial_core(j), cores[j])


# --- Exact degenerate cases -----------------------------------------------------------------------------


def test_alone_and_frozen_it_is_separate_training() -> None:  # =
    experiment, federation, contexts = setting(Apple(relationship_lr=0.0))
    clients, server = parties(experiment, federation)
    for i, client in enumerate(clients):
        client.relationships = torch.eye(len(clients))[i]
    alone = [client.core.clone() for client in clients]
    for r in range(3):
        one_round(clients, server, contexts, r)
        alone = [local_sgd(context, r, w)[0] for context, w in zip(contexts, alone, strict=True)]
    for client, w in zip(clients, alone, strict=True):
        assert torch.equal(client.core, w)
        assert torch.equal(client.personalised(), w)


def test_without_a_self_relationship_the_core_does_not_move() -> None:  # =
    experiment, federation, contexts = setting(Apple(relationship_lr=0.0))
    clients, server = parties(experiment, federation)
    clients[2].relationships[2] = 0.0
    before = clients[2].core.clone()
    one_round(clients, server, contexts, 0)
    assert torch.equal(clients[2].core, before)


def test_a_zero_learning_rate_keeps_the_relationships() -> None:  # =
    experiment, federation, contexts = setting(Apple(relationship_lr=0.0, mu=1.0))
    clients, server = parties(experiment, federation)
    for r in range(3):
        one_round(clients, server, contexts, r)
    expected = torch.tensor(federation.shares)
    assert all(torch.equal(client.relationships, expected) for client in clients)


def test_frozen_relationships_add_up_the_clients_displacements() -> None:  # ≈
    experiment, federation, contexts = setting(Apple(relationship_lr=0.0))
    clients, server = parties(experiment, federation)
    receive(clients, server, contexts)
    w = clients[0].personalised()
    displacements = [
        local_sgd(at_rate(context, experiment.lr * share**2), 0, w)[0] - w
        for context, share in zip(contexts, federation.shares, strict=True)
    ]
    one_round(clients, server, contexts, 0)
    shares = torch.tensor(federation.shares)
    mixed = torch.stack(server.cores).T @ shares
    torch.testing.assert_close(mixed, w + torch.stack(displacements).sum(0), rtol=1e-4, atol=1e-6)


def test_uniform_one_step_at_n_times_the_rate_is_a_fedavg_step() -> None:  # ≈
    experiment, federation, contexts = setting(Apple(relationship_lr=0.0), epochs=1, batch_size=1000, lr=0.4)
    federation = dataclasses.replace(federation, samples=(10, 10, 10, 10))
    clients, server = parties(experiment, federation)
    receive(clients, server, contexts)
    w = clients[0].personalised()
    averaged = torch.stack([local_sgd(at_rate(context, 0.4 / 4), 0, w)[0] for context in contexts]).mean(0)
    one_round(clients, server, contexts, 0)
    torch.testing.assert_close(torch.stack(server.cores).mean(0), averaged, rtol=1e-4, atol=1e-6)


def test_without_mu_scheduler_and_centre_do_not_matter() -> None:  # =
    outcomes = []
    for scheduler, fraction, shift in (("cos", 0.3, 0.0), ("exp", 1.0, 0.0), ("cos", 1.0, 5.0)):
        apple = Apple.model_validate({"mu": 0.0, "scheduler": scheduler, "scheduler_fraction": fraction})
        experiment, federation, contexts = setting(apple)
        clients, server = parties(experiment, federation)
        for client in clients:
            client.p0 = client.p0 + shift
        for r in range(2):
            one_round(clients, server, contexts, r)
        outcomes.append(torch.cat([*server.cores, *(client.relationships for client in clients)]))
    assert torch.equal(outcomes[0], outcomes[1])
    assert torch.equal(outcomes[0], outcomes[2])


def test_the_first_proximal_gradient_is_zero() -> None:  # =
    outcomes = []
    for mu in (0.0, 100.0):
        experiment, federation, contexts = setting(Apple(mu=mu, scheduler_fraction=1.0), epochs=1, batch_size=1000)
        clients, server = parties(experiment, federation)
        one_round(clients, server, contexts, 0)
        outcomes.append(torch.stack([client.relationships for client in clients]))
    assert torch.equal(*outcomes)


def test_the_proximal_term_has_its_half() -> None:
    """The gradient of (μ/2)‖p − p0‖² is μ(p − p0): with no data to learn from, p moves by η2·μ·(p − p0)."""
    experiment, federation, contexts = setting(
        Apple(relationship_lr=0.1, mu=2.0, scheduler_fraction=1.0), lr=0.0, epochs=1, batch_size=1000
    )
    clients, server = parties(experiment, federation)
    client, twin = clients[0], Apple(relationship_lr=0.1, mu=0.0).client(0, federation)
    receive([client], server, contexts)
    receive([twin], server, contexts)
    client.relationships = client.p0 + 1.0
    twin.relationships = client.relationships.clone()
    client.train(contexts[0], 0)
    twin.train(contexts[0], 0)
    torch.testing.assert_close(client.relationships, twin.relationships - 0.1 * 2.0 * 1.0)


# --- Schedulers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", ["cos", "exp"])
@given(rounds=st.integers(1, 400), fraction=st.floats(0, 1))
def test_the_proximal_weight_fades_from_one_to_zero(scheduler: str, rounds: int, fraction: float) -> None:
    apple = Apple.model_validate({"scheduler": scheduler, "scheduler_fraction": fraction})
    length = int(rounds * fraction)
    weights = [apple.proximal_weight(r, rounds) for r in range(rounds)]
    assert weights[0] == (1.0 if length else 0.0)
    assert all(a >= b for a, b in itertools.pairwise(weights))
    assert all(w > 0 for w in weights[:length])
    assert set(weights[length:]) <= {0.0}


def test_the_proximal_weight_by_hand() -> None:
    cos, exp = Apple(scheduler_fraction=0.25), Apple(scheduler="exp", scheduler_fraction=0.25)
    assert cos.proximal_weight(20, 160) == pytest.approx(0.5)  # L = 40
    assert cos.proximal_weight(10, 160) == pytest.approx((math.sqrt(0.5) + 1) / 2)
    assert exp.proximal_weight(20, 160) == pytest.approx(10**-1.5)


def test_both_learning_rates_decay() -> None:
    experiment, federation, contexts = setting(lr_decay=0.5, epochs=1, batch_size=1000)
    clients, server = parties(experiment, federation)
    moves = []
    for r in (0, 2):
        client = Apple(mu=0.0).client(1, federation)
        client.receive(contexts[1], Download(r, server.send(1, client.select(r))))
        client.train(contexts[1], r)
        moves.append((clients[1].core - client.core, clients[1].relationships - client.relationships))
    for first, third in zip(*moves, strict=True):
        torch.testing.assert_close(third, first / 4, rtol=1e-3, atol=1e-7)


# --- Relationships that step after several batches ------------------------------------------------------


def test_relationships_step_on_the_sum_of_several_batches_gradients() -> None:  # ≈
    """Five batches by twos: p steps three times, and w^p is made of the last p and the newest core."""
    every, mu, rate = 2, 0.5, 0.05
    apple = Apple(relationships_every=every, mu=mu, relationship_lr=rate, scheduler_fraction=1.0)
    experiment, federation, contexts = setting(apple, epochs=1, momentum=0.0)
    context = contexts[0]
    size = -(-len(context.data.train.y) // 5)
    experiment = experiment.model_copy(update={"batch_size": size})
    context = dataclasses.replace(context, experiment=experiment)
    clients, server = parties(experiment, federation)
    client = clients[0]
    client.relationships = client.p0 + torch.tensor([0.3, -0.1, 0.2, 0.1])
    receive([client], server, [context])
    cores = [core.clone() for core in server.cores]

    p, sums, batches = client.relationships.clone(), torch.zeros(4), 0
    network = federation.network()
    drawn = list(context.batches(0, 0))
    assert len(drawn) == 5
    for number, (x, y) in enumerate(drawn, 1):
        network.vector.copy_(sum((q * core for q, core in zip(p, cores, strict=True)), torch.zeros(())))
        gradient(network, x, y)
        sums, batches = sums + torch.stack([core @ network.gradient for core in cores]), batches + 1
        cores[0] = cores[0] - experiment.lr * p[0] * network.gradient
        if batches == every or number == len(drawn):
            p = p - rate * (sums + batches * mu * (p - client.p0))
            sums, batches = torch.zeros(4), 0

    client.train(context, 0)
    torch.testing.assert_close(client.relationships, p, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(client.core, cores[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("every", [1, 3, 100])
def test_all_cores_are_read_only_where_p_steps(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice each time, once for the mixture and once for the products; the last batches of a round count too."""
    reads = 0
    mv = torch.mv

    def counted(matrix: Tensor, vector: Tensor, **out: Tensor) -> Tensor:
        nonlocal reads
        reads += 1
        return mv(matrix, vector, **out)

    experiment, federation, contexts = setting(Apple(relationships_every=every), epochs=1, batch_size=2)
    clients, server = parties(experiment, federation)
    receive(clients, server, contexts)
    monkeypatch.setattr(torch, "mv", counted)
    clients[1].train(contexts[1], 0)
    batches = -(-len(contexts[1].data.train.y) // 2)
    assert batches > 3
    assert reads == 2 * -(-batches // every)


def test_a_pull_that_diverges_over_several_batches_is_refused() -> None:
    strong = Apple(relationship_lr=0.01, mu=100.0, scheduler_fraction=0.5)
    small_experiment(method=strong)
    with pytest.raises(UserError, match="relationships_every"):
        small_experiment(method=strong.model_copy(update={"relationships_every": 10}))
