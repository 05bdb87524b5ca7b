"""A run that was interrupted goes on to the result that it would have had, bit for bit."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from torch import Tensor, nn

import orchard
from crashing import same, small_run_in
from helpers import Dropping, method, small_arrays, small_experiment
from orchard.checkpoints import write_checkpoint
from orchard.errors import ResumeWarning, Stopped
from orchard.folder import RunFolder
from orchard.methods import BUILT_IN
from orchard.methods.apple import Apple, AppleClient
from orchard.results import Result
from orchard.runs import resume
from processes import started
from test_vector import Residual

VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in BUILT_IN},
    "apple-budget": {"method": method("apple", budget=1)},
    "fedfomo-budget": {"method": method("fedfomo", budget=2)},
    "fedavg-ft-short": {"method": method("fedavg-ft", tuning_epochs=1)},
    "dropout": {"model": Dropping},
}
_whole: dict[str, Result] = {}


def whole(name: str, **changes: Any) -> Result:
    """The run that nobody interrupts."""
    key = f"{name} {changes}"
    if key not in _whole:
        _whole[key] = orchard.run(small_experiment(**VARIANTS[name], **changes), small_arrays())
    return _whole[key]


def stopped_after(rounds: int, folder: Path, arrays: Any = None, **changes: Any) -> None:
    """Run until somebody asks it to stop."""
    asked = iter([False] * rounds)
    with pytest.raises(Stopped, match=f"stopped after round {rounds} of"):
        orchard.run(small_experiment(out=folder, **changes), arrays or small_arrays(), stop=lambda: next(asked, True))


# --- The same result ---


@pytest.mark.parametrize("name", VARIANTS)
def test_every_method_goes_on_to_the_same_result(name: str, tmp_path: Path) -> None:
    for rounds in (1, 3):
        folder = tmp_path / str(rounds)
        stopped_after(rounds, folder, **VARIANTS[name])
        assert same(resume(folder, small_arrays()), whole(name))
        assert same(resume(folder, small_arrays()), whole(name)), "read back from a finished run"


@pytest.mark.parametrize("name", ["apple", "fedavg", "fedavg-ft"])
def test_batchnorm_statistics_come_back(name: str, tmp_path: Path) -> None:
    arrays = small_arrays(shape=(2, 6, 6))
    stopped_after(2, tmp_path / "run", arrays, model=Residual, method=name)
    undisturbed = orchard.run(small_experiment(model=Residual, method=name), arrays)
    assert same(resume(tmp_path / "run", arrays), undisturbed)


def test_killed_at_any_operation_on_the_disk(tmp_path: Path) -> None:
    """Wherever it dies, in creating the folder, in a line, in a checkpoint, in deleting an old one."""
    changes = {**VARIANTS["apple-budget"], "rounds": 3, "checkpoint_every": 1}
    undisturbed = orchard.run(small_experiment(**changes), small_arrays())
    died = 0
    for operation in range(0, 1000, 3):
        folder = tmp_path / str(operation)
        process = started(small_run_in, folder=folder, changes=changes, die_at=operation)
        process.join()
        if process.exitcode == 0:
            break
        died += 1
        assert process.exitcode == 137
        if (folder / "experiment.toml").exists():
            assert same(resume(folder, small_arrays()), undisturbed), f"killed at operation {operation}"
    assert died > 25


@pytest.mark.parametrize("wanted", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_moments(wanted: int, tmp_path: Path) -> None:
    draw = random.Random(wanted)  # noqa: S311
    names = cycle(name for name in VARIANTS if name != "dropout")
    kills = 0
    while kills < wanted:
        name = next(names)
        folder, changes = tmp_path / f"{kills}-{name}", {**VARIANTS[name], "rounds": 25}
        process = started(small_run_in, folder=folder, changes=changes)
        while not (folder / "checkpoints").exists():
            time.sleep(0.005)
        process.join(draw.uniform(0, 0.25))
        kills += process.exitcode is None
        process.kill()
        process.join()
        assert same(resume(folder, small_arrays()), whole(name, rounds=25)), f"{name}, kill {kills}"


def test_the_metrics_on_the_disk_are_those_of_an_undisturbed_run(tmp_path: Path) -> None:
    stopped_after(2, tmp_path / "run", checkpoint_every=1)
    file = tmp_path / "run/metrics.jsonl"
    assert len(file.read_text().splitlines()) == 1
    with file.open("a") as lines:  # a line that the checkpoint knows nothing of, and one cut short
        lines.write(file.read_text().replace('"round": 0', '"round": 1') + '{"round": 2, "ti')
    resume(tmp_path / "run", small_arrays())
    written = [{**json.loads(line), "seconds": 0, "time": 0} for line in file.read_text().splitlines()]
    assert written == [{**entry.as_json(), "seconds": 0, "time": 0} for entry in whole("apple").rounds]


def test_a_finished_run_is_extended(tmp_path: Path) -> None:
    orchard.run(small_experiment(out=tmp_path / "run", **VARIANTS["fedavg-ft"]), small_arrays())
    longer = resume(tmp_path / "run", small_arrays(), rounds=7)
    assert same(longer, whole("fedavg-ft", rounds=7))
    assert RunFolder(tmp_path / "run").experiment().rounds == 7
    assert [leg["rounds"] for leg in RunFolder(tmp_path / "run").read("environment.json")["resumed"]] == [7]
    with pytest.raises(orchard.Refusal, match="rounds = 7: the run has 7 already"):
        resume(tmp_path / "run", small_arrays(), rounds=7)


def test_a_refused_extension_leaves_a_finished_run_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    orchard.run(small_experiment(out=folder), small_arrays())
    (folder / "metrics.jsonl").rename(tmp_path / "metrics.jsonl")
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    with pytest.raises(orchard.Refusal, match="lacks rounds that the checkpoint after 3 builds on"):
        resume(folder, small_arrays(), rounds=6)
    assert {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()} == before
    assert RunFolder(folder).state() == "finished"


def test_an_extension_that_is_stopped_is_an_interrupted_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    orchard.run(small_experiment(out=folder, method="fedavg"), small_arrays())
    asked = iter([False])
    with pytest.raises(Stopped):
        resume(folder, small_arrays(), rounds=7, stop=lambda: next(asked, True))
    assert RunFolder(folder).state() == "interrupted"
    assert same(resume(folder, small_arrays()), whole("fedavg", rounds=7))


def test_reading_a_finished_run_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    orchard.run(small_experiment(out=folder), small_arrays())
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    assert same(resume(folder, small_arrays()), whole("apple"))
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before


# --- Changes behind its back ---


def test_an_edited_experiment_is_refused(tmp_path: Path) -> None:
    stopped_after(2, tmp_path / "run")
    file = tmp_path / "run/experiment.toml"
    original = file.read_text()
    file.write_text(original.replace("lr = 0.05", "lr = 0.06"))
    with pytest.raises(orchard.Refusal, match=r"was changed since the run began: lr \(was 0.05, now 0.06\)"):
        resume(tmp_path / "run", small_arrays())
    file.write_text(original.replace("rounds = 3", "rounds = 1"))
    with pytest.raises(orchard.Refusal, match="has 2 rounds already, not 1"):
        resume(tmp_path / "run", small_arrays())
    file.write_text(original.replace("threads = 1", "threads = 1\nworkers = 1"))  # which decides nothing
    assert same(resume(tmp_path / "run", small_arrays()), whole("apple"))


def test_a_run_whose_checkpoints_are_gone_is_left_alone(tmp_path: Path) -> None:
    for folder, finish in ((tmp_path / "finished", True), (tmp_path / "interrupted", False)):
        if finish:
            orchard.run(small_experiment(out=folder), small_arrays())
        else:
            stopped_after(3, folder)
        shutil.rmtree(folder / "checkpoints")
        before = (folder / "metrics.jsonl").read_text()
        with pytest.raises(orchard.Refusal, match="cannot go on, since its checkpoints are gone"):
            resume(folder, small_arrays(), rounds=5)
        assert (folder / "metrics.jsonl").read_text() == before
        assert (folder / "summary.json").exists() is finish


def test_other_data_are_refused_before_the_first_checkpoint_too(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        orchard.run(small_experiment(out=tmp_path / "run", checkpoint_every=3), small_arrays(), progress=interrupted)
    assert not (tmp_path / "run/checkpoints").exists()
    arrays = small_arrays()
    arrays[0].x_train[0] += 1
    with pytest.raises(orchard.Refusal, match="the data are not those the run began with"):
        resume(tmp_path / "run", arrays)
    assert same(resume(tmp_path / "run", small_arrays()), whole("apple"))


def interrupted(exchange: Any) -> None:
    raise KeyboardInterrupt


def test_data_that_have_moved_are_the_same_data(tmp_path: Path) -> None:
    data = small_arrays(1)[0]
    np.savez(tmp_path / "data.npz", x_train=data.x_train, y_train=data.y_train, x_test=data.x_test, y_test=data.y_test)
    settings = {"dataset": str(tmp_path / "data.npz"), "clients": 1, "partition": "iid", "method": "separate"}
    asked = iter([False, False])
    with pytest.raises(Stopped):
        orchard.run(small_experiment(**settings, out=tmp_path / "run"), stop=lambda: next(asked, True))
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
    with pytest.raises(orchard.Refusal, match=r"does not fit the code: AppleServer: cores has shape \(28,\), not \(21"):
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
    with pytest.raises(orchard.Refusal, match="device = 'warp': is not available here"):
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


def test_where_the_data_were_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHARD_DATA", str(tmp_path))
    orchard.run(small_experiment(out=tmp_path / "run"), small_arrays())
    assert RunFolder(tmp_path / "run").experiment().data_dir == tmp_path


def test_a_model_that_nobody_finds_again_is_said_before_training(tmp_path: Path) -> None:
    with pytest.warns(ResumeWarning, match="<lambda>': will not be found by `orchard resume`"):
        orchard.run(small_experiment(model=lambda: Dropping(), out=tmp_path / "run"), small_arrays())


AT_A_PROMPT = """
import orchard, warnings
from pathlib import Path
from torch import nn
from helpers import small_arrays, small_experiment
class Own(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 3))
warnings.simplefilter("ignore")
asked = iter([False])
try:
    orchard.run(small_experiment(model=Own, out=Path("run")), small_arrays(), stop=lambda: next(asked, True))
except orchard.Stopped:
    print(orchard.resume(Path("run"), small_arrays()).bmcta > 0)
"""


@pytest.mark.parametrize("given", ["-c", "-"])
def test_a_model_typed_at_a_prompt_runs_and_resumes_there(given: str, tmp_path: Path) -> None:
    command = [sys.executable, given, *([AT_A_PROMPT] if given == "-c" else [])]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, input=AT_A_PROMPT, capture_output=True, text=True, check=False
    )
    assert (ended.stdout, ended.returncode) == ("True\n", 0), ended.stderr


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
    with pytest.raises(orchard.Refusal, match="no checkpoint is whole") as refusal:
        resume(tmp_path / "run", small_arrays())
    assert str(refusal.value).count(".safetensors: cannot be read") == 2
    assert (tmp_path / "run/metrics.jsonl").read_text() == lines


def test_a_damaged_line_of_the_metrics_is_named(tmp_path: Path) -> None:
    stopped_after(3, tmp_path / "run")
    file = tmp_path / "run/metrics.jsonl"
    file.write_text("{" + file.read_text())
    with pytest.raises(orchard.Refusal, match="line 1 is damaged"):
        resume(tmp_path / "run", small_arrays())


def test_other_data_are_refused_and_other_code_is_said(tmp_path: Path) -> None:
    stopped_after(2, tmp_path / "run")
    arrays = small_arrays()
    arrays[0].x_train[0] += 1
    with pytest.raises(orchard.Refusal, match="the data are not those the run began with"):
        resume(tmp_path / "run", arrays)
    file = tmp_path / "run/environment.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "torch": "1.0"}))
    with pytest.warns(ResumeWarning, match=r"there have changed: torch \(1.0, now 2"):
        assert same(resume(tmp_path / "run", small_arrays()), whole("apple"))


class Forgetful(AppleClient):
    """Keeps what no checkpoint can hold."""

    keeps = (*AppleClient.keeps, "thing")  # type: ignore[assignment]
    thing = object()


def test_a_method_that_keeps_what_cannot_be_saved_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Apple, "client", lambda self, index, federation: Forgetful(self, index, federation))
    with pytest.raises(orchard.RunFailed, match="the checkpoint after 1 rounds: a checkpoint cannot hold a object"):
        orchard.run(small_experiment(out=tmp_path / "run"), small_arrays())


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(orchard.Refusal, match="is not the folder of a run"):
        resume(tmp_path)


# --- The lock ---


def test_a_folder_in_use_is_refused_and_a_dead_holder_is_not_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = started(small_run_in, folder=folder, changes={"rounds": 10_000})
    while not (folder / "checkpoints").exists():
        time.sleep(0.01)
    assert RunFolder(folder).state() == "running"
    with pytest.raises(orchard.Refusal, match=f"is in use by process {process.pid} on "):
        resume(folder, small_arrays())
    process.kill()
    process.join()
    assert RunFolder(folder).state() == "interrupted"
    asked = iter([False])
    with pytest.raises(Stopped):
        resume(folder, small_arrays(), stop=lambda: next(asked, True))


def test_of_two_runs_that_want_the_same_new_folder_one_gets_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = started(small_run_in, folder=folder, changes={"rounds": 10_000})
    while not (folder / ".holder.json").exists():
        time.sleep(0.001)
    with pytest.raises(orchard.Refusal, match=r"is in use by process|holds something already"):
        orchard.run(small_experiment(out=folder), small_arrays())
    assert first.is_alive()
    first.kill()


def test_a_folder_filled_while_waiting_for_it_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    lock = FileLock(folder / ".lock", thread_local=False)
    lock.acquire()

    def finish_elsewhere() -> None:
        time.sleep(0.3)
        (folder / "experiment.toml").write_text("theirs")
        lock.release()

    other = threading.Thread(target=finish_elsewhere)
    other.start()
    with pytest.raises(orchard.Refusal, match="holds something already"):
        orchard.run(small_experiment(out=folder), small_arrays())
    other.join()
    assert (folder / "experiment.toml").read_text() == "theirs"


# --- The disk ---


def test_a_folder_that_vanishes(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def vanish(exchange: Any) -> None:
        if exchange.round == 1:
            folder.rename(tmp_path / "moved")

    with pytest.raises(orchard.RunFailed, match=r"cannot write .*No such file or directory"):
        orchard.run(small_experiment(out=folder), small_arrays(), progress=vanish)
    assert not folder.exists()
    assert same(resume(tmp_path / "moved", small_arrays()), whole("apple"))


FULL = """
import resource, sys
sys.path[:0] = {path!r}
from pathlib import Path
import orchard
from helpers import small_arrays, small_experiment
def fill(exchange):
    if exchange.round == 1:  # from now on no file can grow beyond what a line of metrics takes
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
try:
    orchard.run(small_experiment(rounds=30, out=Path({out!r})), small_arrays(), progress=fill)
except orchard.RunFailed as failure:
    print(failure)
    sys.exit(1)
"""


def test_a_full_disk(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code = FULL.format(path=[str(Path(__file__).parent)], out=str(folder))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.startswith("cannot write ")
    assert "what was saved is safe; go on with: orchard resume" in ended.stdout
    assert same(resume(folder, small_arrays()), whole("apple", rounds=30))


# --- Ctrl-C ---


def digits_run(folder: Path, *, epochs: int, until: str) -> subprocess.Popen[str]:
    options = ["--rounds", "500", "--set", "model=mlp", "--set", f"epochs={epochs}", "--out", str(folder)]
    command = [sys.executable, "-c", "from orchard.cli import main; main()", "run", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not (folder / until).exists():
        assert process.poll() is None
        time.sleep(0.02)
    return process


def test_ctrl_c_stops_after_the_round_and_says_how_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "a run"
    process = digits_run(folder, epochs=1, until="checkpoints")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)  # as if a program in between had passed it on
    _, said = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "orchard: stopping after this round; once more stops at once" in said
    assert said.rstrip().endswith(f"go on with: orchard resume '{folder}'")
    checkpoint, problems = RunFolder(folder).newest_checkpoint()
    assert not problems
    assert f"stopped after round {checkpoint['rounds']} of 500" in said
    assert not (folder / ".holder.json").exists()


def test_ctrl_c_with_nobody_listening_still_writes_a_checkpoint(tmp_path: Path) -> None:
    """As after `orchard run 2>&1 | tee log`, where Ctrl-C ends both."""
    process = digits_run(tmp_path / "run", epochs=20, until="federation.json")
    assert process.stderr is not None
    process.stderr.close()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    process.wait(timeout=240)
    assert RunFolder(tmp_path / "run").newest_checkpoint()[0]["rounds"] >= 1


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    process = digits_run(tmp_path / "run", epochs=100_000, until="federation.json")
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "stopped at once" in said
    assert RunFolder(tmp_path / "run").state() == "interrupted"
