"""Nothing hangs, and nothing is stuck: a frozen server, a restored one, sites that are waited for; real processes."""

import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest

from processes import orchard_command

pytest.importorskip("nvflare")

from federation import COORDINATOR, Federation, digits, ended
from orchard.runs.folder import RunFolder
from orchard.sites.authority import revoke
from test_flare_processes import check_same, simulated


def freeze(federation: Federation, name: str) -> list[psutil.Process]:
    """Stop all processes of a party where they are."""
    processes = [psutil.Process(federation.processes[name].pid), *federation.workers(name)]
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    return processes


@pytest.mark.slow
def test_a_server_that_freezes_for_75_seconds_is_waited_for_and_the_run_goes_on_to_the_same_result(
    tmp_path: Path,
) -> None:
    arrays = digits(2)
    with Federation(tmp_path, ["north", "south"], arrays) as federation:
        federation.start_all()
        run = federation.run(rounds=12)
        federation.wait(lambda: federation.rounds("south") >= 2, "the second round")
        frozen = freeze(federation, "localhost")
        time.sleep(65)
        listed = orchard_command("runs", ".", cwd=tmp_path).stdout
        time.sleep(10)
        for process in frozen:
            process.send_signal(signal.SIGCONT)
        said = ended(run, 200)
        assert "which cannot be reached, for " in said
        assert "answers again" in said
        assert "waiting" in listed
        assert f"run waits for localhost:{federation.consortium.port}" in listed
        check_same(federation, simulated(arrays, rounds=12))


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["five rounds", "all rounds"])
def test_a_server_restored_from_a_backup_gives_what_it_would_have_given(lost: str, tmp_path: Path) -> None:
    arrays = digits(3)
    with Federation(tmp_path, ["north", "south", "east"], arrays) as federation:
        storage = federation.home / "storage"
        federation.start_all()
        if lost == "all rounds":
            shutil.copytree(storage, tmp_path / "backup")
        run = federation.run(rounds=20)
        federation.wait(lambda: federation.rounds("south") >= 3, "the third round")
        if lost == "five rounds":
            shutil.copytree(storage, tmp_path / "backup")
        kept = max(federation.rounds_at_server(tmp_path / "backup"), default=0)
        federation.wait(lambda: federation.rounds("south") >= kept + 6, "six rounds more")
        federation.kill("localhost")
        shutil.rmtree(storage)
        shutil.copytree(tmp_path / "backup", storage)
        federation.start("localhost")
        said = ended(run, 240)
        check_same(federation, simulated(arrays, rounds=20))
        assert "round long past" not in said
        assert [entry.failures for entry in RunFolder(tmp_path / "run").result().rounds] == [{}] * 20


@pytest.mark.slow
def test_a_first_round_that_needs_everybody_says_so_and_is_listed(tmp_path: Path) -> None:
    with Federation(tmp_path, ["north", "south"], digits(2)) as federation:
        federation.start("localhost")
        federation.wait(lambda: "Server started" in federation.log("localhost"), "the server to start")
        federation.start("north")
        run = federation.run(rounds=2, deploy={"patience_seconds": 0})
        federation.wait((tmp_path / "run" / "waiting.json").exists, "the note")
        listed = ""

        def named() -> bool:
            nonlocal listed
            listed = orchard_command("runs", ".", cwd=tmp_path).stdout
            return "run waits for south (absent; the first round needs all sites)" in listed

        federation.wait(named, "north alone")
        assert "waiting" in listed
        run.send_signal(signal.SIGINT)
        said, _ = run.communicate(timeout=60)
        assert "not begun yet; begin it with: orchard deploy attach" in said
        run = federation.command("attach", str(tmp_path / "run"))
        federation.wait(named, "north alone again")
        federation.start("south")
        assert "waiting for south (absent; the first round needs all sites)" in ended(run)
        assert not (tmp_path / "run" / "waiting.json").exists()


@pytest.mark.slow
def test_a_site_joins_with_the_consent_of_the_others_and_leaves_again(tmp_path: Path) -> None:
    arrays = digits(3)
    with Federation(tmp_path, ["north", "south"], arrays[:2]) as federation:
        federation.start_all()
        ended(federation.run(rounds=2))
        federation.join("east", arrays[2])
        federation.start("east")
        run = federation.run(rounds=3, out="second")
        note = tmp_path / "second" / "waiting.json"
        federation.wait(lambda: note.exists() and "consent of north, south" in note.read_text(), "being asked")
        for site in ("north", "south"):
            kit = str(federation.kits / site)
            checked = orchard_command("site", "check", kit, str(tmp_path / "experiment.toml"), cwd=tmp_path)
            assert "site: " + site + ", one of 3 of the consortium lungs" in checked.stdout
            assert f"orchard site accept {kit} east" in checked.stdout
            assert orchard_command("site", "accept", kit, "east", cwd=tmp_path).returncode == 0
        assert "waiting for the consent of north, south" in ended(run)
        check_same(federation, simulated(arrays, rounds=3), "second")
        federation.agree(["north", "south"])
        said = ended(federation.run(rounds=2, out="third"))  # with east's process still there
        assert "consent" not in said
        assert len(RunFolder(tmp_path / "third").result().rounds) == 2
        checked = orchard_command(
            "site", "check", str(federation.kits / "north"), str(tmp_path / "experiment.toml"), cwd=tmp_path
        )
        assert "since this site agreed: east has left" in checked.stdout


@pytest.mark.slow
def test_a_site_whose_certificate_is_revoked_in_the_middle_of_a_run_does_not_come_in_again(tmp_path: Path) -> None:
    with Federation(tmp_path, ["north", "south", "east"], digits(3)) as federation:
        federation.start_all()
        run = federation.run(rounds=40, deploy={"patience_seconds": 5, "min_sites": 2, "round_seconds": 20})
        federation.wait(lambda: federation.rounds("east") >= 3, "the third round")
        revoke(federation.kits, "east")
        next(federation.kits.glob(".east.revoked-*")).rename(federation.kits / "east")  # its owner has it still
        federation.wait(lambda: federation.rounds("north") >= federation.rounds("east") + 2, "two rounds without it")
        missed = federation.rounds("east")
        federation.kill("east")
        federation.start("east")
        federation.wait(
            lambda: "east is not let in: its certificate was revoked" in federation.log("localhost"),
            "its being turned away",
        )
        ended(run, 300)
        result = RunFolder(tmp_path / "run").result()
        away = [r for r, entry in enumerate(result.rounds) if entry.after_training[2] is None]
        assert away == list(range(away[0], 40))
        assert federation.rounds("east") == missed
        assert result.rounds[away[0]].failures[2].endswith("certificate revoked")
        status = ended(federation.command("status", "--kit", str(federation.kits / COORDINATOR)))
        assert [line.split()[1] for line in status.splitlines()] == ["connected", "connected", "absent"]


@pytest.mark.slow
def test_a_coordinator_whose_certificate_is_revoked_is_told_so_and_the_next_one_goes_on_with_the_run(
    tmp_path: Path,
) -> None:
    with Federation(tmp_path, ["north", "south"], digits(2)) as federation:
        federation.start_all()
        run = federation.run(rounds=60)
        federation.wait(lambda: federation.rounds("north") >= 3, "the third round")
        revoke(federation.kits, COORDINATOR)
        said, _ = run.communicate(timeout=60)
        assert run.returncode == 2
        assert "the server lets this kit in no more: its certificate was revoked" in said
        federation.agree(federation.sites)  # makes the next one
        kit = str(federation.kits / COORDINATOR)
        ended(federation.command("attach", str(tmp_path / "run"), "--kit", kit), 300)
        assert len(RunFolder(tmp_path / "run").result().rounds) == 60
