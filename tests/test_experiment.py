"""An experiment is refused before anything runs, or it is exactly what was asked for."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from helpers import SmallFederation, small_run
from orchard.data.samples import Samples
from orchard.errors import UserError
from orchard.experiment import Experiment, RunOptions, definition_of, load_experiment, to_toml
from orchard.methods.apple import Apple
from orchard.methods.graft import Graft


def test_defaults_are_the_papers_but_for_the_method() -> None:
    paper = Experiment(dataset="mnist")
    assert (paper.clients, paper.rounds, paper.epochs, paper.batch_size, paper.lr) == (12, 160, 5, 256, 0.01)
    assert paper.partition.name == "practical"
    assert paper.method == Graft()
    assert Apple() == Apple(relationship_lr=1e-3, mu=0.01, scheduler="cos", scheduler_fraction=0.3)


def test_digits_have_defaults_of_their_own() -> None:
    digits = Experiment()
    assert (digits.dataset, digits.clients, digits.rounds, digits.batch_size) == ("digits", 8, 25, 16)
    assert digits.partition.model_dump() == {"name": "dirichlet", "seed": 42, "alpha": 0.5}
    assert Experiment(clients=5).clients == 5


@given(
    rounds=st.integers(1, 500),
    seed=st.integers(0, 2**63 - 1),
    lr=st.floats(0, 10),
    mu=st.floats(0, 100),
    scheduler=st.sampled_from(["cos", "exp"]),
    partition=st.sampled_from(["practical", "pathological", "dirichlet"]),
    workers=st.none() | st.integers(1, 8),
)
def test_toml_round_trip_is_exact(**values: object) -> None:
    method = {"name": "apple", "mu": values.pop("mu"), "scheduler": values.pop("scheduler")}
    options = RunOptions.model_validate({"workers": values.pop("workers")})
    experiment = Experiment.model_validate({**values, "method": method})
    assert definition_of(tomllib.loads(to_toml(experiment, options))) == (experiment, options)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("roundz=3", "roundz: unknown key; did you mean 'rounds'?"),
        ("method.mue=3", "method.mue: unknown key of apple; did you mean 'mu'?"),
        ("partition.alfa=3", "partition.alfa: unknown key of dirichlet; did you mean 'alpha'?"),
        ("rounds=many", "rounds = 'many': input should be a valid integer"),
        ("rounds=2.5", "rounds = 2.5: input should be a valid integer"),
        ("rounds=true", "rounds = True: input should be a valid integer"),
        ("clients=0", "clients = 0: input should be greater than or equal to 1"),
        ("fraction=0", "fraction = 0: input should be greater than 0"),
        ("fraction=1.5", "fraction = 1.5: input should be less than or equal to 1"),
        ("lr=nan", "lr = nan: input should be a finite number"),
        ("partition.alpha=0", "partition.alpha = 0: input should be greater than 0"),
        (
            "partition=random",
            "partition.name = 'random': unknown; known: pathological, practical, dirichlet, iid, column, writers, ",
        ),
        ("method=aple", "method.name = 'aple': unknown method; did you mean 'apple'?"),
        ("method.budget=8", "method.budget = 8: at most clients − 1 = 7 others to download"),
        ("method.budget=0", "method.budget = 0: input should be greater than or equal to 1"),
        ("method.mu=4000", "method.mu = 4000: relationship_lr × mu = 4, but SGD diverges beyond 3.8"),
        ("method.scheduler=linear", "method.scheduler = 'linear': input should be 'cos' or 'exp'"),
        ("rounds.deep=1", "--set rounds.deep=1: 'rounds' is not a group of settings"),
        ("rounds", "--set rounds: expected KEY=VALUE"),
    ],
)
def test_what_is_wrong_is_named(setting: str, message: str) -> None:
    with pytest.raises(UserError) as refusal:
        load_experiment(overrides={"rounds": 10, "method": "apple"}, assignments=[setting])
    assert message in str(refusal.value)


def test_several_problems_are_all_named() -> None:
    with pytest.raises(UserError) as refusal:
        load_experiment(assignments=["rounds=0", "clients=0"])
    assert [line.split(" = ")[0] for line in str(refusal.value).splitlines()] == ["clients", "rounds"]


def test_in_python_too_what_is_wrong_is_said_by_a_sentence() -> None:
    sentence = "clients = 0: input should be greater than or equal to 1"
    ways: list[Callable[[], object]] = [
        lambda: Experiment(clients=0),
        lambda: Experiment().changed(clients=0),
        lambda: Experiment.model_validate({"clients": 0}),
        lambda: Experiment.model_validate_json('{"clients": 0}'),
    ]
    for make in ways:
        with pytest.raises(UserError) as refusal:
            make()
        assert str(refusal.value) == sentence
    with pytest.raises(UserError, match=r"^method\.mu = -1: input should be greater than or equal to 0$"):
        Experiment.model_validate({"method": {"name": "apple", "mu": -1}})
    with pytest.raises(UserError, match=r"^input should be a valid dictionary or instance of Experiment$"):
        Experiment.model_validate(5)


@pytest.mark.parametrize("option", RunOptions.model_fields)
def test_a_run_option_in_an_experiment_is_refused_by_a_sentence_that_says_where_it_goes(option: str) -> None:
    sentence = f"{option}: is a run option, not part of the experiment: orchard.run(…, {option}=…)"
    with pytest.raises(UserError) as refusal:
        Experiment(**{option: 2})  # type: ignore[arg-type]
    assert sentence in str(refusal.value)
    with pytest.raises(UserError) as refused:
        Experiment().changed(**{option: 2})
    assert str(refused.value) == sentence


def test_divergence_is_judged_where_the_proximal_term_is_strongest() -> None:
    limit = 3.8
    assert Experiment(method=Apple(relationship_lr=1.0, mu=limit)).method
    with pytest.raises(UserError, match="diverges"):
        Experiment(method=Apple(relationship_lr=1.0, mu=limit + 0.01))
    with pytest.raises(UserError, match=r"SGD diverges beyond 2\b"):
        Experiment(method=Apple(relationship_lr=1.0, mu=limit), momentum=0.0)
    # Without a single round of proximal term, or with frozen relationships, nothing can diverge.
    assert Experiment(method=Apple(relationship_lr=1.0, mu=1000.0, scheduler_fraction=0.0)).method
    assert Experiment(method=Apple(relationship_lr=0.0, mu=1e9)).method


def test_file_then_options_then_assignments(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text('rounds = 7\nseed = 1\nmethod = "apple"\n[partition]\nname = "practical"\nseed = 3\n')
    experiment = load_experiment(
        file, overrides={"seed": 2, "dataset": None}, assignments=["method.mu=0.5", "partition.seed=4"]
    )
    assert (experiment.rounds, experiment.seed, experiment.dataset) == (7, 2, "digits")
    assert experiment.partition.model_dump() == {"name": "practical", "seed": 4}
    assert experiment.method.model_dump()["mu"] == 0.5


def test_naming_the_same_method_keeps_its_parameters(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text('[method]\nname = "apple"\nmu = 0.5\n')
    assert load_experiment(file, overrides={"method": "apple"}).method == Apple(mu=0.5)
    assert load_experiment(file, overrides={"method": "fedavg"}).method.name == "fedavg"


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.toml: cannot be read: No such file"):
        load_experiment(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(UserError, match=r"bad\.toml: is not valid TOML"):
        load_experiment(tmp_path / "bad.toml")
    with pytest.raises(UserError, match=r"none\.toml: cannot be read: No such file"):
        load_experiment("none.toml")


# --- Momentum ---


class Tiny(nn.Linear):
    """Class scores that are linear in the sample, so that the gradient can be written down."""

    def __init__(self) -> None:
        super().__init__(6, 3)


def trained(epochs: int, **changes: Any) -> tuple[Tensor, Tensor, Samples]:
    """A client's model before and after one round, in which every epoch is one step on all of its samples."""
    tiny = SmallFederation(method="separate", model=Tiny, epochs=epochs, batch_size=64, lr=0.5, **changes)
    return tiny.federation.initial_model(), tiny.run(1).models()[0], tiny.contexts[0].data.train


def by_hand(model: Tensor, samples: Samples) -> Tensor:
    """The gradient of the mean cross-entropy: (softmax(Wx + b) − onehot(y))·(x, 1)ᵀ."""
    weight, bias = model[:18].reshape(3, 6), model[18:]
    excess = (samples.x @ weight.T + bias).softmax(1)
    excess[torch.arange(len(samples.y)), samples.y] -= 1
    return torch.cat([(excess.T @ samples.x).flatten(), excess.sum(0)]) / len(samples.y)


def test_without_momentum_a_step_is_plain_sgd() -> None:
    before, after, samples = trained(1, momentum=0.0)
    first = before - 0.5 * by_hand(before, samples)
    torch.testing.assert_close(after, first)
    torch.testing.assert_close(trained(2, momentum=0.0)[1], first - 0.5 * by_hand(first, samples))


def test_momentum_is_a_setting() -> None:
    before, default, samples = trained(2)
    first = by_hand(before, samples)
    second = by_hand(before - 0.5 * first, samples)
    torch.testing.assert_close(default, before - 0.5 * (1.9 * first + second))
    assert torch.equal(trained(2, momentum=0.9)[1], default)
    assert not torch.allclose(trained(2, momentum=0.0)[1], default)
    torch.testing.assert_close(trained(2, momentum=0.3)[1], before - 0.5 * (1.3 * first + second))
    assert small_run(momentum=0.0).rounds[-1].loss != small_run().rounds[-1].loss


def test_local_momentum_is_the_experiments_or_else_the_methods() -> None:
    assert Experiment().momentum is None
    assert Experiment().local_momentum == Apple.momentum == 0.9
    assert Experiment(method="scaffold").local_momentum == 0.0  # type: ignore[arg-type]
    assert Experiment(momentum=0.0).local_momentum == 0.0
    assert load_experiment(assignments=["momentum=0.5"]).local_momentum == 0.5
    for bad in (-0.1, 1.0):
        with pytest.raises(UserError, match="momentum"):
            Experiment(momentum=bad)
    assert Experiment().identity() != Experiment(momentum=0.0).identity()
