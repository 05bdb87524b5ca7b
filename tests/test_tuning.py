"""Parameters chosen by validation: which candidates there are, how many run for how long, and who is chosen."""

from collections import Counter
from pathlib import Path

import pytest

from orchard.errors import RunFailed
from orchard.experiment import Experiment, RunOptions
from orchard.runs import tuning
from orchard.runs.folder import RunFolder
from orchard.runs.grid import Grid, parse_contender
from orchard.runs.tuning import candidates, tune
from processes import orchard_command
from test_comparison import Log

BASE = Experiment(rounds=9, epochs=1, clients=3, model="mlp", batch_size=64, lr=0.02)


def labels(text: str, base: Experiment = BASE) -> list[str]:
    return [one.label for one in candidates(parse_contender(text, base), base)]


def test_candidates_are_three_rates_and_the_methods_own_grid_the_present_values_first() -> None:
    assert labels("fedavg") == ["fedavg lr=0.02", "fedavg lr=0.0067", "fedavg lr=0.06"]
    ditto = labels("ditto")
    assert ditto[:3] == ["ditto lr=0.02 lam=0.1", "ditto lr=0.02 lam=0.01", "ditto lr=0.02 lam=1.0"]
    assert len(set(ditto)) == 9


def test_what_was_set_stays_as_it_is() -> None:
    assert labels("ditto:lam=0.3") == [f"ditto:lam=0.3 lr={lr}" for lr in (0.02, 0.0067, 0.06)]
    assert all(
        one.settings.model_dump()["lam"] == 0.3 for one in candidates(parse_contender("ditto:lam=0.3", BASE), BASE)
    )


def test_a_candidate_on_which_training_diverges_is_no_candidate() -> None:
    wild = BASE.changed(lr=2.0)  # the pull λ = 1 diverges beyond lr = 3.8
    assert "ditto lr=2.0 lam=1.0" in labels("ditto", wild)
    assert "ditto lr=6.0 lam=1.0" not in labels("ditto", wild)
    assert "ditto lr=6.0 lam=0.1" in labels("ditto", wild)


def test_a_third_of_the_candidates_goes_on_for_three_times_as_many_rounds(tmp_path: Path) -> None:
    log = Log()
    grid = Grid(BASE, RunOptions(), [1], tmp_path)
    ditto, fedavg = tune(grid, [parse_contender(name, BASE) for name in ("ditto", "fedavg")], log)
    runs = [RunFolder(path).result() for path in tmp_path.iterdir()]
    rounds = Counter((run.experiment.method.name, run.experiment.rounds) for run in runs)
    assert rounds == {("ditto", 3): 9, ("ditto", 9): 3, ("fedavg", 9): 3}
    by_validation = {
        (run.experiment.rounds, run.experiment.lr, run.experiment.method.model_dump().get("lam")): run
        for run in runs
        if run.experiment.method.name == "ditto"
    }
    scores = {key: run.figures().validation for key, run in by_validation.items()}
    first, last = ({key[1:]: score for key, score in scores.items() if key[0] == rounds} for rounds in (3, 9))
    out = [first[key] for key in first.keys() - last.keys()]
    assert min(first[key] for key in last) >= max(out)
    chosen = (ditto.contender.changes["lr"], ditto.contender.settings.model_dump()["lam"])
    assert last[chosen] == max(last.values()) == ditto.validation
    assert ditto.contender.label == f"ditto lr={chosen[0]} lam={chosen[1]}"
    assert (ditto.candidates, fedavg.candidates) == (9, 3)
    assert log.stages == ["tuning, stage 1 of 2", "tuning, stage 2 of 2"]

    again = Log()
    assert tune(grid, [parse_contender("ditto", BASE)], again)[0] == ditto
    assert not again.begun, "finished runs are reused"


def test_methods_share_runs_while_they_are_tuned(tmp_path: Path) -> None:
    log, short = Log(), BASE.changed(rounds=2)
    tune(Grid(short, RunOptions(), [1], tmp_path), [parse_contender(n, short) for n in ("fedavg", "fedavg-local")], log)
    assert len(log.begun) == 3


def test_one_that_fails_is_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "RATES", (1e30, 1.0))
    log, short = Log(), BASE.changed(rounds=2)
    (choice,) = tune(Grid(short, RunOptions(), [1], tmp_path), [parse_contender("separate", short)], log)
    assert log.failed == [("separate lr=2e+28", 1)]
    assert choice.contender.label == "separate lr=0.02"


def test_if_all_fail_the_reason_is_told(tmp_path: Path) -> None:
    wild = BASE.changed(rounds=2, lr=1e30)
    with pytest.raises(RunFailed, match="not finite"):
        tune(Grid(wild, RunOptions(), [1], tmp_path), [parse_contender("separate", wild)], Log())


def test_the_learning_rate_at_an_end_of_those_tried_is_pointed_out(tmp_path: Path) -> None:
    slow = BASE.changed(rounds=2, lr=1e-4)
    (choice,) = tune(Grid(slow, RunOptions(), [1], tmp_path), [parse_contender("separate", slow)], Log())
    assert (choice.contender.changes, choice.edge) == ({"lr": 0.0003}, "largest")


def test_the_command_chooses_and_a_comparison_uses_it_and_says_so(tmp_path: Path) -> None:
    options = [
        "--methods",
        "separate,ditto:lam=0.5",
        "--rounds",
        "3",
        "--clients",
        "3",
        "--set",
        "model=mlp",
        "--set",
        "epochs=1",
        "--set",
        "lr=0.001",
    ]
    tuned = orchard_command("tune", *options, cwd=tmp_path)
    assert tuned.returncode == 0, tuned.stderr
    lines = [line.split() for line in tuned.stdout.splitlines()]
    assert lines[0] == ["chosen", "validation", "accuracy", "candidates"]
    assert lines[1][:2] == ["separate", "lr=0.003"]
    assert lines[2][:2] == ["ditto:lam=0.5", "lr=0.003"]
    assert tuned.stderr.startswith("tuning, stage 1 of 1: 6 runs of 3 rounds\n1/6  separate lr=0.001")
    assert "separate lr=0.003: lr is the largest tried; look further with --set lr=0.003" in tuned.stderr
    compared = orchard_command("compare", *options, "--tuned", "--format", "csv", cwd=tmp_path)
    assert compared.returncode == 0, compared.stderr
    assert [line.split(",")[0] for line in compared.stdout.splitlines()] == [
        "method",
        "separate lr=0.003",
        "ditto:lam=0.5 lr=0.003",
    ]
    assert " s)" not in compared.stderr, "every run was there already"
