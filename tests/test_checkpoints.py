"""What is written comes back as it was, and is on the disk before anything builds on it."""

import errno
import hashlib
import json
import os
import shutil
from collections import OrderedDict, namedtuple
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import orchard
from crashing import stopped_after
from helpers import small_arrays, small_experiment, small_run
from orchard.runs.checkpoints import FORMAT, read_newest, write_checkpoint
from orchard.runs.files import save_tensors, write_tensors
from orchard.runs.folder import RunFolder
from orchard.runs.model_store import ModelStore
from orchard.whole import write_durably

Pair = namedtuple("Pair", "a b")
Colour = IntEnum("Colour", "RED GREEN")


def there_and_back(value: Any, folder: Path) -> Any:
    write_checkpoint(folder / "checkpoints", 1, {"value": value})
    content, problems = read_newest(folder / "checkpoints")
    assert not problems
    return content["value"]


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        0.1,
        "α",
        [1, [2.5, None]],
        (1, (2, "x")),
        {3, 1, 2},
        frozenset({"b", "a"}),
        {1: {"a": ()}, (0, 1): []},
        {"dict": 1},
        {"tensor": "x", "device": "cpu"},
        np.float32(1 / 3),
        np.float64(1 / 3),
        np.int64(-1),
        np.bool_(True),
    ],
)
def test_plain_values_keep_their_kind(value: Any, tmp_path: Path) -> None:
    back = there_and_back(value, tmp_path)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3)[:, ::-1],
        np.arange(6, dtype=np.int32)[::2],
        np.array(2.5),
        np.zeros((0, 3)),
        torch.arange(12.0).reshape(3, 4).t(),
        torch.tensor(3, dtype=torch.int64),
        torch.empty(0),
        torch.tensor([True, False]),
        torch.tensor([float("nan"), -0.0, float("inf")]),
    ],
    ids=str,
)
def test_arrays_and_tensors_keep_type_shape_and_bits(array: Any, tmp_path: Path) -> None:
    back = there_and_back(array, tmp_path)
    assert type(back) is type(array)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert np.asarray(back).tobytes() == np.asarray(array).tobytes()


def test_tensors_may_share_memory(tmp_path: Path) -> None:
    whole = torch.arange(10.0)
    parts = [whole[:6], whole[3:], whole[3:6], whole]
    back = there_and_back(parts, tmp_path)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(back, parts, strict=True))


@pytest.mark.parametrize("value", [Pair(1, 2), Colour.RED, OrderedDict(a=1), object(), np.array(["a"]), b"bytes"])
def test_what_would_come_back_as_something_else_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=type(value).__name__ if not isinstance(value, np.ndarray) else "numpy"):
        there_and_back(value, tmp_path)


def test_a_changed_number_is_noticed(tmp_path: Path) -> None:
    there_and_back([1, 2, 3], tmp_path)
    (file,) = (tmp_path / "checkpoints").glob("*.json")
    written = json.loads(file.read_text())
    file.write_text(json.dumps(written).replace("[1, 2, 3]", "[1, 2, 4]"))
    content, (problem,) = read_newest(tmp_path / "checkpoints")
    assert content is None
    assert problem == f"{file}: its checksum is wrong"


def hostile(state: object) -> str:
    digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
    return json.dumps({"format": FORMAT, "sha256": digest, "state": state})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 100_000, "cannot be read"),
        ('{"sha256": 1}', "cannot be read"),
        ("[]", "cannot be read"),
        (hostile({"map": []}), "'map' is unknown here"),
        (hostile({"dict": [[[], 1]]}), "cannot be read: unhashable"),
        (hostile({"array": 3}), "cannot be read"),
        (hostile({"tensor": "x", "device": "cpu"}), "lacks the tensor 'x'"),
    ],
)
def test_nonsense_is_damage_and_no_crash(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "rounds-00001.json").write_text(text)
    write_tensors(tmp_path / "rounds-00001.safetensors", {})
    content, (said,) = read_newest(tmp_path)
    assert content is None
    assert problem in said


def test_a_copy_beside_the_checkpoints_is_none(tmp_path: Path) -> None:
    there_and_back(1, tmp_path)
    for name in ("rounds-00001-1.json", "notes.txt"):
        (tmp_path / "checkpoints" / name).write_text("{}")
    assert read_newest(tmp_path / "checkpoints") == ({"value": 1}, [])


@pytest.mark.parametrize(
    ("given", "said", "advice"),
    [(None, 1, "use the Orchard that wrote it, or start again"), (99, 99, "update Orchard")],
)
def test_a_checkpoint_of_another_format_is_refused_in_one_sentence(
    given: int | None, said: int, advice: str, tmp_path: Path
) -> None:
    for rounds in (1, 2):  # the one before it is of this format, but nobody would know why it is taken
        write_checkpoint(tmp_path, rounds, {"value": rounds})
    file = tmp_path / "rounds-00002.json"
    written = json.loads(file.read_text())
    assert written["format"] == FORMAT
    file.write_text(json.dumps({key: value for key, value in written.items() if key != "format"} | with_format(given)))
    with pytest.raises(orchard.UserError) as refusal:
        read_newest(tmp_path)
    version = orchard.__version__
    assert str(refusal.value) == (
        f"{file}: is a checkpoint of format {said}, but Orchard {version} reads format {FORMAT}; {advice}"
    )


def with_format(given: int | None) -> dict[str, int]:
    return {} if given is None else {"format": given}


def test_other_peoples_files_beside_the_checkpoints_stay(tmp_path: Path) -> None:
    foreign = ["notes.txt", "rounds-00001-copy.json", "rounds-00001.txt", "rounds.safetensors", ".mine", "mine/a.json"]
    (tmp_path / "mine").mkdir()
    for name in foreign:
        (tmp_path / name).write_text("precious")
    for name in (".rounds-00001.json.new", "rounds-00009.safetensors"):  # left by a crash
        (tmp_path / name).write_text("half")
    for rounds in (1, 2, 3):
        write_checkpoint(tmp_path, rounds, {"value": torch.ones(rounds)})
    assert all((tmp_path / name).read_text() == "precious" for name in foreign)
    own = {f"rounds-0000{rounds}{suffix}" for rounds in (2, 3) for suffix in (".json", ".safetensors")}
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()} == {*own, *foreign}


# --- On the disk, in order ---


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is brought onto the disk and what is renamed, in order."""
    happened: list[str] = []
    fsync, rename = os.fsync, Path.replace

    def spy_fsync(descriptor: int) -> None:
        happened.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        fsync(descriptor)

    def spy_rename(path: Path, target: Path) -> Path:
        happened.append(f"rename {path.name} {Path(target).name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(Path, "replace", spy_rename)
    return happened


def test_a_file_is_on_the_disk_before_it_takes_its_name(disk: list[str], tmp_path: Path) -> None:
    write_durably(tmp_path / "a.json", "1")
    assert disk == ["sync .a.json.new", "rename .a.json.new a.json", f"sync {tmp_path.name}"]
    disk.clear()
    write_tensors(tmp_path / "b.safetensors", {"x": torch.zeros(3)})
    assert disk == ["sync .b.safetensors.new", "rename .b.safetensors.new b.safetensors", f"sync {tmp_path.name}"]


def test_a_checkpoint_exists_only_once_all_that_it_builds_on_does(disk: list[str], tmp_path: Path) -> None:
    small_run(out=tmp_path / "run", rounds=2, checkpoint_every=1)
    complete = disk.index("rename .rounds-00001.json.new rounds-00001.json")
    for first in (
        "sync metrics.jsonl",
        "sync 3.safetensors",
        "rename .round-00000 round-00000",
        "rename .rounds-00001.safetensors.new rounds-00001.safetensors",
    ):
        assert first in disk[:complete], first


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    write_durably(tmp_path / "a.txt", "old")
    with pytest.raises(UnicodeEncodeError):
        write_durably(tmp_path / "a.txt", "\udc80")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_durably(tmp_path / "folder", "new")
    assert (tmp_path / "a.txt").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "folder"]


# --- What is kept, and how often ---


def test_models_are_deleted_when_neither_of_the_last_two_checkpoints_needs_them(tmp_path: Path) -> None:
    kept = ModelStore(tmp_path)
    for round, expected in ((0, {0}), (1, {0, 1}), (2, {1, 2}), (3, {2, 3})):
        kept.stage(round, [(torch.full((4,), float(round)), {})], {round})
        kept.commit({round})
        assert kept.rounds() == expected
    assert torch.equal(kept.read(2, 0)[0], torch.full((4,), 2.0))
    (tmp_path / "round-abc").mkdir()
    assert kept.rounds() == {2, 3}


def test_models_take_their_name_with_the_next_checkpoint_if_they_are_still_worth_it(tmp_path: Path) -> None:
    kept = ModelStore(tmp_path)
    for round in (0, 1, 2):
        kept.stage(round, [(torch.full((4,), float(round)), {"n": torch.tensor(round)})], {max(0, round - 1), round})
    assert kept.rounds() == set()
    kept.commit({1})
    assert [path.name for path in tmp_path.iterdir()] == ["round-00001"]
    vector, buffers = kept.read(1, 0)
    assert torch.equal(vector, torch.ones(4))
    assert buffers["n"].item() == 1


def test_models_that_are_staged_again_replace_those_that_are_there_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = ModelStore(tmp_path)
    for value in (1.0, 2.0):
        kept.stage(3, [(torch.full((4,), value), {})] * 2, {3})
        if value == 2.0:
            monkeypatch.setattr(shutil, "rmtree", lambda path: pytest.fail(f"deletes {path}"))
        kept.commit({3})
    assert [path.name for path in tmp_path.iterdir()] == ["round-00003"]
    assert torch.equal(kept.read(3, 1)[0], torch.full((4,), 2.0))


def test_models_half_written_when_the_disk_was_full_never_replace_whole_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_after(2, tmp_path / "run", rounds=2, checkpoint_every=1)
    for file in (tmp_path / "run/checkpoints").glob("rounds-00002.*"):  # killed when it had models, but no checkpoint
        file.unlink()
    written = 0

    def full_in_the_end(path: Path, tensors: dict[str, Tensor]) -> None:
        nonlocal written
        written += 1
        if written > 1:  # the second of those that the repeated round stages
            path.write_bytes(b"half a model")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        save_tensors(path, tensors)

    monkeypatch.setattr("orchard.runs.model_store.save_tensors", full_in_the_end)
    with pytest.raises(orchard.RunFailed, match="No space left"):
        orchard.resume(tmp_path / "run", small_arrays())
    monkeypatch.undo()
    assert (tmp_path / "run/models/.round-00001").exists()
    models_are_whole(tmp_path / "run", including=1)
    orchard.resume(tmp_path / "run", small_arrays(), rounds=3)
    models_are_whole(tmp_path / "run", including=2)
    assert not (tmp_path / "run/models/.round-00001").exists()


def models_are_whole(run: Path, *, including: int) -> None:
    models = RunFolder(run).models
    assert including in models.rounds()
    for round in models.rounds():
        for client in range(4):
            models.read(round, client)  # would refuse a damaged one


def test_checkpoints_are_thinned_where_they_cost_more_than_two_percent(tmp_path: Path) -> None:
    folder, experiment = RunFolder(tmp_path), small_experiment(rounds=10)
    with folder.locked():
        for cost, due in ((0.0, True), (1e-6, True), (1e6, False)):
            folder.last_checkpoint -= 1  # a second ago
            folder.checkpoint_cost = cost
            assert folder.checkpoint_is_due(5, experiment, None) is due
        assert folder.checkpoint_is_due(10, experiment, None), "the last is always written"
        assert [r for r in range(1, 11) if folder.checkpoint_is_due(r, experiment, 3)] == [3, 6, 9, 10]
