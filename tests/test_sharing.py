"""What is the same model is held in memory once, however many clients have a copy."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from helpers import SmallFederation
from orchard.contract import Reply
from orchard.methods.apple import Apple, AppleClient, AppleServer


def held(federation: SmallFederation) -> list[Tensor]:
    """All models that the parties of an APPLE federation hold, as often as they hold them."""
    assert isinstance(federation.server, AppleServer)
    clients = [client for client in federation.clients if isinstance(client, AppleClient)]
    own = [model for client in clients for model in (client.core, *client.copies) if model is not None]
    return [*federation.server.cores, *own]


def places(models: list[Tensor]) -> set[int]:
    return {model.untyped_storage().data_ptr() for model in models}


def test_without_a_budget_all_share_one_matrix_once_they_have_received() -> None:
    federation = SmallFederation(method=Apple()).run(2)
    for i, client in enumerate(federation.clients):
        client.receive(federation.sites[i], Reply(2, federation.server.reply(i, client.wants(2))))
    assert len(held(federation)) == 4 + 4 * 4
    assert len(places(held(federation))) == 1


def test_without_a_budget_nobody_keeps_copies_that_will_come_anew() -> None:
    federation = SmallFederation(method=Apple()).run(2)
    assert len(held(federation)) == 4 + 4  # the server's cores, and each client's own
    for i, client in enumerate(federation.clients):
        assert isinstance(client, AppleClient)
        trained = client.personalised()
        client.receive(federation.sites[i], Reply(2, federation.server.reply(i, client.wants(2))))
        assert not torch.equal(client.personalised(), trained)


def test_a_state_saved_with_its_copies_is_taken_over() -> None:
    federation = SmallFederation(method=Apple())
    client = federation.clients[0]
    old = {name: value for name, value in client.state().items() if name != "trained"}
    mixed = client.personalised()
    federation.run(1)
    assert not torch.equal(client.personalised(), mixed)
    client.restore(old)
    assert torch.equal(client.personalised(), mixed)


def test_a_reply_that_lacks_a_core_is_refused_where_there_is_no_copy() -> None:
    for budget, refused in ((None, True), (3, False)):
        federation = SmallFederation(method=Apple(budget=budget)).run(1)
        reply = Reply(1, {2: federation.server.reply(0, (2,))[2]})
        with pytest.raises(ValueError, match="lacks core models") if refused else nullcontext():
            federation.clients[0].receive(federation.sites[0], reply)


def test_under_a_budget_a_version_of_a_core_exists_once() -> None:
    federation = SmallFederation(method=Apple(budget=1)).run(5)
    models = held(federation)
    versions = {model.numpy().tobytes() for model in models}
    assert 4 < len(versions) < len(models)  # some copies are old, some are shared
    assert len(places(models)) == len(versions)
