"""A method that breaks the contract is told which of its classes does what, before anything silent goes wrong."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import orchard
from helpers import small_run
from orchard.methods import (
    Averaging,
    AveragingServer,
    ClientContext,
    Download,
    FedAvgClient,
    Federation,
    MethodSettings,
    Moment,
    Scores,
    Traffic,
    Vectors,
    gradient,
)
from orchard.methods.fedavg import FedAvg, FedAvgFT, FedAvgLocal


class Talkative(FedAvgClient):
    def upload(self) -> Vectors:
        return {**super().upload(), "secret": self.model}


class Short(FedAvgClient):
    def upload(self) -> Vectors:
        return {"model": self.model[1:]}


class Square(FedAvgClient):
    def upload(self) -> Vectors:
        return {"model": self.model[None]}


class Listing(FedAvgClient):
    def upload(self) -> Vectors:
        return {"model": self.model.tolist()}  # type: ignore[dict-item]


class Silent(FedAvgClient):
    def upload(self) -> Vectors:
        return {}


class Curious(FedAvgClient):
    def select(self, round: int) -> Sequence[str]:
        return ("model", "secret") if round else ("model",)


class Lossless(FedAvgClient):
    def train(self, context: ClientContext, round: int) -> float:
        super().train(context, round)
        return None  # type: ignore[return-value]


class Forgetful(FedAvgClient):
    def train(self, context: ClientContext, round: int) -> float:
        self.last_loss = super().train(context, round)
        return self.last_loss


class Careless(FedAvgClient):
    def receive(self, context: ClientContext, download: Download) -> None:
        self.model = download.vectors["model"].mul_(0.9)


class Adding(FedAvgClient):
    """Changes a tensor that it did not declare."""

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self.total = torch.zeros(federation.parameters)

    def train(self, context: ClientContext, round: int) -> float:
        loss = super().train(context, round)
        self.total += self.model
        return loss


class Appending(FedAvgClient):
    """Changes a list that it did not declare."""

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self.losses: list[float] = []

    def train(self, context: ClientContext, round: int) -> float:
        self.losses.append(super().train(context, round))
        return self.losses[-1]


class Counted(FedAvgClient):
    """Changes an array in place that it declared."""

    state_keys = ("model", "counts")

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self.counts = np.zeros(3)

    def train(self, context: ClientContext, round: int) -> float:
        self.counts[0] += 1
        return super().train(context, round)


class Lending(FedAvgClient):
    """Uploads the memory in which the next client trains."""

    def train(self, context: ClientContext, round: int) -> float:
        loss = super().train(context, round)
        self.model = self.model.clone()
        self.lent = context.network.vector
        return loss

    state_keys = ("model", "lent")

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self.lent = self.model

    def upload(self) -> Vectors:
        return {"model": self.lent}


class Borrowing(FedAvgClient):
    def train(self, context: ClientContext, round: int) -> float:
        loss = super().train(context, round)
        self.model = context.network.vector
        return loss


class Modelless(FedAvgClient):
    def personalised(self) -> Tensor:
        return None  # type: ignore[return-value]


class HastyServer(AveragingServer):
    """Adds up uploads in the memory of the first."""

    def aggregate(self, uploads: Mapping[int, Vectors]) -> None:
        total = uploads[0]["model"]
        for i in (1, 2, 3):
            total += uploads[i]["model"]
        self.model = total / 4


class ForgetfulServer(AveragingServer):
    def send(self, client: int, selected: Sequence[str]) -> Vectors:
        return {}


class TalkativeServer(AveragingServer):
    def send(self, client: int, selected: Sequence[str]) -> Vectors:
        return {**super().send(client, selected), "secret": self.model}


class ShortServer(AveragingServer):
    def send(self, client: int, selected: Sequence[str]) -> Vectors:
        return {"model": self.model[1:]}


P = 6 * 200 + 200 + 200 * 3 + 3


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Talkative, "Talkative.upload() sends 'secret', but the method's traffic() declares 'model'"),
        (Short, f"Short.upload() sends 'model' with shape ({P - 1},); traffic() declares length {P}"),
        (Square, f"Square.upload() sends 'model' with shape (1, {P}); traffic() declares length {P}"),
        (Listing, f"Listing.upload() sends 'model' with list; traffic() declares length {P}"),
        (Silent, "Silent.upload() lacks 'model', which traffic() declares"),
        (Curious, "Curious.select() asks for 'secret', which traffic() does not declare"),
        (Lossless, "Lossless.train() must return the mean training loss as a float, not None"),
        (Forgetful, "Forgetful changes last_loss: name it in Forgetful.state_keys, so that a run can resume"),
        (Careless, "Careless modifies model in place: replace it"),
        (Adding, "Adding modifies total in place: replace it"),
        (Appending, "Appending modifies losses in place: replace it"),
        (Counted, "Counted modifies counts in place: replace it"),
        (Lending, "Lending keeps or uploads the network's own vector, which the next client overwrites: clone it"),
        (Borrowing, "Borrowing.personalised() returns the network's own vector, which the next client overwrites"),
        (Modelless, f"Modelless.personalised() must return a vector of length {P}, not NoneType"),
    ],
)
def test_a_client_that_breaks_the_contract_is_named(
    kind: type[FedAvgClient], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FedAvg, "client", lambda self, index, federation: kind(federation))
    with pytest.raises(orchard.RunFailed) as failure:
        small_run(method="fedavg")
    assert str(failure.value).startswith(f"client 0, round 1 (and 3 more): TypeError: {message}")
    assert isinstance(failure.value.__cause__, TypeError)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (TalkativeServer, "TalkativeServer.send() sends 'secret', but the method's traffic() declares 'model'"),
        (ShortServer, f"ShortServer.send() sends 'model' with shape ({P - 1},); traffic() declares length {P}"),
        (ForgetfulServer, "ForgetfulServer.send() lacks 'model', which client 0 selected"),
        (
            HastyServer,
            "HastyServer modifies the received 'upload of client 0' in place: "
            "replace it, e.g. self.x = self.x + y instead of self.x += y",
        ),
    ],
)
def test_a_server_that_breaks_the_contract_is_named(
    kind: type[AveragingServer], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FedAvg, "server", lambda self, federation: kind(federation))
    with pytest.raises(orchard.RunFailed) as failure:
        small_run(method="fedavg")
    assert str(failure.value) == f"server, round 1: TypeError: {message}"
    assert isinstance(failure.value.__cause__, TypeError)


def test_a_method_that_declares_no_traffic_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Averaging, "traffic", MethodSettings.traffic)
    message = r"FedAvgClient\.select\(\) asks for 'model', which traffic\(\) does not declare"
    with pytest.raises(orchard.RunFailed, match=message):
        small_run(method="fedavg")


class Counting(FedAvgClient):
    def upload(self) -> Vectors:
        return {**super().upload(), "counts": torch.ones(3)}


def test_what_is_declared_travels_whatever_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    def traffic(settings: MethodSettings, federation: Federation) -> Traffic:
        return Traffic(down={"model": federation.parameters}, up={"model": federation.parameters, "counts": 3})

    monkeypatch.setattr(Averaging, "traffic", traffic)
    monkeypatch.setattr(FedAvg, "client", lambda self, index, federation: Counting(federation))
    assert small_run(method="fedavg").rounds[-1].bytes_up == [4 * (P + 3)] * 4


class Dreaming(FedAvgClient):
    """Changes its model after it has been evaluated."""

    def on_evaluated(self, moment: Moment, scores: Scores) -> None:
        if moment == "after_training":
            self.model = torch.zeros_like(self.model)


def test_the_model_handed_out_is_the_one_that_was_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvgLocal, "client", lambda self, index, federation: Dreaming(federation))
    assert all(bool(vector.any()) for vector, _ in small_run(method="fedavg-local").models)


def test_a_misspelt_moment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "moment", "after_all")
    with pytest.raises(orchard.UserError, match=r"method\.moment = 'after_all': expected one of after_training, "):
        small_run(method="fedavg")


def test_a_method_that_should_finetune_and_does_not_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "moment", "after_finetuning")
    with pytest.raises(orchard.RunFailed, match=r"FedAvgClient\.finetune\(\) returns None, but the method"):
        small_run(method="fedavg")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"client": MethodSettings.client}, r"FedAvg has no method client\(index, federation\)"),
        ({"server": MethodSettings.server}, r"FedAvg has no method server\(federation\)"),
        ({"traffic": lambda self, federation: {"model": 3}}, r"FedAvg\.traffic\(\) must return Traffic\(.*not dict"),
    ],
)
def test_a_method_that_lacks_a_part_is_told_which(
    change: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in change.items():
        monkeypatch.setattr(FedAvg, name, value)
    with pytest.raises(orchard.RunFailed, match=message):
        small_run(method="fedavg")


def test_names_of_state_are_a_tuple(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvgClient, "state_keys", "model")
    with pytest.raises(orchard.RunFailed, match=r"FedAvgClient\.state_keys must be a tuple of names, .* not 'model'"):
        small_run(method="fedavg")


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layers(x)
        return scores


class Stepping(FedAvgClient):
    """Takes a gradient outside of the epochs, as Per-FedAvg does."""

    def finetune(self, context: ClientContext, round: int) -> Tensor:
        context.network.vector.copy_(self.model)
        gradient(context.network, *next(context.batches(round, 0)))
        return self.model - 0.1 * context.network.gradient


def test_what_layers_draw_outside_of_epochs_is_seeded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvgFT, "client", lambda self, index, federation: Stepping(federation))
    results = []
    for seed, workers in ((1, 1), (2, 3)):
        torch.manual_seed(seed)
        models = small_run(method="fedavg-ft", model=Dropped, workers=workers).models
        results.append(torch.stack([vector for vector, _ in models]))
    assert torch.equal(*results)
