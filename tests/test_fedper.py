"""FedPer: its two limits, and that the head never travels."""

import pytest
import torch
from torch import Tensor

import orchard
from helpers import SmallFederation, method, small_run

EVERYTHING = ["hidden", "output"]


def test_with_nothing_private_it_is_fedavg_local() -> None:
    fedper = SmallFederation(method=method("fedper", private=[])).run(3)
    assert torch.equal(fedper.models(), SmallFederation(method="fedavg-local").run(3).models())


def test_with_everything_private_it_is_separate_training(alone: Tensor) -> None:
    assert torch.equal(SmallFederation(method=method("fedper", private=EVERYTHING)).run(3).models(), alone)


def test_the_last_layer_is_private_unless_others_are_named() -> None:
    by_default = SmallFederation(method="fedper").run(2).models()
    assert torch.equal(by_default, SmallFederation(method=method("fedper", private=["output"])).run(2).models())


def test_no_byte_of_the_head_is_in_an_upload() -> None:
    federation = SmallFederation(method="fedper")
    head = federation.federation.layout.part(["output"])
    before = federation.round(0)
    with torch.no_grad():
        for context, client in zip(federation.contexts, federation.clients, strict=True):
            assert len(before[context.client].upload["body"]) + len(head) == federation.federation.parameters
            model: Tensor = vars(client)["model"]
            vars(client)["model"] = head.replaced(model, torch.full((len(head),), 7.0))
            assert torch.equal(client.upload()["body"], before[context.client].upload["body"])


def test_after_a_round_bodies_are_equal_and_heads_are_not() -> None:
    federation = SmallFederation(method="fedper").run(2)
    layout = federation.federation.layout
    head = layout.part(["output"])
    for i, client in enumerate(federation.clients):
        client.receive(federation.contexts[i], federation.download(i, 2))
    bodies = [layout.rest(head).of(client.personalised()) for client in federation.clients]
    heads = [head.of(client.personalised()) for client in federation.clients]
    assert all(torch.equal(body, bodies[0]) for body in bodies)
    assert not any(torch.equal(one, heads[0]) for one in heads[1:])


def test_the_body_is_the_average_by_samples() -> None:
    federation = SmallFederation(method="fedper")
    updates = federation.round(0)
    shares = federation.federation.shares
    mean = sum(share * update.upload["body"].double() for share, update in zip(shares, updates, strict=True))
    assert isinstance(mean, Tensor)
    sent = federation.server.send(0, ("body",))["body"]
    torch.testing.assert_close(sent.double(), mean, rtol=0, atol=1e-7)


def test_a_layer_that_does_not_exist_is_refused_before_training() -> None:
    with pytest.raises(
        orchard.UserError, match=r"method\.private = \['head'\]: 'head': no such layer; .*output\.weight"
    ):
        small_run(method=method("fedper", private=["head"]))


def test_traffic_is_that_of_the_body() -> None:
    result = small_run(method="fedper")
    head = result.federation.layout.part(["output"])
    assert result.rounds[0].bytes_up == [4 * (result.federation.parameters - len(head))] * 4
