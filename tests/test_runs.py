"""A run's result and its folder."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import orchard
from helpers import REAL_DATA, needs_mnist, small_arrays, small_experiment
from orchard.contract import Answer, Failure
from orchard.data import from_arrays
from orchard.experiment import Experiment
from orchard.measures import Measures
from orchard.record import Round
from orchard.results import Result
from orchard.rounds import Exchange
from orchard.training import Scores


@pytest.fixture(scope="module")
def small_run() -> Result:
    return orchard.run(small_experiment(rounds=4), small_arrays())


def invented(experiment: Experiment, trained: list[list[tuple[float, float]]], result: Result) -> Result:
    """A result with hand-made (validation, test) accuracies, rounds × clients."""
    made = Result(experiment, result.holdings, result.federation, {})
    for r, row in enumerate([*trained, None]):
        answers = {
            i: Answer(None, (), 1.0, scores(*row[i]) if row else None, scores(*trained[r - 1][i]) if r else None)
            for i in range(4)
        }
        made.add(Exchange(r, 1.0, answers, {}, {}, [], {}))
    return made


def scores(validation: float, test: float) -> Scores:
    return Scores(Measures(validation), Measures(test))


def test_bmcta_last_and_selected_by_hand(small_run: Result) -> None:
    # Means of test accuracy: 0.5, 0.7, 0.6; of validation accuracy: 0.2, 0.1, 0.9.
    test = [[0.2, 0.4, 0.6, 0.8], [1.0, 0.6, 0.6, 0.6], [0.6, 0.6, 0.6, 0.6]]
    validation = [0.2, 0.1, 0.9]
    rows = [[(v, t) for t in row] for v, row in zip(validation, test, strict=True)]
    result = invented(small_experiment(rounds=3), rows, small_run)
    assert result.bmcta == pytest.approx(0.7)
    assert result.figures().best.round == 1
    assert result.last.round == result.validation_selected.round == 2
    assert result.last.accuracy == result.validation_selected.accuracy == pytest.approx(0.6)
    assert [client.accuracy for client in result.clients] == [1.0, 0.6, 0.6, 0.6]


def test_bmcta_lies_between_the_last_mean_and_the_mean_of_the_bests(small_run: Result) -> None:
    accuracy = small_run.accuracy()
    assert accuracy[-1].mean() <= small_run.bmcta <= accuracy.max(axis=0).mean()
    assert small_run.bmcta >= small_run.validation_selected.accuracy


def test_a_round_that_lacks_a_client_does_not_count(small_run: Result) -> None:
    result = Result(small_experiment(rounds=9), small_run.holdings, small_run.federation, {})
    good = Answer(None, (), 1.0, scores(0.5, 0.5), None)
    better = Answer(None, (), 1.0, scores(0.9, 0.9), None)
    result.add(Exchange(0, 1.0, dict.fromkeys(range(4), good), {}, {}, [], {}))
    result.add(Exchange(1, 1.0, {0: Failure("gone"), **dict.fromkeys((1, 2, 3), better)}, {}, {}, [], {}))
    assert result.bmcta == 0.5
    assert result.rounds[1].failures == {0: "gone"}


def test_relationships_start_at_the_shares_and_are_kept_by_round(small_run: Result) -> None:
    relationships = small_run.relationships
    assert relationships is not None
    assert relationships.shape == (5, 4, 4)
    np.testing.assert_allclose(relationships[0], np.tile(small_run.federation.shares, (4, 1)), rtol=1e-6)
    assert not np.allclose(relationships[-1], relationships[0])


def test_exchanged_figures_are_those_of_the_next_rounds_models() -> None:
    """With nothing learned by the relationships or the cores, exchanging changes nothing."""
    still = orchard.run(small_experiment(lr=0.0, method={"name": "apple", "relationship_lr": 0.0}), small_arrays())
    np.testing.assert_array_equal(still.accuracy(moment="trained"), still.accuracy(moment="exchanged"))
    moving = orchard.run(small_experiment(), small_arrays())
    assert not np.isnan(moving.accuracy(moment="exchanged")).any()
    assert not np.array_equal(moving.accuracy(moment="trained"), moving.accuracy(moment="exchanged"))


def test_a_personalised_model_is_ready_to_use(small_run: Result) -> None:
    data = from_arrays(small_arrays(), small_run.experiment)
    for i, client in enumerate(data.clients):
        model = small_run.personalised(i)
        assert isinstance(model, nn.Module)
        assert not model.training
        with torch.no_grad():
            accuracy = (model(client.test.x).argmax(1) == client.test.y).double().mean().item()
        assert accuracy == small_run.accuracy()[-1, i]


def test_traffic_is_counted_as_sent() -> None:
    model = 4 * sum(
        p.numel() for p in orchard.run(small_experiment(rounds=1), small_arrays()).personalised(0).parameters()
    )
    for budget, downloads in ((None, 3), (2, 2)):
        run = orchard.run(small_experiment(method={"name": "apple", "budget": budget}), small_arrays())
        for entry in run.rounds:
            assert entry.bytes_up == [model] * 4
            assert entry.bytes_down == [downloads * model] * 4


def test_the_folder_is_plain_and_complete(tmp_path: Path) -> None:
    experiment = small_experiment(out=tmp_path / "run")
    result = orchard.run(experiment, small_arrays())
    kept = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert kept == [
        ".lock",
        "checkpoints",
        "environment.json",
        "experiment.toml",
        "federation.json",
        "metrics.jsonl",
        "models",
        "summary.json",
    ]
    written = Experiment.model_validate(tomllib.loads((tmp_path / "run/experiment.toml").read_text()))
    assert written == experiment.model_copy(update={"out": None})
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1, 2]
    for line, entry in zip(lines, result.rounds, strict=True):
        assert line["trained"]["test"]["accuracy"] == [s.test.accuracy for s in entry.trained if s]
        assert line["exchanged"]["validation"]["auroc"] == [s.validation.auroc for s in entry.exchanged if s]
        assert Round.from_json(line).as_json() == line
        assert line["relationships"] == entry.notes["relationships"]
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["state"] == "finished"
    assert summary["bmcta"] == result.bmcta
    assert summary["bytes_down"] == 3 * sum(lines[0]["bytes_down"])
    federation = json.loads((tmp_path / "run/federation.json").read_text())
    assert federation["counts"]["train"] == result.holdings.counts["train"]


def test_a_failed_run_keeps_what_it_had(tmp_path: Path) -> None:
    arrays = small_arrays()
    arrays[2].x_train[:] = 1e30
    with pytest.raises(orchard.RunFailed):
        orchard.run(small_experiment(out=tmp_path / "run"), arrays)
    line = json.loads((tmp_path / "run/metrics.jsonl").read_text())
    assert "the loss or a gradient is" in line["failures"]["2"]
    assert line["trained"]["test"]["accuracy"][2] is None
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["state"] == "failed"
    assert summary["error"].startswith("client 2, round 0: the loss or a gradient is")


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(orchard.Refusal, match="holds something already"):
        orchard.run(small_experiment(out=tmp_path), small_arrays())
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
    with pytest.raises(orchard.Refusal, match="cannot be used as a folder"):
        orchard.run(small_experiment(out=tmp_path / "precious"), small_arrays())


def test_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    for changes in ({"model": "cnn"}, {"model": "nothing"}, {"device": "warp"}, {"clients": 3}):
        with pytest.raises(orchard.Refusal):
            orchard.run(small_experiment(out=tmp_path / "run", **changes), small_arrays())
    assert not (tmp_path / "run").exists()


def test_arrays_and_the_dataset_must_agree() -> None:
    with pytest.raises(orchard.Refusal, match='set dataset = "arrays"'):
        orchard.run(Experiment(), small_arrays())
    with pytest.raises(orchard.Refusal, match="hand the data over in Python"):
        orchard.run(small_experiment())


def test_a_folder_called_arrays_is_not_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "arrays/a/b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    orchard.run(small_experiment(out=tmp_path / "run"), small_arrays())
    assert orchard.resume(tmp_path / "run", small_arrays(), rounds=4).experiment.dataset == "arrays"


@pytest.mark.slow
@needs_mnist
def test_mnist_practical_learns() -> None:
    experiment = Experiment(dataset="mnist", data_dir=REAL_DATA, fraction=0.2, rounds=10)
    assert orchard.run(experiment).bmcta > 0.7
