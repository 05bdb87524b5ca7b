"""A site's records: a round goes on from the state that the last one left, or not at all."""

import shutil
from pathlib import Path

import pytest
from filelock import FileLock

import orchard
from helpers import small_arrays, small_experiment
from orchard.engines.flare.messages import Message
from orchard.methods.registry import BUILT_IN
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
    refused = [{2: f"east, round {r}: record damaged"} for r in (4, 5)]
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


def answers_of(consortium: Consortium) -> dict[tuple[str, int], list[Message]]:
    """Collect what leaves the sites in every round."""
    seen: dict[tuple[str, int], list[Message]] = {}

    def watch(site: str, answer: Message) -> Message:
        if "after_training" in answer and answer["loss"] is not None:
            seen.setdefault((site, answer["round"]), []).append(answer)
        return answer

    consortium.altered = watch
    return seen


@pytest.mark.parametrize(
    "method", ["apple", *(pytest.param(name, marks=pytest.mark.slow) for name in BUILT_IN if name != "apple")]
)
def test_a_server_restored_from_an_old_backup_gives_what_it_would_have_given(method: str, tmp_path: Path) -> None:
    plan = small_plan(rounds=8, method=method)
    together = orchard.run(small_experiment(rounds=8, method=method), small_arrays())
    consortium = Consortium(tmp_path)
    seen = answers_of(consortium)
    consortium.run(plan, stop_after=1)
    shutil.copytree(tmp_path / "server", tmp_path / "backup")
    consortium.run(plan, stop_after=5)
    shutil.rmtree(tmp_path / "server")
    shutil.copytree(tmp_path / "backup", tmp_path / "server")
    consortium.restart_sites()
    assert figures(consortium.run(plan)) == figures(together)
    assert same_models(consortium, together)
    again = {key: sent for key, sent in seen.items() if len(sent) > 1}
    assert {round for _, round in again} == {1, 2, 3, 4, 5}
    assert all(first == other for first, *others in again.values() for other in others)  # nobody is told more


def test_a_restored_run_goes_on_where_other_sites_are_there_than_were_then(tmp_path: Path) -> None:
    plan = small_plan(rounds=7, agreement={"min_sites": 2})
    consortium = Consortium(tmp_path)
    consortium.run(plan, stop_after=1)
    shutil.copytree(tmp_path / "server", tmp_path / "backup")
    consortium.run(plan, stop_after=4, present=["north", "south", "east"])
    shutil.rmtree(tmp_path / "server")
    shutil.copytree(tmp_path / "backup", tmp_path / "server")
    result = consortium.run(plan, present=["south", "east", "west"])
    assert [set(entry.failures) for entry in result.rounds] == [set(), *[{0}] * 6]
    assert consortium.record("west")["rounds"] == consortium.record("east")["rounds"] == 8


def test_whatever_a_server_sends_for_a_round_that_is_past_the_answer_is_the_same(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    asked: dict[int, Message] = {}
    handle = consortium.workers["north"].handle

    def watch(message: Message) -> Message:
        if message["what"] == "round":
            asked[message["round"]] = message
        return handle(message)

    consortium.workers["north"].handle = watch  # type: ignore[method-assign]
    seen = answers_of(consortium)
    consortium.run(small_plan(rounds=6), stop_after=5)
    for round in range(5):
        other = {**asked[round], "vectors": asked[(round + 1) % 5]["vectors"]}
        assert handle(other) == seen["north", round][0]


def test_a_server_that_lost_its_storage_begins_anew_and_sites_lose_nothing(tmp_path: Path) -> None:
    together = orchard.run(small_experiment(rounds=6), small_arrays())
    consortium = Consortium(tmp_path)
    consortium.run(small_plan(rounds=6), stop_after=4)
    shutil.rmtree(tmp_path / "server")
    assert figures(consortium.run(small_plan(rounds=6))) == figures(together)
    assert same_models(consortium, together)


def test_a_site_that_keeps_too_few_rounds_takes_part_again_when_the_server_has_caught_up(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    forgetful = consortium.settings["east"].model_copy(update={"rounds_kept": 1})
    consortium.settings["east"] = forgetful
    consortium.run(small_plan(rounds=8), stop_after=1)
    shutil.copytree(tmp_path / "server", tmp_path / "backup")
    consortium.run(small_plan(rounds=8), stop_after=5)
    shutil.rmtree(tmp_path / "server")
    shutil.copytree(tmp_path / "backup", tmp_path / "server")
    result = consortium.run(small_plan(rounds=8))
    assert [entry.failures.get(2) for entry in result.rounds] == [
        None,
        *(f"east, round {r}: round long past" for r in (2, 3, 4)),
        *[None] * 4,
    ]


def test_the_disk_holds_as_many_answers_as_the_site_says(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    consortium.settings["east"] = consortium.settings["east"].model_copy(update={"rounds_kept": 3})
    consortium.run(small_plan(rounds=8))
    answers = {site: tmp_path / site / "records" / "run" / "answers" for site in SITES}
    assert sorted(file.stem for file in answers["east"].glob("*.json")) == [f"rounds-{r:05d}" for r in (6, 7, 8)]
    assert len(list(answers["north"].glob("*.json"))) == 8


def test_a_round_long_past_is_refused_and_no_record_is_lost(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    consortium.settings["north"] = consortium.settings["north"].model_copy(update={"rounds_kept": 1})
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
    assert reasons == [f"west, round {r}: record of another site" for r in range(1, 6)]


def test_a_record_that_another_process_is_at_is_left_alone(tmp_path: Path) -> None:
    consortium = stopped_after(2, tmp_path)
    plan = small_plan(rounds=6, agreement={"round_seconds": 1})
    with FileLock(tmp_path / "east" / "records" / ".run.lock"):
        result = consortium.run(plan, stop_after=1)
    assert result.rounds[2].failures == {2: "east, round 3: record in use"}
    assert consortium.run(plan).rounds[-1].failures == {}


def test_records_and_cores_are_for_their_owners_eyes(tmp_path: Path) -> None:
    stopped_after(1, tmp_path)
    private = [*(tmp_path / site / "records" / "run" for site in SITES), tmp_path / "server" / "run"]
    assert {folder.stat().st_mode & 0o777 for folder in private} == {0o700}
