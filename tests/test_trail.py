"""The audit trail of a site: what left is in it before it leaves, and nobody changes it unseen."""

import hashlib
import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from orchard.core.contract import ClientUpdate
from orchard.engines.flare.messages import Message, pack_update, packed
from orchard.errors import RunFailed, UserError
from orchard.sites.trail import START, Trail, shown, verify
from processes import orchard_command
from sites import Consortium, kit_of_north, small_plan


def lines(trail: Trail) -> list[str]:
    return trail.file.read_text().splitlines()


def five(home: Path) -> Trail:
    trail = Trail(home)
    for round in range(5):
        trail.write({"site": "north", "round": round, "loss": 0.5}, "round", "run", "hub:8002")
    return trail


def test_an_entry_says_what_left_when_to_whom_and_for_which_run(tmp_path: Path) -> None:
    trail, vector = Trail(tmp_path), torch.arange(4.0)
    update = ClientUpdate({"core": vector}, ("core 1",), 0.25, None, None)
    trail.write({"site": "north", **pack_update(update, 2)}, "round", "sites-1", "hub:8002")
    (entry,) = map(json.loads, lines(trail))
    exact = packed(vector)
    assert exact == bytes.fromhex("00000000 0000803f 00000040 00004040")
    assert entry["message"]["upload"] == [["core", {"bytes": 16, "sha256": hashlib.sha256(exact).hexdigest()}]]
    assert (entry["message"]["loss"], entry["message"]["selected"], entry["message"]["round"]) == (0.25, ["core 1"], 2)
    assert (entry["entry"], entry["to"], entry["run"], entry["previous"]) == (1, "hub:8002", "sites-1", START)
    figures = {**entry["message"], "upload": [["core", None]]}
    assert entry["bytes"] == 16 + len(json.dumps(figures, separators=(",", ":")))
    said = shown(entry)
    assert f"'core' (16 bytes, sha256 {hashlib.sha256(exact).hexdigest()[:16]})" in said
    assert "round 3" in said
    assert said.endswith("loss, selected")


def test_every_entry_holds_the_hash_of_the_one_before(tmp_path: Path) -> None:
    entries = [json.loads(line) for line in lines(five(tmp_path))]
    for before, after in pairwise(entries):
        assert after["previous"] == before["hash"]
    for entry in entries:
        mine = entry.pop("hash")
        assert hashlib.sha256(json.dumps(entry, sort_keys=True, separators=(",", ":")).encode()).hexdigest() == mine


def test_a_whole_trail_is_found_whole_with_any_hash_that_was_kept(tmp_path: Path) -> None:
    trail = five(tmp_path)
    hashes = [json.loads(line)["hash"] for line in lines(trail)]
    found = verify(trail)
    assert (found.entries, found.head, found.torn, found.kept) == (5, hashes[-1], (), None)
    assert [verify(trail, kept).kept for kept in hashes] == [1, 2, 3, 4, 5]
    assert verify(trail, hashes[1][:16]).kept == 2
    with pytest.raises(UserError, match="give at least 16 digits"):
        verify(trail, hashes[1][:15])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [*lines[:2], lines[2].replace("0.5", "0.4"), *lines[3:]], "line 3: this entry was altered"),
        (lambda lines: [*lines[:4], lines[4].replace("0.5", "0.4")], "line 5: this entry was altered"),
        (lambda lines: [*lines[:2], *lines[3:]], "line 3: does not follow entry 2"),
        (lambda lines: lines[1:], "line 1: is not the beginning"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "line 1: is not the beginning"),
        (lambda lines: [*lines[:3], lines[2], *lines[3:]], "line 4: does not follow entry 3"),
        (lambda lines: [*lines[:2], "garbage", *lines[3:]], "line 4: does not follow entry 2"),
    ],
    ids=["altered", "last altered", "removed", "first removed", "swapped", "repeated", "blotted out"],
)
def test_what_was_altered_is_named(change: "object", said: str, tmp_path: Path) -> None:
    trail = five(tmp_path)
    assert callable(change)
    trail.file.write_text("\n".join(change(lines(trail))) + "\n")
    with pytest.raises(RunFailed, match=said):
        verify(trail)


def test_a_trail_that_was_cut_off_or_written_anew_shows_only_to_who_kept_a_hash(tmp_path: Path) -> None:
    trail = five(tmp_path / "one")
    kept = json.loads(lines(trail)[4])["hash"]
    trail.file.write_text("\n".join(lines(trail)[:4]) + "\n")
    assert verify(trail).entries == 4
    with pytest.raises(RunFailed, match="no entry has the hash"):
        verify(trail, kept)
    anew = five(tmp_path / "two")
    anew.file.write_text(anew.file.read_text())
    trail.file.unlink()
    Trail(tmp_path / "one").write({"site": "north", "loss": 0.9}, "round", "run", "hub:8002")
    assert verify(trail).entries == 1
    with pytest.raises(RunFailed, match="no entry has the hash"):
        verify(trail, kept)


@pytest.mark.parametrize("missing", [1, 40, 300])
def test_a_line_that_a_crash_cut_short_is_named_and_the_chain_goes_on(missing: int, tmp_path: Path) -> None:
    trail = five(tmp_path)
    content = trail.file.read_bytes()
    trail.file.write_bytes(content[:-missing])
    trail.write({"site": "north", "round": 5, "loss": 0.5}, "round", "run", "hub:8002")
    found = verify(trail)
    lost = missing > 1  # else the entry itself is whole, only its end of line is not
    assert (found.entries, found.torn) == (5 if lost else 6, (5,) if lost else ())


def test_the_last_entry_is_found_however_long_lines_are(tmp_path: Path) -> None:
    trail = Trail(tmp_path)
    for size in (10, 200_000, 10, 70_000, 300_000):
        trail.write({"site": "north", "classes": ["x" * size]}, "enrol", "run", "hub:8002")
    assert verify(trail).entries == 5


def test_another_process_has_no_part_in_it(tmp_path: Path) -> None:
    trail = five(tmp_path)
    assert trail.file.stat().st_mode & 0o777 == 0o600


def test_there_is_no_trail_before_something_left(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing has left this site yet"):
        verify(Trail(tmp_path))


# --- A site's worker ---


def test_what_the_server_received_is_what_the_trail_says(tmp_path: Path) -> None:
    federation = Consortium(tmp_path)
    received: list[Message] = []

    def kept(site: str, answer: Message) -> Message:
        if site == "north":
            there = Trail(federation.settings["north"].records)
            assert len(lines(there)) == len(received) + 1  # it is on the disk when the message leaves
            received.append(answer)
        return answer

    federation.altered = kept
    federation.run(small_plan())
    trail = Trail(federation.settings["north"].records)
    entries = [entry for _, entry in trail.entries() if entry]
    assert [entry["what"] for entry in entries] == ["enrol", "start", "round", "round", "round", "round"]
    assert {entry["run"] for entry in entries} == {"run"}
    assert verify(trail).entries == len(received) == 6
    for entry, message in zip(entries, received, strict=True):
        assert entry["message"].keys() == message.keys()
        said = dict(entry["message"].get("upload", []))
        sent = dict(message.get("upload", []))
        assert {name: (about["bytes"], about["sha256"]) for name, about in said.items()} == {
            name: (len(content), hashlib.sha256(content).hexdigest()) for name, content in sent.items()
        }
    assert entries[0]["message"]["counts"] == received[0]["counts"]


def test_nothing_leaves_where_the_trail_cannot_be_written(tmp_path: Path) -> None:
    federation = Consortium(tmp_path)
    records = federation.settings["north"].records
    (records / "sent.jsonl").mkdir(parents=True)
    with pytest.raises(RunFailed, match=r"north \(audit trail not written\)"):
        federation.run(small_plan())


def test_refusals_are_in_the_trail_too(tmp_path: Path) -> None:
    worker = Consortium(tmp_path).workers["north"]
    answer: Mapping[str, object] = worker.handle({"what": "round"})
    assert answer["failure"] == "not started"
    ((_, entry),) = Trail(tmp_path / "north" / "records").entries()
    assert entry is not None
    assert entry["message"]["failure"] == "not started"
    assert "failure: not started" in shown(entry)


def test_the_command_shows_and_checks_it(tmp_path: Path) -> None:
    Consortium(tmp_path).run(small_plan())
    kit = kit_of_north(tmp_path / "kit")
    done = orchard_command("site", "log", str(kit), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout.splitlines()
    assert len(said) == 7
    assert "round 1" in said[2]
    assert "'core' (8,012 bytes, sha256" in said[2]
    head = said[-1].rsplit(" ", 1)[1]
    again = orchard_command("site", "log", str(kit), "--run", "other", "--kept", head, cwd=tmp_path)
    assert again.stdout.splitlines()[0] == "the hash that you kept is that of entry 6"
    trail = tmp_path / "north" / "records" / "sent.jsonl"
    trail.write_text(trail.read_text().replace('"core"', '"kore"', 1))
    altered = orchard_command("site", "log", str(kit), cwd=tmp_path)
    assert altered.returncode == 1
    assert "this entry was altered" in altered.stderr
