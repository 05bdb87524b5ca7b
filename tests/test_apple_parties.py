"""APPLE's client and server: what leaves a client and what does not, failing, sharing. `=`: bit for bit."""

import numpy as np
import pytest
import torch

from orchard.core.training import NotFinite
from orchard.engines.memory import share
from orchard.methods.apple import Apple
from test_apple import one_round, parties, receive, setting

# --- Privacy --------------------------------------------------------------------------------------------


def test_the_upload_is_the_core_and_no_byte_of_p_is_in_it() -> None:  # =
    experiment, federation, contexts = setting()
    clients, server = parties(experiment, federation)
    one_round(clients, server, contexts, 0)
    client = clients[1]
    upload = client.upload()
    assert list(upload) == ["core"]
    assert federation.traffic.up == {"core": federation.parameters}
    assert torch.equal(upload["core"], client.core)
    assert not torch.equal(upload["core"], client.personalised())
    sent = upload["core"].numpy().tobytes()
    assert len(sent) == 4 * federation.network().vector.numel()
    for value in client.relationships.numpy():
        for kind in (np.float32, np.float64):  # two bytes stand somewhere in any long vector
            assert kind(value).tobytes() not in sent
    assert client.relationships.numpy().tobytes() not in sent
    assert client.relationships.half().numpy().tobytes() not in sent


def test_the_upload_depends_on_p_only_through_training() -> None:  # =
    """Whatever p is, an untrained core is uploaded as it is."""
    experiment, federation, contexts = setting(lr=0.0)
    clients, server = parties(experiment, federation)
    receive(clients, server, contexts)
    client = clients[0]
    before = client.upload()["core"].clone()
    client.relationships = torch.randn(4)
    client.train(contexts[0], 0)
    assert torch.equal(client.upload()["core"], before)


def test_the_server_holds_cores_and_nothing_else() -> None:
    experiment, federation, contexts = setting()
    clients, server = parties(experiment, federation)
    one_round(clients, server, contexts, 0)
    assert set(vars(server)) == {"cores"}
    for core, client in zip(server.cores, clients, strict=True):
        assert torch.equal(core, client.core)


# --- Failing and sharing --------------------------------------------------------------------------------


def test_a_failed_training_leaves_the_client_as_it_was() -> None:  # =
    experiment, federation, contexts = setting(lr=1e30)
    clients, server = parties(experiment, federation)
    receive(clients, server, contexts)
    client = clients[0]
    core, p = client.core.clone(), client.relationships.clone()
    with pytest.raises(Exception, match="the loss or a gradient is not finite at step"):
        client.train(contexts[0], 0)
    assert torch.equal(client.core, core)
    assert torch.equal(client.relationships, p)


def test_a_relationship_that_overflows_in_the_last_step_is_named_with_it() -> None:
    experiment, federation, contexts = setting(Apple(relationship_lr=3e38, mu=0), epochs=1, batch_size=1000)
    clients, server = parties(experiment, federation)
    receive(clients, server, contexts)
    client = clients[0]
    client.copies = [None if core is None else 100 * core for core in client.copies]  # and so are the gradients
    with pytest.raises(NotFinite, match="the loss or a gradient is not finite at step 1 of epoch 1"):
        client.train(contexts[0], 0)


def test_clients_share_the_cores_of_a_round() -> None:
    experiment, federation, contexts = setting()
    clients, server = parties(experiment, federation)
    share(server, clients, {i: tuple(client.select(0)) for i, client in enumerate(clients)})
    receive(clients, server, contexts)
    held = {copy.untyped_storage().data_ptr() for client in clients for copy in client.copies if copy is not None}
    assert len(held) == 1


def test_a_federation_of_one_trains_alone() -> None:
    experiment, federation, contexts = setting(clients=1)
    clients, server = parties(experiment, federation)
    assert not clients[0].select(0)
    one_round(clients, server, contexts, 0)
    assert torch.equal(server.cores[0], clients[0].core)
