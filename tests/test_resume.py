"""A run that was interrupted goes on to the result that it would have had, bit for bit."""

import json
import random
import signal
import subprocess
import sys
import threading
import time
from itertools import cycle
from pathlib import Path

import pytest
from filelock import FileLock

import orchard
from crashing import VARIANTS, same, small_run_in, stopped_after, whole
from helpers import small_arrays, small_run
from orchard.errors import Stopped
from orchard.runs.folder import RunFolder
from orchard.runs.result import Result
from orchard.runs.run import resume
from processes import started
from test_vector import Residual

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
    undisturbed = small_run(arrays, model=Residual, method=name)
    assert same(resume(tmp_path / "run", arrays), undisturbed)


def test_killed_at_any_operation_on_the_disk(tmp_path: Path) -> None:
    """Wherever it dies, in creating the folder, in a line, in a checkpoint, in deleting an old one."""
    changes = {**VARIANTS["apple-budget"], "rounds": 3, "checkpoint_every": 1}
    undisturbed = small_run(**changes)
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
    small_run(out=tmp_path / "run", **VARIANTS["fedavg-ft"])
    longer = resume(tmp_path / "run", small_arrays(), rounds=7)
    assert same(longer, whole("fedavg-ft", rounds=7))
    assert RunFolder(tmp_path / "run").experiment().rounds == 7
    assert [leg["rounds"] for leg in RunFolder(tmp_path / "run").read("environment.json")["resumed"]] == [7]
    with pytest.raises(orchard.UserError, match="rounds = 7: the run has 7 already"):
        resume(tmp_path / "run", small_arrays(), rounds=7)


def test_a_refused_extension_leaves_a_finished_run_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    small_run(out=folder)
    (folder / "metrics.jsonl").rename(tmp_path / "metrics.jsonl")
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    with pytest.raises(orchard.UserError, match="lacks rounds that the checkpoint after 3 builds on"):
        resume(folder, small_arrays(), rounds=6)
    assert {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()} == before
    assert RunFolder(folder).state() == "finished"


def test_an_extension_that_is_stopped_is_an_interrupted_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    small_run(out=folder, method="fedavg")
    asked = iter([False])
    with pytest.raises(Stopped):
        resume(folder, small_arrays(), rounds=7, stop=lambda: next(asked, True))
    assert RunFolder(folder).state() == "interrupted"
    assert same(resume(folder, small_arrays()), whole("fedavg", rounds=7))


def test_reading_a_finished_run_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    small_run(out=folder)
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    assert same(resume(folder, small_arrays()), whole("apple"))
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before


# --- The lock ---


def test_a_folder_in_use_is_refused_and_a_dead_holder_is_not_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = started(small_run_in, folder=folder, changes={"rounds": 10_000})
    while not (folder / "checkpoints").exists():
        time.sleep(0.01)
    assert RunFolder(folder).state() == "running"
    with pytest.raises(orchard.UserError, match=f"is in use by process {process.pid} on "):
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
    with pytest.raises(orchard.UserError, match=r"is in use by process|holds something already"):
        small_run(out=folder)
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
    with pytest.raises(orchard.UserError, match="holds something already"):
        small_run(out=folder)
    other.join()
    assert (folder / "experiment.toml").read_text() == "theirs"


# --- The disk ---


def test_a_folder_that_vanishes(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def vanish(result: Result) -> None:
        if len(result.rounds) == 2:
            folder.rename(tmp_path / "moved")

    with pytest.raises(orchard.RunFailed, match=r"cannot write .*No such file or directory"):
        small_run(out=folder, progress=vanish)
    assert not folder.exists()
    assert same(resume(tmp_path / "moved", small_arrays()), whole("apple"))


FULL = """
import resource, sys
sys.path[:0] = {path!r}
from pathlib import Path
import orchard
from helpers import small_run
def fill(result):
    if len(result.rounds) == 2:  # from now on no file can grow beyond what a line of metrics takes
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
try:
    small_run(rounds=30, out=Path({out!r}), progress=fill)
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
