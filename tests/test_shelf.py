"""What clients keep for long lies on the disk, once, and is in memory only while it is used."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from crashing import VARIANTS, same, stopped_after, whole
from helpers import small_arrays
from orchard.checkpoints import read_tensors
from orchard.errors import NothingToGoOnFrom
from orchard.runs import resume
from orchard.shelf import WORTH_A_FILE, Shelf

LARGE = WORTH_A_FILE // 4 + 1


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


@pytest.fixture
def _small_models_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchard.shelf.WORTH_A_FILE", 1)


# --- One shelf ---


def test_what_was_there_before_is_laid_down_once_whoever_has_it(tmp_path: Path) -> None:
    shelf, old, new, small = Shelf(tmp_path / "shelf"), torch.rand(LARGE), torch.rand(LARGE), torch.rand(3)
    state = {"copies": [None, old, new], "pair": (old, 1), "relationships": small}
    mine = shelf.lay_down(state, [old, small])
    others = shelf.lay_down({"copies": [old]}, [old])
    laid: Tensor = mine["copies"][1]
    assert laid is not old
    assert torch.equal(laid, old)
    assert laid.data_ptr() % 64 == 0, "aligned as PyTorch's own memory is"
    assert laid is mine["pair"][0] is others["copies"][0]
    assert mine["copies"][2] is new, "which may be replaced in the next turn"
    assert mine["relationships"] is small
    assert state["copies"] == [None, old, new], "states are replaced, never changed"
    assert [file.stat().st_size for file in files(tmp_path / "shelf")] == [old.nbytes]
    assert shelf.lay_down(mine, [laid])["copies"][1] is laid


def test_what_nobody_has_is_deleted_unless_a_checkpoint_needs_it(tmp_path: Path) -> None:
    shelf, models = Shelf(tmp_path), [torch.rand(LARGE) for _ in range(3)]
    held: list[Tensor] = shelf.lay_down(models, models)
    models.clear()
    names = list(shelf.models())
    shelf.needed = frozenset(names[:1])
    shelf.tidy()
    assert len(files(tmp_path)) == 3
    del held[:2]
    shelf.tidy()
    assert {file.name for file in files(tmp_path)} == {names[0], names[2]}


def test_a_disk_that_takes_nothing_leaves_models_in_memory(tmp_path: Path) -> None:
    (tmp_path / "shelf").write_text("no folder")
    shelf, model = Shelf(tmp_path / "shelf"), torch.rand(LARGE)
    assert shelf.lay_down([model], [model])[0] is model


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's account of memory")
def test_what_lies_there_takes_memory_only_while_it_is_used(tmp_path: Path) -> None:
    def resident() -> int:
        found = re.search(r"RssFile:\s*(\d+) kB", Path("/proc/self/status").read_text())
        assert found
        return int(found[1]) * 1024

    shelf, model = Shelf(tmp_path), torch.rand(16_000_000)
    (laid,) = shelf.lay_down([model], [model])
    before, size, total = resident(), model.nbytes, model.sum()
    assert torch.equal(laid.sum(), total)
    assert resident() > before + 0.9 * size
    shelf.lay_down([laid])
    assert resident() < before + 0.1 * size
    assert torch.equal(laid.sum(), total)


# --- A run ---


@pytest.mark.usefixtures("_small_models_too")
@pytest.mark.parametrize("name", ["apple-budget", "fedfomo-budget"])
def test_a_run_gives_the_same_with_and_without(name: str, tmp_path: Path) -> None:
    stopped_after(2, tmp_path / "run", checkpoint_every=1, **VARIANTS[name])
    laid = files(tmp_path / "run/checkpoints/shelf")
    if name == "apple-budget":
        packs = [read_tensors(pack) for pack in (tmp_path / "run/checkpoints").glob("*.safetensors")]
        assert laid, "four clients who download one core a round have copies of different ages"
        assert not {file.name for file in laid} & set(packs[0] | packs[1]), "what is there is not written again"
    assert same(resume(tmp_path / "run", small_arrays()), whole(name))


@pytest.mark.usefixtures("_small_models_too")
def test_a_version_that_is_damaged_is_named(tmp_path: Path) -> None:
    stopped_after(2, tmp_path / "run", **VARIANTS["apple-budget"])
    for file in files(tmp_path / "run/checkpoints/shelf"):
        content = bytearray(file.read_bytes())
        content[7] ^= 1
        file.write_bytes(content)
    with pytest.raises(NothingToGoOnFrom, match=r"no checkpoint is whole:\n.*shelf/\w{64}: its checksum is wrong"):
        resume(tmp_path / "run", small_arrays())
    for file in files(tmp_path / "run/checkpoints/shelf"):
        file.unlink()
    with pytest.raises(NothingToGoOnFrom, match=r"shelf/\w{64}: cannot be read: .*No such file"):
        resume(tmp_path / "run", small_arrays())


@pytest.mark.usefixtures("_small_models_too")
def test_a_method_that_receives_everything_anew_leaves_the_shelf_empty(tmp_path: Path) -> None:
    for name in ("apple", "fedavg", "apfl", "heurfedamp"):
        stopped_after(2, tmp_path / name, method=name)
        assert not files(tmp_path / name / "checkpoints/shelf"), name
