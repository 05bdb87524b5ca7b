"""What a file from somebody else can do: name code, be a bomb, a pipe, or no settings at all. Real processes."""

import gzip
import json
import os
import resource
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers import ROOT, small_run
from orchard import load
from orchard.data.image_folders import read_inputs
from orchard.data.readers import read_idx, read_npz
from orchard.data.stored import digest_of_path
from orchard.errors import UserError
from orchard.experiment import load_experiment
from orchard.runs.files import from_json
from orchard.runs.folder import RunFolder
from orchard.runs.listing import run_summaries
from orchard.settings import read_toml
from synthetic import SyntheticRun

MAIN = "from orchard.cli import main; main()"
MODEL = """
from pathlib import Path
from torch import nn
Path("ran").touch()
def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, classes))
"""


@pytest.fixture
def somebodys(tmp_path: Path) -> Path:
    """A folder with a TOML file that names a program beside it."""
    (tmp_path / "theirs.py").write_text(MODEL)
    settings = 'model = "theirs:net"\nclients = 2\nrounds = 1\nepochs = 1\npartition = "iid"\n'
    (tmp_path / "theirs.toml").write_text(settings)
    return tmp_path


def orchard(folder: Path, *arguments: str, memory: int | None = None) -> subprocess.CompletedProcess[str]:
    def limited() -> None:
        if memory:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    command = [sys.executable, "-c", MAIN, *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        preexec_fn=limited,
        timeout=300,
    )


@pytest.mark.slow
def test_code_that_a_file_names_runs_only_if_it_is_trusted(somebodys: Path) -> None:
    asked = orchard(somebodys, "run", "theirs.toml", "--quiet", "--out", "made")
    assert asked.returncode == 2
    place = somebodys / "theirs.py"
    assert asked.stderr == (
        f"orchard: theirs.toml: its model 'theirs:net' is a program, {place}; --trust runs it, and remembers that\n"
    )
    assert not (somebodys / "ran").exists()
    assert orchard(somebodys, "run", "theirs.toml", "--quiet", "--out", "made", "--trust").returncode == 0
    assert (somebodys / "ran").exists()
    again = orchard(somebodys, "export", "made", "--client", "0", "--to", "a.safetensors")
    assert again.returncode == 0, again.stderr  # it is remembered
    (somebodys / "state/orchard/trusted.json").unlink()
    (somebodys / "ran").unlink()
    for command in (["export", "made", "--client", "0", "--to", "b.safetensors"], ["resume", "made", "--rounds", "2"]):
        refused = orchard(somebodys, *command)
        assert refused.returncode == 2
        assert "made: its model 'theirs:net' is a program" in refused.stderr
    for looking in (["report", "made"], ["runs", "."], ["offer", "made", "--to", "offered"]):
        assert orchard(somebodys, *looking).returncode == 0
    joining = orchard(somebodys, "join", "offered", "--data", "nothing.npz")
    assert "offered: its model 'theirs:net' is a program" in joining.stderr
    assert not (somebodys / "ran").exists()


def test_what_is_typed_is_trusted(somebodys: Path) -> None:
    typed = ["--set", "model=theirs:net", "--clients", "2", "--rounds", "1", "--set", "epochs=1", "--partition", "iid"]
    done = orchard(somebodys, "run", *typed, "--quiet", "--out", "made")
    assert done.returncode == 0, done.stderr
    known = json.loads((somebodys / "state/orchard/trusted.json").read_text())
    assert known == [["theirs:net", str(somebodys / "theirs.py")]]


# --- Bombs and pipes ---


def test_a_small_npz_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    header = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little")
    text = b"{'descr': '|u1', 'fortran_order': False, 'shape': (300000, 1000), }"
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as x:
        x.write(header + text.ljust(117) + b"\n")
        for _ in range(300):
            x.write(bytes(1_000_000))
    assert (tmp_path / "bomb.npz").stat().st_size < 1 << 20
    with pytest.raises(UserError, match=r"bomb.npz: would take \d+ times its size in memory; if that is right, save"):
        read_npz(tmp_path / "bomb.npz")


def test_an_ordinary_npz_is_read_however_well_it_packs(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "masks.npz", x=np.zeros((1000, 64, 64), np.uint8))
    assert read_npz(tmp_path / "masks.npz")["x"].shape == (1000, 64, 64)


def test_a_small_idx_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "bomb.gz", "wb") as file:
        file.write(bytes((0, 0, 8, 3)) + np.array([2**31, 28, 28], ">u4").tobytes())
    with pytest.raises(UserError, match=r"bomb.gz: would take \d+ times its size"):
        read_idx(tmp_path / "bomb.gz", 3)


def test_small_pictures_that_would_fill_the_memory_are_refused(tmp_path: Path) -> None:
    Image.new("L", (13000, 6500)).save(tmp_path / "bomb.png")  # just below the size that Pillow warns of
    assert (tmp_path / "bomb.png").stat().st_size < 100_000
    with pytest.raises(UserError, match=r"bomb.png: would take \d+ times its size in memory"):
        read_inputs([tmp_path / "bomb.png"] * 13, 28, None)


@pytest.mark.parametrize("read", [read_npz, lambda path: read_inputs([path], 28, None), digest_of_path])
def test_a_pipe_is_no_file_and_nobody_waits_for_it(tmp_path: Path, read: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(UserError, match=r"a\.png: is a pipe or a device, not a file"):
        read(tmp_path / "a.png")


# --- Settings and records ---


def test_toml_may_begin_with_a_mark(tmp_path: Path) -> None:
    (tmp_path / "marked.toml").write_bytes(b"\xef\xbb\xbf" + b"rounds = 3\n")
    assert load_experiment(tmp_path / "marked.toml").rounds == 3


@pytest.mark.parametrize(
    "text", [f"rounds = {'[' * 5000}{']' * 5000}", f"{'a.' * 5000}a = 1", f"method = {'{a=' * 100}1{'}' * 100}"]
)
def test_deep_toml_is_refused_in_a_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "deep.toml").write_text(text)
    with pytest.raises(UserError, match=r"deep.toml: is not valid TOML: it is nested too deeply$"):
        load_experiment(tmp_path / "deep.toml")


def test_toml_without_end_is_refused() -> None:
    with pytest.raises(UserError, match="/dev/zero: is larger than any settings are"):
        read_toml(Path("/dev/zero"))


def test_own_files_are_not_too_deep() -> None:
    for file in (ROOT / "examples").rglob("*.toml"):
        read_toml(file)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity", "1" + 400 * "0"])
def test_a_number_beyond_all_bounds_is_no_number(number: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too large"):
        from_json(f'{{"seconds": {number}}}')
    run = SyntheticRun(tmp_path / "run").finish()
    file = run / "metrics.jsonl"
    file.write_text(file.read_text().replace('"seconds": 1.5', f'"seconds": {number}', 1))
    with pytest.raises(UserError, match="line 1 is damaged"):
        RunFolder(run).rounds()
    assert len(run_summaries(tmp_path)[1]) == 1  # named among the damaged


def test_plain_numbers_are_read_as_they_are() -> None:
    assert from_json('{"a": [1, -2, 0.1, 1e-5, 12345678901234567890], "site1e123": true, "b": 1e123}') == {
        "a": [1, -2, 0.1, 1e-5, 12345678901234567890],
        "site1e123": True,
        "b": 1e123,
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"seconds": 1.5', '"seconds": "long"'),
        ('"seconds": 1.5', '"seconds": null'),
        ('"bytes_up": [', '"bytes_up": [null, '),
        ('"loss": [', '"loss": ["low", '),
        ('"accuracy": [', '"accuracy": [[1], '),
    ],
)
def test_a_line_with_other_kinds_of_values_is_damaged(tmp_path: Path, before: str, after: str) -> None:
    run = SyntheticRun(tmp_path / "run").finish()
    file = run / "metrics.jsonl"
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after, 1))
    with pytest.raises(UserError, match="line 1 is damaged"):
        RunFolder(run).rounds()


def test_a_damaged_list_of_legs_is_named(tmp_path: Path) -> None:
    small_run(out=tmp_path / "run", rounds=1)
    file = tmp_path / "run/environment.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "resumed": 5}))
    with pytest.raises(UserError, match=r"environment.json: cannot be read"):
        load(tmp_path / "run")


def test_another_network_than_the_trained_one_is_named(tmp_path: Path) -> None:
    small_run(out=tmp_path / "run", rounds=1)
    file = tmp_path / "run/experiment.toml"
    file.write_text(file.read_text().replace('model = "mlp"', 'model = "logistic"'))
    with pytest.raises(UserError, match="model = 'logistic': is not the network that was trained"):
        load(tmp_path / "run").personalised(0)
