"""FedRep: one part stays while the other is trained; its limits, and that the head never travels."""

from typing import Any

import pytest
import torch
from torch import Tensor

import orchard
from helpers import SmallFederation, method, small_experiment, small_run

EVERYTHING = ["hidden", "output"]


def fedrep(head_epochs: int | None, body_epochs: int, private: list[str] | None = None, **changes: Any) -> Tensor:
    """Return the models after their first training."""
    settings = method("fedrep", head_epochs=head_epochs, body_epochs=body_epochs, private=private)
    return SmallFederation(method=settings, **changes).run(1).models()


def test_with_everything_private_it_is_separate_training(alone: Tensor) -> None:
    """The body's epoch then changes nothing."""
    assert torch.equal(SmallFederation(method=method("fedrep", private=EVERYTHING)).run(3).models(), alone)


def test_with_nothing_private_and_no_epoch_for_it_it_is_fedavg_local() -> None:
    settings = method("fedrep", private=[], head_epochs=0, body_epochs=2)
    fedrep = SmallFederation(method=settings).run(3)
    assert torch.equal(fedrep.models(), SmallFederation(method="fedavg-local").run(3).models())


def test_one_part_stays_while_the_other_is_trained() -> None:
    federation = SmallFederation(method="fedrep").federation
    start, head = federation.initial_model(), federation.layout.part(["output"])
    body = federation.layout.rest(head)
    for model in fedrep(2, 0):
        assert torch.equal(body.of(model), body.of(start))
        assert not torch.equal(head.of(model), head.of(start))
    for model in fedrep(0, 2):
        assert torch.equal(head.of(model), head.of(start))
        assert not torch.equal(body.of(model), body.of(start))
    for model, trained_head in zip(fedrep(2, 3), fedrep(2, 0), strict=True):
        assert torch.equal(head.of(model), head.of(trained_head))  # no momentum of its own moves it any more
        assert not torch.equal(body.of(model), body.of(start))


def test_by_default_the_head_has_the_local_epochs_and_the_body_one() -> None:
    assert torch.equal(fedrep(None, 1), fedrep(2, 1))
    assert torch.equal(SmallFederation(method="fedrep").run(1).models(), fedrep(2, 1))
    assert torch.equal(fedrep(None, 1, epochs=3), fedrep(3, 1))


def test_a_step_of_the_head_then_one_of_the_body_on_the_gradient_there() -> None:
    federation = SmallFederation(method="fedrep", epochs=1, batch_size=1000).run(1)
    network, lr = federation.federation.network(), federation.experiment.lr
    head = network.layout.part(["output"])
    body = network.layout.rest(head)
    x, y = federation.contexts[1].data.train
    w = federation.federation.initial_model()
    for part in (head, body):
        network.vector.copy_(w)
        network.gradient.zero_()
        torch.autograd.backward(torch.nn.functional.cross_entropy(network.module(x), y))
        w = part.replaced(w, part.of(w) - lr * part.of(network.gradient))
    torch.testing.assert_close(federation.models()[1], w, rtol=0, atol=1e-6)


def test_the_loss_is_the_mean_over_both_phases() -> None:
    """With whole batches an epoch's loss is that of the model before its step."""
    whole: dict[str, Any] = {"batch_size": 1000}
    federation = SmallFederation(method=method("fedrep", head_epochs=2, body_epochs=1), **whole)
    network, (x, y) = federation.federation.network(), federation.contexts[0].data.train
    losses = []
    for model in (federation.federation.initial_model(), fedrep(1, 0, **whole)[0], fedrep(2, 0, **whole)[0]):
        network.vector.copy_(model)
        losses.append(torch.nn.functional.cross_entropy(network.module(x), y).item())
    assert federation.round(0)[0].loss == pytest.approx(sum(losses) / 3, rel=1e-6)


def test_after_a_round_bodies_are_equal_and_heads_are_not() -> None:
    federation = SmallFederation(method="fedrep").run(2)
    layout = federation.federation.layout
    head = layout.part(["output"])
    body = layout.rest(head)
    for i, client in enumerate(federation.clients):
        before = client.personalised()
        client.receive(federation.contexts[i], federation.download(i, 2))
        assert torch.equal(body.of(client.personalised()), federation.global_model())
        assert torch.equal(head.of(client.personalised()), head.of(before))
    heads = [head.of(client.personalised()) for client in federation.clients]
    assert not any(torch.equal(one, heads[0]) for one in heads[1:])


def test_the_body_travels_and_no_byte_of_the_head() -> None:
    federation = SmallFederation(method="fedrep")
    head = federation.federation.layout.part(["output"])
    body = federation.federation.layout.rest(head)
    for update, client in zip(federation.round(0), federation.clients, strict=True):
        assert list(update.upload) == ["body"]
        assert torch.equal(update.upload["body"], body.of(client.personalised()))


def test_settings_under_which_nothing_is_trained_are_refused() -> None:
    with pytest.raises(orchard.UserError, match=r"^method\.head_epochs = 0: with body_epochs = 0 nothing would be"):
        small_experiment(method=method("fedrep", head_epochs=0, body_epochs=0))
    with pytest.raises(orchard.UserError, match=r"^method\.body_epochs = -1: input should be greater"):
        small_experiment(method=method("fedrep", body_epochs=-1))


def test_a_layer_that_does_not_exist_is_refused_before_training() -> None:
    with pytest.raises(orchard.UserError, match=r"method\.private = \['head'\]: 'head': no such layer"):
        small_run(method=method("fedrep", private=["head"]))
