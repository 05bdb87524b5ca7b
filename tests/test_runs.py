"""A run's result and its folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import orchard
from helpers import REAL_DATA, measures, needs_mnist, small_arrays, small_experiment, small_run
from orchard.core.contract import ClientUpdate, Failure
from orchard.core.evaluation import Scores
from orchard.data.client_arrays import from_arrays
from orchard.experiment import Experiment, RunOptions, load_definition, load_experiment
from orchard.runs.metrics import Exchange, Round
from orchard.runs.result import Result


@pytest.fixture(scope="module")
def finished() -> Result:
    return small_run(rounds=4)


def invented(experiment: Experiment, trained: list[list[tuple[float, float]]], result: Result) -> Result:
    """A result with hand-made (validation, test) accuracies, rounds × clients."""
    made = Result(experiment, result.distribution, result.federation, {})
    for r, row in enumerate([*trained, None]):
        updates = {
            i: ClientUpdate({}, (), 1.0, scores(*row[i]) if row else None, scores(*trained[r - 1][i]) if r else None)
            for i in range(4)
        }
        made.add(Exchange(r, 1.0, updates, {}, {}, [], {}))
    return made


def scores(validation: float, test: float) -> Scores:
    return Scores(measures(validation), measures(test))


def test_bmcta_last_and_selected_by_hand(finished: Result) -> None:
    # Means of test accuracy: 0.5, 0.7, 0.6; of validation accuracy: 0.2, 0.1, 0.9.
    test = [[0.2, 0.4, 0.6, 0.8], [1.0, 0.6, 0.6, 0.6], [0.6, 0.6, 0.6, 0.6]]
    validation = [0.2, 0.1, 0.9]
    rows = [[(v, t) for t in row] for v, row in zip(validation, test, strict=True)]
    result = invented(small_experiment(rounds=3), rows, finished)
    assert result.bmcta == pytest.approx(0.7)
    assert result.figures().best.round == 1
    assert result.last.round == result.validation_selected.round == 2
    assert result.last.score == result.validation_selected.score == pytest.approx(0.6)
    assert [client.score for client in result.clients] == [1.0, 0.6, 0.6, 0.6]


def test_bmcta_lies_between_the_last_mean_and_the_mean_of_the_bests(finished: Result) -> None:
    accuracy = finished.scores()
    assert accuracy[-1].mean() <= finished.bmcta <= accuracy.max(axis=0).mean()
    assert finished.bmcta >= finished.validation_selected.score


def test_a_round_that_lacks_a_client_does_not_count(finished: Result) -> None:
    result = Result(small_experiment(rounds=9), finished.distribution, finished.federation, {})
    good = ClientUpdate({}, (), 1.0, scores(0.5, 0.5), None)
    better = ClientUpdate({}, (), 1.0, scores(0.9, 0.9), None)
    result.add(Exchange(0, 1.0, dict.fromkeys(range(4), good), {}, {}, [], {}))
    gone = Failure("client 0", 1, "gone")
    result.add(Exchange(1, 1.0, {0: gone, **dict.fromkeys((1, 2, 3), better)}, {}, {}, [], {}))
    assert result.bmcta == 0.5
    assert result.rounds[1].failures == {0: "client 0, round 2: gone"}


def test_relationships_start_at_the_shares_and_are_kept_by_round(finished: Result) -> None:
    relationships = finished.relationships
    assert relationships is not None
    assert relationships.shape == (5, 4, 4)
    np.testing.assert_allclose(relationships[0], np.tile(finished.federation.shares, (4, 1)), rtol=1e-6)
    assert not np.allclose(relationships[-1], relationships[0])


def test_figures_after_aggregation_are_those_of_the_next_rounds_models() -> None:
    """With nothing learned by the relationships or the cores, exchanging changes nothing."""
    still = small_run(lr=0.0, method={"name": "apple", "relationship_lr": 0.0})
    np.testing.assert_array_equal(still.scores(moment="after_training"), still.scores(moment="after_aggregation"))
    moving = small_run()
    assert not np.isnan(moving.scores(moment="after_aggregation")).any()
    assert not np.array_equal(moving.scores(moment="after_training"), moving.scores(moment="after_aggregation"))


def test_a_personalised_model_is_ready_to_use(finished: Result) -> None:
    data = from_arrays(small_arrays(), finished.experiment)
    for i, client in enumerate(data.clients):
        model = finished.personalised(i)
        assert isinstance(model, nn.Module)
        assert not model.training
        with torch.no_grad():
            accuracy = (model(client.test.x).argmax(1) == client.test.y).double().mean().item()
        assert accuracy == finished.scores()[-1, i]


def test_traffic_is_counted_as_sent() -> None:
    model = 4 * sum(p.numel() for p in small_run(rounds=1).personalised(0).parameters())
    for budget, downloads in ((None, 3), (2, 2)):
        run = small_run(method={"name": "apple", "budget": budget})
        for entry in run.rounds:
            assert entry.bytes_up == [model] * 4
            assert entry.bytes_down == [downloads * model] * 4


def test_the_folder_is_plain_and_complete(tmp_path: Path) -> None:
    experiment = small_experiment()
    result = orchard.run(experiment, small_arrays(), out=tmp_path / "run")
    kept = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert kept == [
        ".lock",
        "by_class.json",
        "checkpoints",
        "environment.json",
        "experiment.toml",
        "federation.json",
        "metrics.jsonl",
        "models",
        "summary.json",
    ]
    assert load_definition(tmp_path / "run/experiment.toml") == (experiment, RunOptions())
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1, 2]
    for line, entry in zip(lines, result.rounds, strict=True):
        assert line["after_training"]["test"]["accuracy"] == [s.test["accuracy"] for s in entry.after_training if s]
        assert line["after_aggregation"]["validation"]["auroc"] == [
            s.validation["auroc"] for s in entry.after_aggregation if s
        ]
        assert Round.from_json(line).as_json() == line
        assert line["relationships"] == entry.diagnostics["relationships"]
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["state"] == "finished"
    assert summary["bmcta"] == result.bmcta
    assert summary["bytes_down"] == 3 * sum(lines[0]["bytes_down"])
    federation = json.loads((tmp_path / "run/federation.json").read_text())
    assert federation["counts"]["train"] == result.distribution.counts["train"]


def test_a_failed_run_keeps_what_it_had(tmp_path: Path) -> None:
    arrays = small_arrays()
    arrays[2].x_train[:] = 1e30
    with pytest.raises(orchard.RunFailed):
        small_run(arrays, out=tmp_path / "run")
    line = json.loads((tmp_path / "run/metrics.jsonl").read_text())
    assert "the loss or a gradient is" in line["failures"]["2"]
    assert line["after_training"]["test"]["accuracy"][2] is None
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["state"] == "failed"
    assert summary["error"].startswith("client 2, round 1: the loss or a gradient is")


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(orchard.UserError, match="holds something already"):
        small_run(out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
    with pytest.raises(orchard.UserError, match="cannot be used as a folder"):
        small_run(out=tmp_path / "precious")


def test_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    for changes in ({"model": "cnn"}, {"model": "nothing"}, {"device": "warp"}, {"clients": 3}):
        with pytest.raises(orchard.UserError):
            small_run(out=tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_arrays_and_the_dataset_must_agree() -> None:
    with pytest.raises(orchard.UserError, match='set dataset = "arrays"'):
        orchard.run(Experiment(), small_arrays())
    with pytest.raises(orchard.UserError, match="hand the data over in Python"):
        orchard.run(small_experiment())


def test_a_folder_called_arrays_is_not_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "arrays/a/b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    small_run(out=tmp_path / "run")
    assert orchard.resume(tmp_path / "run", small_arrays(), rounds=4).experiment.dataset == "arrays"


def test_plain_settings_are_enough_and_paths_may_be_strings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = orchard.run(dataset="digits", method="separate", rounds=1, epochs=1, clients=3)
    assert len(result.rounds) == 1
    assert result.federation.clients == 3
    assert not list(tmp_path.iterdir())
    settings: dict[str, Any] = {"dataset": "digits", "method": "separate", "rounds": 1, "epochs": 1, "clients": 3}
    kept = orchard.run(**settings, out="runs/kept", data_dir=str(tmp_path))
    assert kept.bmcta == result.bmcta
    assert kept.experiment == result.experiment == load_experiment("runs/kept/experiment.toml")
    assert orchard.resume("runs/kept").bmcta == result.bmcta
    assert len(orchard.resume("runs/kept", rounds=2).rounds) == 2


def test_settings_change_the_experiment_given_and_options_may_come_as_a_whole(tmp_path: Path) -> None:
    experiment, options = small_experiment(), RunOptions(out=tmp_path / "one", workers=1)
    result = orchard.run(experiment, small_arrays(), options=options, rounds=2, out=tmp_path / "two")
    assert result.experiment == experiment.changed(rounds=2)
    assert [path.name for path in tmp_path.iterdir()] == ["two"]
    assert load_definition(tmp_path / "two/experiment.toml")[1].workers == 1
    with pytest.raises(orchard.UserError, match=r"roundz: unknown key; did you mean 'rounds'\?"):
        orchard.run(experiment, small_arrays(), roundz=2)


@pytest.mark.slow
@needs_mnist
def test_mnist_practical_learns() -> None:
    assert orchard.run(dataset="mnist", data_dir=REAL_DATA, fraction=0.2, rounds=10).bmcta > 0.7


def test_a_result_is_printed_in_a_line(finished: Result) -> None:
    experiment = finished.experiment
    what = f"method apple, dataset {experiment.dataset}, partition {experiment.partition.name}, seed {experiment.seed}"
    assert repr(finished).startswith(f"<Result: {what}, 4 clients, 4 of 4 rounds, best accuracy ")
    assert "\n" not in repr(finished)
    assert repr(Result.of(experiment, finished.distribution, {})) == f"<Result: {what}, 4 clients, 0 of 4 rounds>"


def test_a_finished_run_is_loaded_whole_and_another_as_far_as_it_is(tmp_path: Path) -> None:
    done = small_run(out=tmp_path / "done")
    loaded = orchard.load(str(tmp_path / "done"))
    assert loaded.summary() == done.summary()
    assert all(torch.equal(mine[0], theirs[0]) for mine, theirs in zip(loaded.models, done.models, strict=True))
    asked = iter([False, False])
    with pytest.raises(orchard.Stopped):
        small_run(out=tmp_path / "stopped", stop=lambda: next(asked, True))
    before = sorted(path.name for path in (tmp_path / "stopped").iterdir())
    partly = orchard.load(tmp_path / "stopped")
    assert len(partly.rounds) == 1
    assert partly.models == ()
    assert sorted(path.name for path in (tmp_path / "stopped").iterdir()) == before
    with pytest.raises(orchard.UserError, match="is not the folder of a run"):
        orchard.load(tmp_path)
