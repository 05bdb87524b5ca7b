"""What a run that goes on notices: changes behind its back, and damage."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

import orchard
from crashing import same, stopped_after, whole
from helpers import Dropping, small_arrays, small_experiment, small_run
from orchard.errors import ResumeWarning, Stopped
from orchard.export.export import export_model
from orchard.methods.apple import Apple, AppleClient
from orchard.report.content import contents_of
from orchard.runs.checkpoints import write_checkpoint
from orchard.runs.folder import FORMAT, RunFolder
from orchard.runs.listing import run_summaries
from orchard.runs.result import Result
from orchard.runs.run import resume

# --- Changes behind its back ---


def test_an_edited_experiment_is_refused(tmp_path: Path) -> None:
    stopped_after(2, tmp_path / "run")
    file = tmp_path / "run/experiment.toml"
    original = file.read_text()
    file.write_text(original.replace("lr = 0.05", "lr = 0.06"))
    with pytest.raises(orchard.UserError, match=r"was changed since the run began: lr \(was 0.05, now 0.06\)"):
        resume(tmp_path / "run", small_arrays())
    file.write_text(original.replace("rounds = 3", "rounds = 1"))
    with pytest.raises(orchard.UserError, match="has 2 rounds already, not 1"):
        resume(tmp_path / "run", small_arrays())
    file.write_text(original.replace("threads = 1", "threads = 1\nworkers = 1"))  # which decides nothing
    assert same(resume(tmp_path / "run", small_arrays()), whole("apple"))


def test_a_run_whose_checkpoints_are_gone_is_left_alone(tmp_path: Path) -> None:
    for folder, finish in ((tmp_path / "finished", True), (tmp_path / "interrupted", False)):
        if finish:
            small_run(out=folder)
        else:
            stopped_after(3, folder)
        shutil.rmtree(folder / "checkpoints")
        before = (folder / "metrics.jsonl").read_text()
        with pytest.raises(orchard.UserError, match="cannot go on: its checkpoints are gone"):
            resume(folder, small_arrays(), rounds=5)
        assert (folder / "metrics.jsonl").read_text() == before
        assert (folder / "summary.json").exists() is finish


def test_other_data_are_refused_before_the_first_checkpoint_too(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        small_run(out=tmp_path / "run", checkpoint_every=3, progress=interrupted)
    assert not (tmp_path / "run/checkpoints").exists()
    arrays = small_arrays()
    arrays[0].x_train[0] += 1
    with pytest.raises(orchard.UserError, match="the data are not those the run began with"):
        resume(tmp_path / "run", arrays)
    assert same(resume(tmp_path / "run", small_arrays()), whole("apple"))


def interrupted(result: Result) -> None:
    raise KeyboardInterrupt


def test_data_that_have_moved_are_the_same_data(tmp_path: Path) -> None:
    data = small_arrays(1)[0]
    arrays = {name: array for name, array in vars(data).items() if isinstance(array, np.ndarray)}
    np.savez(tmp_path / "data.npz", **arrays)  # type: ignore[arg-type]
    settings = {"dataset": str(tmp_path / "data.npz"), "clients": 1, "partition": "iid", "method": "separate"}
    asked = iter([False, False])
    with pytest.raises(Stopped):
        orchard.run(small_experiment(**settings), out=tmp_path / "run", stop=lambda: next(asked, True))
    (tmp_path / "data.npz").rename(tmp_path / "moved.npz")
    file = tmp_path / "run/experiment.toml"
    file.write_text(file.read_text().replace("data.npz", "moved.npz"))
    assert len(resume(tmp_path / "run").rounds) == 3


def test_what_comes_after_the_checkpoint_may_be_damaged(tmp_path: Path) -> None:
    stopped_after(3, tmp_path / "run")
    with (tmp_path / "run/metrics.jsonl").open("ab") as lines:
        lines.write(bytes(50) + b"\n")
    assert same(resume(tmp_path / "run", small_arrays()), whole("apple"))
    stopped_after(1, tmp_path / "other")
    (tmp_path / "other/metrics.jsonl").unlink()  # of which the checkpoint needs no line yet
    assert same(resume(tmp_path / "other", small_arrays()), whole("apple"))


class Grows(nn.Linear):
    """A network that somebody edits."""

    features = 3

    def __init__(self) -> None:
        super().__init__(6, self.features)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, :3]


def test_a_network_that_was_edited_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_after(2, tmp_path / "run", model=Grows)
    before = (tmp_path / "run/metrics.jsonl").read_text()
    monkeypatch.setattr(Grows, "features", 4)
    with pytest.raises(
        orchard.UserError, match=r"does not fit the code: AppleServer: cores has shape \(28,\), not \(21"
    ):
        resume(tmp_path / "run", small_arrays())
    assert (tmp_path / "run/metrics.jsonl").read_text() == before
    assert RunFolder(tmp_path / "run").state() == "interrupted"


def test_a_setting_that_is_new_refuses_no_run_from_before(tmp_path: Path) -> None:
    stopped_after(2, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    content, _ = folder.newest_checkpoint()
    del content["experiment"]["lr_decay"]
    del content["experiment"]["method"]["selection"]
    write_checkpoint(tmp_path / "run/checkpoints", content["rounds"], content)
    assert same(resume(tmp_path / "run", small_arrays()), whole("apple"))


def test_a_device_that_is_gone_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    stopped_after(2, tmp_path / "run")
    file = tmp_path / "run/experiment.toml"
    file.write_text(file.read_text().replace('device = "cpu"', 'device = "warp"'))
    with pytest.raises(orchard.UserError, match="device = 'warp': is not available here"):
        resume(tmp_path / "run", small_arrays())


def test_missing_records_are_said_and_written_again(tmp_path: Path) -> None:
    stopped_after(2, tmp_path / "run")
    before = (tmp_path / "run/federation.json").read_text()
    for name in ("environment.json", "federation.json"):
        (tmp_path / "run" / name).unlink()
    with pytest.warns(ResumeWarning, match="environment.json: is missing"):
        assert same(resume(tmp_path / "run", small_arrays()), whole("apple"))
    assert (tmp_path / "run/federation.json").read_text() == before
    assert RunFolder(tmp_path / "run").read("environment.json")["data"]
    assert same(resume(tmp_path / "run", small_arrays()), whole("apple")), "which can be read again"


def test_where_the_data_were_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHARD_DATA", str(tmp_path))
    small_run(out=tmp_path / "run")
    assert RunFolder(tmp_path / "run").definition()[1].data_dir == tmp_path


def test_a_model_that_nobody_finds_again_is_said_before_training(tmp_path: Path) -> None:
    with pytest.warns(ResumeWarning, match="<lambda>': will not be found by `orchard resume`"):
        small_run(model=lambda: Dropping(), out=tmp_path / "run")


AT_A_PROMPT = """
import orchard, warnings
from pathlib import Path
from torch import nn
from helpers import small_arrays, small_run
class Own(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 3))
warnings.simplefilter("ignore")
asked = iter([False])
try:
    small_run(model=Own, out=Path("run"), stop=lambda: next(asked, True))
except orchard.Stopped:
    print(orchard.resume(Path("run"), small_arrays()).bmcta > 0)
"""


@pytest.mark.parametrize("given", ["-c", "-"])
def test_a_model_typed_at_a_prompt_runs_and_resumes_there(given: str, tmp_path: Path) -> None:
    command = [sys.executable, given, *([AT_A_PROMPT] if given == "-c" else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, input=AT_A_PROMPT, capture_output=True, text=True, check=False
    )
    assert (ended.stdout, ended.returncode) == ("True\n", 0), ended.stderr


# --- Other formats ---


@pytest.mark.parametrize(
    ("given", "said", "advice"),
    [(None, 1, "use the Orchard that wrote it, or start again"), (99, 99, "update Orchard")],
)
def test_a_run_folder_of_another_format_is_refused_in_one_sentence(
    given: int | None, said: int, advice: str, tmp_path: Path
) -> None:
    folder = tmp_path / "runs/run"
    small_run(out=folder)
    about = json.loads((folder / "environment.json").read_text())
    assert about.pop("format") == FORMAT
    (folder / "environment.json").write_text(json.dumps(about if given is None else {**about, "format": given}))
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    version = orchard.__version__
    sentence = f"{folder}: is a run folder of format {said}, but Orchard {version} reads format {FORMAT}; {advice}"
    uses: list[Callable[[], object]] = [
        lambda: resume(folder, small_arrays()),
        lambda: resume(folder, small_arrays(), rounds=9),
        lambda: RunFolder(folder).result(),
        lambda: export_model(folder, "0", tmp_path / "model.safetensors"),
        lambda: contents_of([RunFolder(folder)]),
    ]
    for use in uses:
        with pytest.raises(orchard.UserError) as refusal:
            use()
        assert str(refusal.value) == sentence
    assert run_summaries(tmp_path / "runs") == ([], [sentence])
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def test_a_run_whose_checkpoint_is_of_another_format_is_left_alone(tmp_path: Path) -> None:
    stopped_after(2, tmp_path / "run", checkpoint_every=1)
    file = newest(tmp_path / "run", ".json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 99}))
    before = (tmp_path / "run/metrics.jsonl").read_text()
    with pytest.raises(
        orchard.UserError, match=r"rounds-00002\.json: is a checkpoint of format 99, but .*; update Orch"
    ):
        resume(tmp_path / "run", small_arrays())
    assert (tmp_path / "run/metrics.jsonl").read_text() == before


# --- Damage ---


def newest(folder: Path, suffix: str) -> Path:
    return sorted((folder / "checkpoints").glob(f"*{suffix}"))[-1]


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-len(content) // 3] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink, lambda file: file.write_bytes(b"")])
@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(suffix: str, damage: Any, tmp_path: Path) -> None:
    stopped_after(2, tmp_path / "run", checkpoint_every=1)
    file = newest(tmp_path / "run", suffix)
    damage(file)
    if suffix == ".json" and not file.exists():  # then it was never there
        assert same(resume(tmp_path / "run", small_arrays()), whole("apple"))
        return
    with pytest.warns(ResumeWarning) as warned:
        result = resume(tmp_path / "run", small_arrays())
    (message,) = {str(warning.message) for warning in warned}
    assert message.startswith(str(file))
    assert message.endswith("going on from the checkpoint after 1 rounds")
    assert same(result, whole("apple"))


def test_a_damaged_checkpoint_does_not_count_among_the_last_two(tmp_path: Path) -> None:
    folder, definition = tmp_path / "run", tmp_path / "run/experiment.toml"
    stopped_after(3, folder, checkpoint_every=1, method="fedavg")
    definition.write_text(definition.read_text().replace("rounds = 3", "rounds = 6").replace("every = 1", "every = 2"))
    truncate(newest(folder, ".safetensors"))
    asked = iter([False, False])
    with pytest.raises(Stopped), pytest.warns(ResumeWarning, match="going on from the checkpoint after 2 rounds"):
        resume(folder, small_arrays(), stop=lambda: next(asked, True))
    truncate(newest(folder, ".safetensors"))
    with pytest.warns(ResumeWarning, match="going on from the checkpoint after 2 rounds"):
        assert same(resume(folder, small_arrays()), whole("fedavg", rounds=6))


def test_without_any_whole_checkpoint_it_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    stopped_after(2, tmp_path / "run", checkpoint_every=1)
    lines = (tmp_path / "run/metrics.jsonl").read_text()
    for file in (tmp_path / "run/checkpoints").glob("*.safetensors"):
        truncate(file)
    with pytest.raises(orchard.UserError, match="no checkpoint is whole") as refusal:
        resume(tmp_path / "run", small_arrays())
    assert str(refusal.value).count(".safetensors: cannot be read") == 2
    assert (tmp_path / "run/metrics.jsonl").read_text() == lines


def test_a_damaged_line_of_the_metrics_is_named(tmp_path: Path) -> None:
    stopped_after(3, tmp_path / "run")
    file = tmp_path / "run/metrics.jsonl"
    file.write_text("{" + file.read_text())
    with pytest.raises(orchard.UserError, match="line 1 is damaged"):
        resume(tmp_path / "run", small_arrays())


def test_other_data_are_refused_and_other_code_is_said(tmp_path: Path) -> None:
    stopped_after(2, tmp_path / "run")
    arrays = small_arrays()
    arrays[0].x_train[0] += 1
    with pytest.raises(orchard.UserError, match="the data are not those the run began with"):
        resume(tmp_path / "run", arrays)
    file = tmp_path / "run/environment.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "torch": "1.0"}))
    with pytest.warns(ResumeWarning, match=r"changed since the run began: torch \(1.0, now 2"):
        assert same(resume(tmp_path / "run", small_arrays()), whole("apple"))


class Forgetful(AppleClient):
    """Keeps what no checkpoint can hold."""

    state_keys = (*AppleClient.state_keys, "thing")
    thing = object()


def test_a_method_that_keeps_what_cannot_be_saved_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Apple, "client", lambda self, index, federation: Forgetful(self, index, federation))
    with pytest.raises(orchard.RunFailed, match="the checkpoint after 1 rounds: a checkpoint cannot hold a object"):
        small_run(out=tmp_path / "run")


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(orchard.UserError, match="is not the folder of a run"):
        resume(tmp_path)


def test_a_method_that_is_not_here_is_named_with_the_run_that_needs_it(tmp_path: Path) -> None:
    small_run(rounds=1, out=tmp_path / "runs" / "a")
    file = tmp_path / "runs" / "a" / "experiment.toml"
    file.write_text(file.read_text("utf-8").replace('name = "apple"', 'name = "elsewhere"'), "utf-8")
    (said,) = run_summaries(tmp_path / "runs")[1]
    assert said.startswith(f"{tmp_path / 'runs' / 'a'}: method.name = 'elsewhere': unknown method; known: ")
