"""What is the same model is held in memory once, however many clients have a copy."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from helpers import SmallFederation
from orchard.core.contract import Download, Server
from orchard.core.vector import Network, empty_matrix
from orchard.engines.memory import Stacker, share, shared_matrix
from orchard.methods.apple import Apple, AppleClient, AppleServer, core_of


def held(federation: SmallFederation) -> list[Tensor]:
    """All models that the parties of an APPLE federation hold, as often as they hold them."""
    assert isinstance(federation.server, AppleServer)
    clients = [client for client in federation.clients if isinstance(client, AppleClient)]
    own = [model for client in clients for model in (client.core, *client.copies) if model is not None]
    return [*federation.server.cores, *own]


def places(models: list[Tensor]) -> set[int]:
    return {model.untyped_storage().data_ptr() for model in models}


def selections(federation: SmallFederation, r: int) -> dict[int, tuple[str, ...]]:
    return {i: tuple(client.select(r)) for i, client in enumerate(federation.clients)}


def test_without_a_budget_all_share_one_matrix_once_they_have_received() -> None:
    federation = SmallFederation(method=Apple()).run(2)
    share(federation.server, federation.clients, selections(federation, 2))
    for i, client in enumerate(federation.clients):
        client.receive(federation.contexts[i], federation.download(i, 2))
    assert len(held(federation)) == 4 + 4 * 4
    assert len(places(held(federation))) == 1


def test_without_a_budget_nobody_keeps_copies_that_will_come_anew() -> None:
    federation = SmallFederation(method=Apple()).run(2)
    assert len(held(federation)) == 4 + 4  # the server's cores, and each client's own
    for i, client in enumerate(federation.clients):
        assert isinstance(client, AppleClient)
        client.receive(federation.contexts[i], federation.download(i, 2))
        assert not torch.equal(client.personalised(), federation.models()[i])


@pytest.mark.parametrize("budget", [None, 3])
def test_a_state_that_is_taken_over_gives_the_same_model(budget: int | None) -> None:
    federation = SmallFederation(method=Apple(budget=budget))
    client, context, download = federation.clients[0], federation.contexts[0], federation.download(0, 0)
    client.receive(context, download)
    old, mixed = client.state(), client.personalised()
    federation.run(1)
    client.receive(context, federation.download(0, 1))
    assert not torch.equal(client.personalised(), mixed)
    client.restore(old)
    if budget is None:  # else the state has the copies
        client.receive(context, download)
    assert torch.equal(client.personalised(), mixed)


def test_a_download_that_lacks_a_core_is_refused_where_there_is_no_copy() -> None:
    for budget, refused in ((None, True), (3, False)):
        federation = SmallFederation(method=Apple(budget=budget)).run(1)
        download = Download(1, federation.server.send(0, [core_of(2)]))
        with pytest.raises(ValueError, match="lacks core models") if refused else nullcontext():
            federation.clients[0].receive(federation.contexts[0], download)


def test_under_a_budget_a_version_of_a_core_exists_once() -> None:
    federation = SmallFederation(method=Apple(budget=1)).run(5)
    models = held(federation)
    versions = {model.numpy().tobytes() for model in models}
    assert 4 < len(versions) < len(models)  # some copies are old, some are shared
    assert len(places(models)) == len(versions)


class Holding(Server):
    state_keys = ("models",)

    def __init__(self, *models: Tensor) -> None:
        self.models = list(models)


EVERYTHING = {0: ("a", "b", "c"), 1: ("a", "b")}


def test_models_that_all_are_about_to_download_become_rows_of_one_matrix_wherever_they_are_held() -> None:
    models = [torch.randn(21) for _ in range(3)]
    server, client = Holding(*models), Holding(models[1], torch.randn(21))
    share(server, [client], EVERYTHING)
    assert shared_matrix(server.models) is not None
    assert all(torch.equal(row, model) for row, model in zip(server.models, models, strict=True))
    assert client.models[0] is server.models[1]
    before = list(server.models)
    share(server, [client], EVERYTHING)
    assert all(row is old for row, old in zip(server.models, before, strict=True)), "they are that already"


@pytest.mark.parametrize(
    ("last", "selected"),
    [
        (torch.randn(20), EVERYTHING),
        (torch.randn(21, dtype=torch.float64), EVERYTHING),
        (torch.arange(21), EVERYTHING),
        (torch.randn(21), {0: ("a", "b", "c"), 1: ("a",)}),
        (torch.randn(21), {0: ("a", "b"), 1: ("a", "b")}),
    ],
    ids=["length", "precision", "numbers", "budget", "few"],
)
def test_what_does_not_fit_one_matrix_or_is_not_for_all_stays_as_it_is(
    last: Tensor, selected: dict[int, tuple[str, ...]]
) -> None:
    models = [torch.randn(21), torch.randn(21), last]
    server = Holding(*models)
    share(server, [], selected)
    assert all(mine is model for mine, model in zip(server.models, models, strict=True))


def test_rows_of_one_matrix_are_shared_and_others_copied() -> None:
    network, stacker = Network(nn.Linear(6, 3)), Stacker()  # 21 parameters
    matrix = empty_matrix(3, network.vector)
    matrix.copy_(torch.arange(63.0).view(3, 21))
    rows = list(matrix)
    shared = stacker([rows[0], None, rows[2]], network.vector)
    assert shared.data_ptr() == matrix.data_ptr()
    assert torch.equal(shared, matrix)
    for mixed in ([rows[1], None, rows[2]], [rows[0].clone(), None, rows[2]], [rows[0], None], [None]):
        assert shared_matrix(mixed) is None
        copied = stacker(mixed, network.vector)
        assert copied.data_ptr() != matrix.data_ptr()
        assert copied.stride() == (32, 1)
        expected = [torch.zeros(21) if row is None else row for row in mixed]
        assert torch.equal(copied, torch.stack(expected))


def test_copied_rows_go_into_the_same_memory_each_time() -> None:
    network, stacker = Network(nn.Linear(6, 3)), Stacker()
    first = stacker([torch.ones(21), torch.ones(21)], network.vector)
    again = stacker([None, torch.full((21,), 2.0)], network.vector)
    assert again.data_ptr() == first.data_ptr()
    assert again.tolist() == [[0.0] * 21, [2.0] * 21]
