"""LG-FedAvg: FedPer with the other part private."""

import torch
from torch import Tensor

from helpers import SmallFederation, method


def test_by_default_it_is_fedper_with_all_but_the_last_layer_private() -> None:
    mirrored = SmallFederation(method=method("fedper", private=["hidden"])).run(3).models()
    assert torch.equal(SmallFederation(method="lg-fedavg").run(3).models(), mirrored)
    assert not torch.equal(SmallFederation(method="fedper").run(3).models(), mirrored)


def test_with_the_same_layers_private_both_are_one_method() -> None:
    models = [SmallFederation(method=method(n, private=["output"])).run(3).models() for n in ("lg-fedavg", "fedper")]
    assert torch.equal(*models)


def test_with_nothing_private_it_is_fedavg_local() -> None:
    shared = SmallFederation(method=method("lg-fedavg", private=[])).run(3)
    assert torch.equal(shared.models(), SmallFederation(method="fedavg-local").run(3).models())


def test_with_everything_private_it_is_separate_training(alone: Tensor) -> None:
    everything = method("lg-fedavg", private=["hidden", "output"])
    assert torch.equal(SmallFederation(method=everything).run(3).models(), alone)


def test_the_head_travels_and_no_byte_of_the_body() -> None:
    federation = SmallFederation(method="lg-fedavg")
    head = federation.federation.layout.part(["output"])
    for update, client in zip(federation.round(0), federation.clients, strict=True):
        assert list(update.upload) == ["head"]
        assert torch.equal(update.upload["head"], head.of(client.personalised()))


def test_after_a_round_heads_are_equal_and_bodies_are_not() -> None:
    federation = SmallFederation(method="lg-fedavg").run(2)
    layout = federation.federation.layout
    head = layout.part(["output"])
    body = layout.rest(head)
    for i, client in enumerate(federation.clients):
        client.receive(federation.contexts[i], federation.download(i, 2))
        assert torch.equal(head.of(client.personalised()), federation.global_model())
    bodies = [body.of(client.personalised()) for client in federation.clients]
    assert not any(torch.equal(one, bodies[0]) for one in bodies[1:])
