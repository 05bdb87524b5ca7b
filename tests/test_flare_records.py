"""A site's records: a round goes on from the state that the last one left, or not at all."""

from pathlib import Path

import pytest
from filelock import FileLock

import orchard
from helpers import small_arrays, small_experiment
from sites import SITES, Consortium, figures, same_models, small_plan


def stopped_after(rounds: int, home: Path) -> Consortium:
    """A consortium whose run was stopped, and whose sites have been started anew."""
    consortium = Consortium(home)
    consortium.run(small_plan(rounds=6), stop_after=rounds)
    consortium.restart_sites()
    return consortium


def damage(consortium: Consortium, site: str, rounds: int) -> None:
    file = consortium.settings[site].records / "run" / f"rounds-{rounds:05d}.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damaged", [(3,), (2, 3)])
def test_a_site_that_cannot_read_what_it_was_left_with_does_not_take_part(
    damaged: tuple[int, ...], tmp_path: Path
) -> None:
    consortium = stopped_after(3, tmp_path)
    for rounds in damaged:
        damage(consortium, "east", rounds)
    before = sorted(file.name for file in (tmp_path / "east" / "records" / "run").iterdir())
    result = consortium.run(small_plan(rounds=6))
    assert [entry.failures for entry in result.rounds[:3]] == [{}] * 3
    refused = [{2: f"east, round {r}: record damaged"} for r in (3, 4)]
    assert [entry.failures for entry in result.rounds[3:5]] == refused
    assert sorted(file.name for file in (tmp_path / "east" / "records" / "run").iterdir()) == before


def test_a_round_whose_record_is_damaged_is_run_again(tmp_path: Path) -> None:
    together = orchard.run(small_experiment(rounds=6), small_arrays())
    consortium = Consortium(tmp_path)

    def die_in_round_2(site: str, answer: object) -> object:
        if site == "west" and isinstance(answer, dict) and answer.get("round") == 2:
            raise ConnectionError("the server's power failed")
        return answer

    consortium.altered = die_in_round_2  # type: ignore[assignment]
    with pytest.raises(ConnectionError):
        consortium.run(small_plan(rounds=6))
    damage(consortium, "east", 3)
    consortium.altered = lambda site, answer: answer
    consortium.restart_sites()
    assert figures(consortium.run(small_plan(rounds=6))) == figures(together)
    assert same_models(consortium, together)


def test_a_round_long_past_is_refused_and_no_record_is_lost(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    consortium.run(small_plan(rounds=6), stop_after=4)
    worker = consortium.workers["north"]
    folder = tmp_path / "north" / "records" / "run"
    before = sorted(file.name for file in folder.iterdir())
    for message in ({"what": "round", "round": 0, "vectors": []}, {"what": "round", "round": 1, "vectors": []}):
        answer = {"site": "north", "failure": "round long past", "orchard": orchard.__version__}
        assert worker.handle(message) == answer
    assert sorted(file.name for file in folder.iterdir()) == before


def test_two_sites_do_not_share_a_folder_of_records(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    shared = consortium.settings["east"].records
    consortium.settings["west"] = consortium.settings["west"].model_copy(update={"records": shared})
    consortium.run(small_plan(rounds=6), stop_after=2)
    consortium.restart_sites()
    result = consortium.run(small_plan(rounds=6))
    reasons = [entry.failures[3] for entry in result.rounds[:5]]
    assert reasons == [f"west, round {r}: record of another site" for r in range(5)]


def test_a_record_that_another_process_is_at_is_left_alone(tmp_path: Path) -> None:
    consortium = stopped_after(2, tmp_path)
    plan = small_plan(rounds=6, agreement={"round_seconds": 1})
    with FileLock(tmp_path / "east" / "records" / ".run.lock"):
        result = consortium.run(plan, stop_after=1)
    assert result.rounds[2].failures == {2: "east, round 2: record in use"}
    assert consortium.run(plan).rounds[-1].failures == {}


def test_records_and_cores_are_for_their_owners_eyes(tmp_path: Path) -> None:
    stopped_after(1, tmp_path)
    private = [*(tmp_path / site / "records" / "run" for site in SITES), tmp_path / "server" / "run"]
    assert {folder.stat().st_mode & 0o777 for folder in private} == {0o700}
