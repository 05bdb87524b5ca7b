"""What clients keep for long is offloaded to disk, once, and is in memory only while it is used."""

import json
import re
import resource
from pathlib import Path

import pytest
import torch
from torch import Tensor

from crashing import VARIANTS, same, stopped_after, whole
from helpers import small_arrays, small_run
from orchard.engines.offload import WORTH_A_FILE, Offloader, content_name
from orchard.errors import NoUsableCheckpoint
from orchard.runs.checkpoints import delete_newer, read_newest, write_checkpoint
from orchard.runs.files import read_tensors
from orchard.runs.run import resume

LARGE = WORTH_A_FILE // 4 + 1
OPEN_FILES = Path("/proc/self/fd")


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


@pytest.fixture
def _small_models_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchard.engines.offload.WORTH_A_FILE", 1)


# --- One offloader ---


def test_what_was_there_before_is_offloaded_once_whoever_has_it(tmp_path: Path) -> None:
    offloader, old, new, small = Offloader(tmp_path / "offloaded"), torch.rand(LARGE), torch.rand(LARGE), torch.rand(3)
    state = {"copies": [None, old, new], "pair": (old, 1), "relationships": small}
    mine = offloader.offload(state, [old, small])
    others = offloader.offload({"copies": [old]}, [old])
    offloaded: Tensor = mine["copies"][1]
    assert offloaded is not old
    assert torch.equal(offloaded, old)
    assert offloaded.data_ptr() % 64 == 0, "aligned as PyTorch's own memory is"
    assert offloaded is mine["pair"][0] is others["copies"][0]
    assert mine["copies"][2] is new, "which may be replaced in the next round"
    assert mine["relationships"] is small
    leaf = torch.rand(LARGE, requires_grad=True)
    assert offloader.offload([leaf], [leaf])[0] is leaf, "which a file could not stand for"
    assert state["copies"] == [None, old, new], "states are replaced, never changed"
    assert [file.stat().st_size for file in files(tmp_path / "offloaded")] == [old.nbytes]
    assert offloader.offload(mine, [offloaded])["copies"][1] is offloaded


def test_what_nobody_has_is_deleted_unless_a_checkpoint_needs_it(tmp_path: Path) -> None:
    offloader, models = Offloader(tmp_path), [torch.rand(LARGE) for _ in range(3)]
    held: list[Tensor] = offloader.offload(models, models)
    models.clear()
    names = list(offloader.models())
    offloader.needed = frozenset(names[:1])
    offloader.tidy()
    assert len(files(tmp_path)) == 3
    del held[:2]
    offloader.tidy()
    assert {file.name for file in files(tmp_path)} == {names[0], names[2]}


def test_a_disk_that_takes_nothing_leaves_models_in_memory_until_there_is_room(tmp_path: Path) -> None:
    offloader, models = Offloader(tmp_path), [torch.rand(LARGE) for _ in range(2)]
    names = [content_name(model) for model in models]
    (tmp_path / names[0]).write_bytes(b"what a checkpoint needs")
    offloader.needed = frozenset(names[:1])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGE, before[1]))
    try:
        kept = offloader.offload(models, models)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert all(mine is theirs for mine, theirs in zip(kept, models, strict=True))
    assert [file.read_bytes() for file in files(tmp_path)] == [b"what a checkpoint needs"]
    offloader.tidy()
    offloader.offload(models, models)
    assert {file.name for file in files(tmp_path)} == set(names)


@pytest.mark.skipif(not OPEN_FILES.exists(), reason="needs Linux's list of open files")
def test_what_is_offloaded_is_no_open_file(tmp_path: Path) -> None:
    offloader, models = Offloader(tmp_path), [torch.rand(LARGE) for _ in range(20)]
    before = len(list(OPEN_FILES.iterdir()))
    offloaded = offloader.offload(models, models)
    assert len(offloaded) == len(files(tmp_path)) == 20
    assert len(list(OPEN_FILES.iterdir())) == before


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's account of memory")
def test_what_is_offloaded_takes_memory_only_while_it_is_used(tmp_path: Path) -> None:
    def resident() -> int:
        found = re.search(r"RssFile:\s*(\d+) kB", Path("/proc/self/status").read_text())
        assert found
        return int(found[1]) * 1024

    offloader, model = Offloader(tmp_path), torch.rand(16_000_000)
    (offloaded,) = offloader.offload([model], [model])
    before, size, total = resident(), model.nbytes, model.sum()
    assert torch.equal(offloaded.sum(), total)
    assert resident() > before + 0.9 * size
    offloader.offload([offloaded])
    assert resident() < before + 0.1 * size
    assert torch.equal(offloaded.sum(), total)


# --- Checkpoints ---


def test_a_checkpoint_names_what_is_offloaded_and_writes_nothing_of_it(tmp_path: Path) -> None:
    offloader, models = Offloader(tmp_path / "offloaded"), [torch.rand(LARGE) for _ in range(3)]
    offloaded = offloader.offload(models, models)
    own, names = torch.rand(LARGE), [content_name(model) for model in models]
    write_checkpoint(tmp_path, 1, {"copies": offloaded[:1]}, offloader)
    write_checkpoint(tmp_path, 2, {"copies": offloaded[:2], "own": own}, offloader)
    assert offloader.needed == set(names[:2])
    assert set(read_tensors(tmp_path / "rounds-00002.safetensors")) == {content_name(own)}
    del offloaded
    models.clear()
    content, problems = read_newest(tmp_path, offloader=offloader)
    assert not problems
    assert [content_name(copy) for copy in content["copies"]] == names[:2]
    assert torch.equal(content["own"], own)
    assert set(offloader.models()) == set(names[:2]), "they are mapped from where they are"
    delete_newer(tmp_path, 1, offloader)
    assert offloader.needed == set(names[:1]), "what is written from now on must come onto the disk anew"


# --- A run ---


@pytest.mark.usefixtures("_small_models_too")
@pytest.mark.parametrize("name", ["apple-budget", "fedfomo-budget"])
def test_a_run_gives_the_same_with_and_without(name: str, tmp_path: Path) -> None:
    stopped_after(2, tmp_path / "run", checkpoint_every=1, **VARIANTS[name])
    offloaded = files(tmp_path / "run/checkpoints/offloaded")
    if name == "apple-budget":
        packs = [read_tensors(pack) for pack in (tmp_path / "run/checkpoints").glob("*.safetensors")]
        assert offloaded, "four clients who download one core a round have copies of different ages"
        assert not {file.name for file in offloaded} & set(packs[0] | packs[1]), "what is there is not written again"
    assert same(resume(tmp_path / "run", small_arrays()), whole(name))


@pytest.mark.usefixtures("_small_models_too")
def test_a_resumed_run_lets_go_of_what_it_began_with(tmp_path: Path) -> None:
    small_run(out=tmp_path / "run", checkpoint_every=1, **VARIANTS["apple-budget"])
    resume(tmp_path / "run", small_arrays(), rounds=12)
    named: set[str] = set()
    for checkpoint in (tmp_path / "run/checkpoints").glob("*.json"):
        written = json.loads(checkpoint.read_text())
        held = set(re.findall(r'"tensor": "(\w{64})"', json.dumps(written["state"])))
        assert set(written["offloaded"]) <= held
        named |= set(written["offloaded"])
    assert {file.name for file in files(tmp_path / "run/checkpoints/offloaded")} == named


@pytest.mark.usefixtures("_small_models_too")
def test_a_version_that_is_damaged_is_named(tmp_path: Path) -> None:
    stopped_after(2, tmp_path / "run", **VARIANTS["apple-budget"])
    for file in files(tmp_path / "run/checkpoints/offloaded"):
        content = bytearray(file.read_bytes())
        content[7] ^= 1
        file.write_bytes(content)
    with pytest.raises(NoUsableCheckpoint, match=r"no checkpoint is whole:\n.*offloaded/\w{64}: its checksum is wrong"):
        resume(tmp_path / "run", small_arrays())
    for file in files(tmp_path / "run/checkpoints/offloaded"):
        file.unlink()
    with pytest.raises(NoUsableCheckpoint, match=r"offloaded/\w{64}: cannot be read: .*No such file"):
        resume(tmp_path / "run", small_arrays())


@pytest.mark.usefixtures("_small_models_too")
def test_a_method_that_receives_everything_anew_offloads_nothing(tmp_path: Path) -> None:
    for name in ("apple", "fedavg", "apfl", "heurfedamp"):
        stopped_after(2, tmp_path / name, method=name)
        assert not files(tmp_path / name / "checkpoints/offloaded"), name
