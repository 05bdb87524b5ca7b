"""FedBN: which layers stay, that they never travel, and what they are good for."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import orchard
from helpers import SmallFederation, federation_of, method, small_data, small_experiment
from orchard.core.models import normalisation
from orchard.core.vector import Network
from orchard.data.division import federated_data
from orchard.runs.result import Result


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.Tanh(), nn.Linear(10, 3))


class Several(nn.Module):
    """Layers of all kinds, some of which have no parameters or none that are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.LayerNorm([4, 4]))
        self.instance = nn.InstanceNorm2d(4, affine=True)
        self.plain = nn.Sequential(nn.InstanceNorm2d(4), nn.BatchNorm2d(4, affine=False))
        self.frozen = nn.BatchNorm2d(4).requires_grad_(False)
        self.rms = nn.RMSNorm([4, 4])
        self.norm = nn.Linear(64, 3)  # by name only


def test_parameters_of_all_kinds_of_normalisation_layers() -> None:
    network = Network(Several())
    found = {name for name, piece in network.layout.slices.items() if piece in normalisation(network).slices}
    both = [f"{layer}.{p}" for layer in ("body.1", "body.2", "body.3", "instance") for p in ("weight", "bias")]
    assert found == {*both, "rms.weight"}


def test_without_normalisation_layers_it_is_fedavg_local() -> None:
    fedbn = SmallFederation(method="fedbn").run(3)
    assert torch.equal(fedbn.models(), SmallFederation(method="fedavg-local").run(3).models())


def test_it_is_fedper_with_the_normalisation_layers_private() -> None:
    fedbn, fedper, fedavg = (
        SmallFederation(method=settings, model=wide, batch_size=6).run(3).models()
        for settings in ("fedbn", method("fedper", private=["1"]), "fedavg-local")
    )
    assert torch.equal(fedbn, fedper)
    assert not torch.equal(fedbn, fedavg)


def test_no_byte_of_the_normalisation_layers_is_in_an_upload() -> None:
    federation = SmallFederation(method="fedbn", model=wide, batch_size=6)
    others = federation.federation.layout.part(["0", "3"])
    for update, client in zip(federation.round(0), federation.clients, strict=True):
        assert list(update.upload) == ["model"]
        assert torch.equal(update.upload["model"], others.of(client.personalised()))


def test_after_a_round_only_normalisation_layers_differ_with_their_statistics() -> None:
    federation = SmallFederation(method="fedbn", model=wide, batch_size=6).run(2)
    norm = federation.federation.normalisation
    others = federation.federation.layout.rest(norm)
    for i, client in enumerate(federation.clients):
        before = client.personalised()
        client.receive(federation.contexts[i], federation.download(i, 2))
        assert torch.equal(others.of(client.personalised()), federation.global_model())
        assert torch.equal(norm.of(client.personalised()), norm.of(before))
    models = [client.personalised() for client in federation.clients]
    means = [context.network.buffers()["1.running_mean"] for context in federation.contexts]
    for mine in ([norm.of(model) for model in models], means):
        assert not any(torch.equal(one, mine[0]) for one in mine[1:])


def test_more_clients_do_not_build_more_models() -> None:
    built = []

    def counted() -> nn.Module:
        built.append(1)
        return wide()

    experiment = small_experiment(method="fedbn", model=counted, batch_size=6)
    federation = federation_of(experiment, small_data(experiment))
    clients, so_far = [experiment.method.client(0, federation)], len(built)
    clients += [experiment.method.client(i, federation) for i in (1, 2, 3)]
    assert len(built) == so_far


class Normalised(nn.Module):
    """A small convolutional network with BatchNorm."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.LazyLinear(classes)),
        )

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layers(x)
        return scores


@pytest.mark.slow
def test_where_features_differ_it_is_ahead_of_fedavg() -> None:
    """As published: after a few rounds, at clients of which half see inverted images.

    The paper's FedAvg averages statistics too, and is far behind with every seed. Orchard's leaves them with their
    client and is behind in the mean only. FedAvg-local does as well as FedBN here: local statistics are what helps.
    """
    published, ours, fedbn, fedbn_shared = [], [], [], []
    for seed in (0, 1, 2):
        runs = {name: inverted_digits(name, seed) for name in ("fedavg", "fedbn")}
        published.append(with_averaged_statistics(runs["fedavg"]))
        ours.append(runs["fedavg"].scores()[-1].mean())
        fedbn.append(runs["fedbn"].scores()[-1].mean())
        fedbn_shared.append(runs["fedbn"].scores(moment="after_aggregation")[-1].mean())
    assert np.greater(fedbn, np.array(published) + 0.1).all()
    assert np.greater(fedbn_shared, np.array(published) + 0.1).all()
    assert np.mean(fedbn) > np.mean(ours)


def inverted_digits(name: str, seed: int) -> Result:
    settings = {"dataset": "digits", "clients": 8, "partition": {"name": "iid", "seed": seed}, "shift": "invert"}
    training = {"rounds": 4, "epochs": 3, "batch_size": 16, "lr": 0.01, "seed": seed}
    return orchard.run(small_experiment(**settings, **training, model=Normalised, method=name))


def with_averaged_statistics(run: Result) -> float:
    """Return the mean client accuracy of a run's global model with the mean of all clients' statistics."""
    kept = [buffers for _, buffers in run.models]
    mean = {name: torch.stack([one[name].double() for one in kept]).mean(0) for name in kept[0]}
    right = []
    for i, client in enumerate(federated_data(run.experiment).clients):
        network = run.personalised(i)
        network.load_state_dict(mean, strict=False)
        with torch.no_grad():
            right.append((network(client.test.x).argmax(1) == client.test.y).double().mean().item())
    return float(np.mean(right))
