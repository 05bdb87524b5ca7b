"""What holds for all methods: traffic, independence of workers, refused parameters."""

import pytest
import torch

import orchard
from helpers import method, small_arrays, small_experiment, small_run
from orchard.data.client_arrays import from_arrays
from orchard.methods.registry import BUILT_IN
from test_vector import Residual


@pytest.mark.parametrize("name", BUILT_IN)
def test_traffic_equals_the_table(name: str) -> None:
    run = small_run(method=name)
    m = 4 * run.summary()["parameters"]
    body = 4 * (6 * 200 + 200)  # of the MLP, all but the last layer
    head = m - body
    others = {
        "fedper": (body, body),
        "lg-fedavg": (head, head),
        "fedrep": (body, body),  # and fedbn sends all, since the MLP has no normalisation layer
        "scaffold": (2 * m, 2 * m),
        "cfl": (m, m + 4 * 4),  # and the shares of the four clients
        "ifca": (m + 2 * 4, 2 * m),  # and which of the two models
        "fedfomo": (m, 3 * m),
        "apple": (m, 3 * m),
        "graft": (m, m + 4 * 4),  # and the weights of the four clients
    }
    up, down = {"separate": (0, 0), **others}.get(name, (m, m))
    for entry in run.rounds[1:]:
        assert entry.bytes_up == [up] * 4
        assert entry.bytes_down == [down] * 4
    first = run.rounds[0]
    # FedFomo's first round starts from one initial model, so that there is nothing to download yet.
    assert (first.bytes_up, first.bytes_down) == ([up] * 4, [0 if name == "fedfomo" else down] * 4)


@pytest.mark.parametrize("name", ["fedfomo", "apple"])
def test_traffic_under_a_budget(name: str) -> None:
    run = small_run(method=method(name, budget=2))
    m = 4 * run.summary()["parameters"]
    assert run.rounds[-1].bytes_down == [2 * m] * 4


@pytest.mark.parametrize("name", BUILT_IN)
def test_workers_change_nothing(name: str) -> None:
    runs = [small_run(method=name, workers=w) for w in (1, 3)]
    first, second = (torch.stack([m for m, _ in run.models]) for run in runs)
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_models_handed_out_are_those_that_were_evaluated(name: str) -> None:
    experiment, arrays = small_experiment(method=name, model=Residual), small_arrays(shape=(2, 6, 6))
    run = orchard.run(experiment, arrays)
    for i, client in enumerate(from_arrays(arrays, experiment).clients):
        with torch.no_grad():
            correct = run.personalised(i)(client.test.x).argmax(1) == client.test.y
        assert correct.double().mean().item() == run.scores()[-1, i]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (method("apfl", alpha=1.5), "method.alpha = 1.5: input should be less than or equal to 1"),
        (method("apfl", alpha=-0.1), "method.alpha = -0.1: input should be greater than or equal to 0"),
        (method("apfl", alpha=0.0), "method.alpha = 0: v = w at the start, so α would never move"),
        (method("heurfedamp", sigma=-1.0), "method.sigma = -1.0: input should be greater than or equal to 0"),
        (
            method("heurfedamp", lam=1e6),
            "method.lam = 1e+06: lr × lam / α_k in round 1 of 3 (α_k falls tenfold every 30) = 5",
        ),
        (method("fedprox-ft", mu=100.0), "method.mu = 100: lr × mu = 5, but SGD diverges beyond 3.8"),
        (method("fedprox-ft", tuning_epochs=-1), "method.tuning_epochs = -1: input should be greater"),
        (method("fedfomo", budget=4), "method.budget = 4: at most clients − 1 = 3 others to download"),
        (method("fedavgg"), "method.name = 'fedavgg': unknown method; did you mean 'fedavg'?"),
        (method("separate", mu=1.0), "method.mu: unknown key of separate; it has none"),
    ],
)
def test_bad_parameters_are_refused_in_one_line(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(orchard.UserError) as refusal:
        small_experiment(method=parameters)
    assert str(refusal.value).startswith(message)
    assert "\n" not in str(refusal.value)
