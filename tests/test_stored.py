"""What data are as they are stored, and whose checkpoints a folder holds."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import orchard
from crashing import stopped_after
from helpers import small_arrays, small_run
from orchard.data.samples import Samples
from orchard.data.stored import digest_of_path
from orchard.experiment import load_experiment
from orchard.runs.run import load_data, resume


def test_the_fingerprint_is_of_the_data_as_stored(tmp_path: Path) -> None:
    """Not of what is made of them for training, whose last bits depend on the processor."""
    experiment = load_experiment(overrides={"dataset": "digits", "size": 9, "clients": 2, "partition": "iid"})
    data = load_data(experiment)
    nudged = [client.changed(lambda part: Samples(part.x * (1 + 1e-7), part.y)) for client in data.clients]
    other_processor = replace(data, clients=tuple(nudged))
    assert not torch.equal(other_processor.clients[0].train.x, data.clients[0].train.x)
    assert other_processor.fingerprint() == data.fingerprint()
    dealt_otherwise = load_data(experiment.changed(partition={"name": "iid", "seed": 1}))
    assert dealt_otherwise.fingerprint() != data.fingerprint()


def test_of_a_folder_the_images_count_and_nothing_else(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for k in range(3):
            Image.fromarray(np.full((4, 4), 40 * k + ord(name), np.uint8)).save(tmp_path / "data" / name / f"{k}.png")
    first = digest_of_path(tmp_path / "data")
    (tmp_path / "data/README.md").write_text("about")
    (tmp_path / "data/.hidden.png").write_text("hidden")
    (tmp_path / "data/a/around").symlink_to(tmp_path / "data")
    shutil.move(tmp_path / "data", tmp_path / "elsewhere")
    assert digest_of_path(tmp_path / "elsewhere") == first
    (tmp_path / "elsewhere/a/0.png").rename(tmp_path / "elsewhere/b/9.png")
    assert digest_of_path(tmp_path / "elsewhere") != first


@pytest.mark.slow
def test_another_kind_of_processor_goes_on_and_says_so(tmp_path: Path) -> None:
    """A real process whose libraries may not use this processor's newer instructions."""
    command = [sys.executable, "-c", "from orchard.cli import main; main()"]
    settings = ["--clients", "2", "--partition", "iid", "--rounds", "1", "--set", "model=mlp", "--set", "size=9"]
    subprocess.run([*command, "run", *settings, "--out", "run", "--quiet"], cwd=tmp_path, check=True)
    older = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    going_on = [*command, "resume", "run", "--rounds", "2", "--quiet"]
    ended = subprocess.run(going_on, cwd=tmp_path, env=older, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert re.search(
        r"changed since the run began: instructions \(\w+, now DEFAULT\); its result may differ", ended.stderr
    )


def test_a_run_of_the_former_fingerprint_is_read_and_not_resumed(tmp_path: Path) -> None:
    stopped_after(2, tmp_path / "run")
    file = tmp_path / "run/environment.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "data": "0123456789abcdef"}))
    assert len(orchard.load(tmp_path / "run").rounds) == 1
    with pytest.raises(orchard.UserError, match="knew data by another fingerprint; start a new run"):
        resume(tmp_path / "run", small_arrays())


def test_checkpoints_of_other_data_are_refused(tmp_path: Path) -> None:
    stopped_after(2, tmp_path / "run")
    arrays = small_arrays()
    arrays[0].x_train[0] += 1
    small_run(arrays, out=tmp_path / "other")
    shutil.rmtree(tmp_path / "run/checkpoints")
    shutil.copytree(tmp_path / "other/checkpoints", tmp_path / "run/checkpoints")
    shutil.copy(tmp_path / "other/metrics.jsonl", tmp_path / "run")
    with pytest.raises(orchard.UserError, match="checkpoints: holds the checkpoints of a run with other data"):
        resume(tmp_path / "run", small_arrays())


def test_only_what_orchard_wrote_is_deleted(tmp_path: Path) -> None:
    stopped_after(1, tmp_path / "run", checkpoint_every=1)
    home = tmp_path / "run/checkpoints"
    (home / "offloaded").mkdir(exist_ok=True)
    foreign = [home / name for name in ("notes.txt", "rounds-old.json", "rounds-1.bak", "offloaded/mine.txt")]
    for file in foreign:
        file.write_text("mine")
    (home / "rounds-00000.safetensors").symlink_to(home / "notes.txt")
    resume(tmp_path / "run", small_arrays())
    assert all(file.read_text() == "mine" for file in foreign)
    assert (home / "rounds-00000.safetensors").is_symlink()
    assert len(list(home.glob("rounds-0*.json"))) == 2


@pytest.mark.parametrize("name", ["checkpoints", "models"])
def test_nothing_is_deleted_through_a_link(tmp_path: Path, name: str) -> None:
    stopped_after(2, tmp_path / "run")
    small_run(out=tmp_path / "other")
    before = sorted((tmp_path / "other").rglob("*"))
    shutil.rmtree(tmp_path / "run" / name, ignore_errors=True)
    (tmp_path / "run" / name).symlink_to(tmp_path / "other" / name)
    with pytest.raises(orchard.UserError, match=rf"{name}: is a link; put the whole folder"):
        resume(tmp_path / "run", small_arrays())
    assert sorted((tmp_path / "other").rglob("*")) == before
