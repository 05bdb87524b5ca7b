"""A run's figures in TensorBoard and in MLflow, read back with their own readers."""

import shutil
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

from helpers import small_run
from orchard.cli import app
from orchard.errors import UserError
from orchard.experiment import load_experiment
from orchard.report.tracking import RunTracker, unlike
from orchard.runs.folder import RunFolder


def test_tensorboard_reads_the_runs_figures_back(tmp_path: Path) -> None:
    quick = ["--rounds", "2", "--set", "epochs=1", "--set", "model=mlp", "--out", str(tmp_path / "a")]
    CliRunner().invoke(app, ["run", *quick, "--tensorboard"], catch_exceptions=False)
    events = EventAccumulator(str(tmp_path / "a/tensorboard")).Reload()
    result = RunFolder(tmp_path / "a").result()
    accuracy = result.scores()
    means = [(event.step, event.value) for event in events.Scalars("mean test accuracy")]
    assert means == [(r + 1, pytest.approx(accuracy[r].mean())) for r in range(2)]
    third = [event.value for event in events.Scalars("test accuracy/client 3")]
    assert third == pytest.approx(accuracy[:, 3].tolist())
    losses = [event.value for event in events.Scalars("training loss/client 7")]
    assert losses == pytest.approx([entry.loss[7] for entry in result.rounds])
    pictures = events.Images("relationships")
    assert [picture.step for picture in pictures] == [0, 1, 2]
    assert (pictures[0].width, pictures[0].height) == (8 * 16, 8 * 16)


# --- MLflow ---


def tracked(tmp_path: Path, *arguments: str) -> tuple[MlflowClient, Run]:
    """Run with MLflow in a folder; return its reader and what it has of the run."""
    settings = ("epochs=1", "model=mlp", "method=apple", "method.mu=0.5")
    quick = ["run", "--rounds", "2", *(word for setting in settings for word in ("--set", setting))]
    store = tmp_path / "ml runs"
    CliRunner().invoke(app, [*quick, "--out", str(tmp_path / "a"), "--mlflow", str(store), *arguments])
    client = MlflowClient(tracking_uri=store.as_uri())
    home = client.get_experiment_by_name("digits, dirichlet")
    assert home is not None
    (run,) = client.search_runs([home.experiment_id])
    return client, run


def test_mlflow_reads_the_runs_settings_figures_and_files_back(tmp_path: Path) -> None:
    client, run = tracked(tmp_path)
    result = RunFolder(tmp_path / "a").result()
    assert (run.info.run_name, run.info.status) == ("a", "FINISHED")
    assert run.data.params["method.name"] == "apple"
    assert run.data.params["method.mu"] == "0.5"
    assert run.data.params["partition.name"] == "dirichlet"
    assert run.data.params["seed"] == "42"
    scores = result.scores()
    for name, values in {
        "test accuracy/client 3": scores[:, 3],
        "mean test accuracy": scores.mean(axis=1),
        "training loss/client 7": [entry.loss[7] for entry in result.rounds],
    }.items():
        found = client.get_metric_history(run.info.run_id, name)
        assert [metric.step for metric in found] == [1, 2]
        assert [metric.value for metric in found] == pytest.approx(list(values))
    assert run.data.metrics["accuracy best"] == pytest.approx(result.bmcta)
    assert run.data.metrics["accuracy chosen by validation"] == pytest.approx(result.validation_selected.score)
    files = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert files == {
        "experiment.toml", "federation.json", "environment.json", "metrics.jsonl", "summary.json", "report.html"
    }  # fmt: skip
    page = Path(client.download_artifacts(run.info.run_id, "report.html"))
    assert "digits, dirichlet split" in page.read_text("utf-8")


def test_mlflow_knows_that_a_run_failed(tmp_path: Path) -> None:
    _, run = tracked(tmp_path, "--set", "lr=1e30")
    assert run.info.status == "FAILED"


def test_clients_names_become_names_of_metrics_each_its_own() -> None:
    names = ["St Mary", "a/b", "a?b", "../..", "日本医院", "x" * 150]
    told = unlike(names)
    assert told == ["St Mary", "a_b 1", "a_b 2", "_.___ 3", "日本医院", f"{'x' * 100} 5"]


def test_if_mlflow_goes_away_the_run_goes_on(tmp_path: Path) -> None:
    said = list[str]()
    tracker = RunTracker(str(tmp_path / "store"), load_experiment(), said.append)
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "store").write_text("in the way")
    with tracker.following(tmp_path / "run") as follow:
        result = small_run(rounds=2, progress=follow)
    assert len(result.rounds) == 2
    (text,) = said
    assert text.startswith(f"--mlflow {tmp_path / 'store'}: cannot be written: ")
    assert text.endswith("; the run goes on without it")


@pytest.mark.parametrize(
    ("module", "option", "said"),
    [
        ("torch.utils.tensorboard", ["--tensorboard"], "TensorBoard is not installed; install it with"),
        ("mlflow", ["--mlflow", "mlruns"], "MLflow is not installed; install it with"),
    ],
)
def test_an_extra_that_is_not_installed_is_asked_for_before_data_are_loaded(
    module: str, option: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    extra = option[0].removeprefix("--")
    with pytest.raises(UserError) as refused:
        CliRunner().invoke(app, ["run", *option, "--dataset", "nowhere.npz"], catch_exceptions=False)
    assert str(refused.value) == f"--{extra}: {said}: pip install 'orchard[{extra}]'"


def test_an_address_that_mlflow_cannot_use_is_refused_before_data_are_loaded(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=f"^--mlflow {tmp_path}/file/runs: cannot be used: "):
        RunTracker(str(tmp_path / "file" / "runs"), load_experiment(), print)
