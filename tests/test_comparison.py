"""Methods side by side: one table, finished runs reused, three rows from one FedAvg run."""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchard.cli.tables import as_csv, as_latex, as_markdown
from orchard.errors import RunFailed, Stopped, UserError
from orchard.experiment import Experiment, RunOptions, load_experiment
from orchard.methods.apple import Apple
from orchard.runs.comparison import Comparison, Row, Spread, compare
from orchard.runs.folder import RunFolder
from orchard.runs.grid import Contender, Grid, parse_contender
from orchard.runs.result import Result
from orchard.runs.run import resume
from orchard.tasks.classification import Classification
from processes import orchard_command

QUICK = ["epochs=1", "rounds=2", "model=mlp", "batch_size=64"]


class Log:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.runs, self.begun, self.kept = 0, list[tuple[str, int]](), list[tuple[str, int]]()
        self.failed, self.stages = list[tuple[str, int]](), list[str]()

    def plan(self, runs: int, rounds: int, stage: str) -> None:
        self.runs = runs
        self.stages.append(stage)

    def begin(self, label: str, seed: int) -> None:
        self.begun.append((label, seed))

    def end(self, label: str, seed: int, result: Result, kept: Path | None) -> None:
        assert len(result.rounds) == result.experiment.rounds
        if kept:
            self.kept.append((label, seed))

    def fail(self, label: str, seed: int, reason: str) -> None:
        self.failed.append((label, seed))


def quick() -> Experiment:
    return load_experiment(assignments=QUICK)


def quick_grid(root: Path, seeds: Sequence[int] = (1,)) -> Grid:
    return Grid(quick(), RunOptions(), seeds, root)


def quick_compare(methods: str, seeds: list[int], root: Path) -> tuple[Comparison, Log]:
    log = Log()
    contenders = [parse_contender(text, quick()) for text in methods.split(",")]
    return compare(quick_grid(root, seeds), contenders, log), log


def test_finished_runs_are_reused_and_changed_ones_are_not(tmp_path: Path) -> None:
    first, log = quick_compare("separate,apple", [1, 2], tmp_path)
    assert log.begun == [("separate", 1), ("apple", 1), ("separate", 2), ("apple", 2)]
    again, log = quick_compare("separate,apple,apple:mu=0.5", [1, 2], tmp_path)
    assert log.begun == [("apple:mu=0.5", 1), ("apple:mu=0.5", 2)]
    assert len(log.kept) == 4
    for mine, theirs in zip(first.rows, again.rows, strict=False):
        assert mine == theirs
    assert len(list(tmp_path.iterdir())) == 6


def test_methods_share_a_run_if_the_parameters_that_they_share_are_the_same(tmp_path: Path) -> None:
    _, log = quick_compare("fedprox:mu=0.1,fedprox-ft:mu=0.1,fedprox:mu=0.5", [1], tmp_path)
    assert log.begun == [("fedprox-ft:mu=0.1", 1), ("fedprox:mu=0.5", 1)]


@pytest.mark.filterwarnings("ignore:.*lacks rounds; it is run again")
def test_a_failed_damaged_or_different_run_is_not_reused(tmp_path: Path) -> None:
    quick_compare("separate", [1], tmp_path)
    folder = next(tmp_path.iterdir())
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "state": "failed"}))
    assert quick_compare("separate", [1], tmp_path)[1].begun == [("separate", 1)]
    for file in tmp_path.glob("*/environment.json"):  # made by other code
        file.write_text(json.dumps({**json.loads(file.read_text()), "results_version": 0}))
    assert quick_compare("separate", [1], tmp_path)[1].begun == [("separate", 1)]
    for file in tmp_path.glob("*/environment.json"):  # made by a method of somebody's own, of the same name
        file.write_text(json.dumps({**json.loads(file.read_text()), "own_code": "0" * 16}))
    assert quick_compare("separate", [1], tmp_path)[1].begun == [("separate", 1)]
    for file in tmp_path.glob("*/summary.json"):
        file.write_text("{")
    assert quick_compare("separate", [1], tmp_path)[1].begun == [("separate", 1)]
    for file in tmp_path.glob("*/metrics.jsonl"):  # without its last round
        file.write_text(file.read_text().splitlines(keepends=True)[0])
    assert quick_compare("separate", [1], tmp_path)[1].begun == [("separate", 1)]


def test_a_run_that_fails_is_named_and_does_not_keep_the_others_from_running(tmp_path: Path) -> None:
    log = Log()
    contenders = [Contender("wild", Apple(), {"lr": 1e30}), parse_contender("separate", quick())]
    with pytest.raises(RunFailed, match=r"^wild, seed 1: client \d, round 1 .*: the loss or a gradient is not finite"):
        compare(quick_grid(tmp_path), contenders, log)
    assert log.failed == [("wild", 1)]
    assert log.begun == [("wild", 1), ("separate", 1)]
    assert quick_compare("separate", [1], tmp_path)[1].kept == [("separate", 1)]


def test_asked_to_stop_in_a_last_round_the_next_run_does_not_begin(tmp_path: Path) -> None:
    log, rounds = Log(), quick().rounds
    asked = iter([*[False] * (rounds + 1), True, True])  # before the first run, after each exchange, between the runs
    contenders = [parse_contender(name, quick()) for name in ("separate", "apple")]
    with pytest.raises(Stopped, match="stopped at apple, seed 1"):
        compare(quick_grid(tmp_path), contenders, log, asked.__next__)
    assert log.begun == [("separate", 1)]
    assert [RunFolder(path).state() for path in tmp_path.iterdir()] == ["finished"]


def test_what_another_process_is_running_is_not_run_twice(tmp_path: Path) -> None:
    asked = iter([False, False, True])
    with pytest.raises(Stopped, match="stopped at apple, seed 1; what was saved is safe; the same command goes on"):
        compare(quick_grid(tmp_path), [parse_contender("apple", quick())], Log(), asked.__next__)
    (folder,) = tmp_path.iterdir()
    with RunFolder(folder).locked(), pytest.raises(RunFailed, match=r"apple, seed 1: .* is in use by process \d+ on "):
        quick_compare("apple,separate", [1], tmp_path)
    assert quick_compare("apple,separate", [1], tmp_path)[1].kept == [("separate", 1)]


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole = quick_compare("apple", [1], tmp_path / "whole")[0]
    asked = iter([False, False, True])
    with pytest.raises(Stopped):
        compare(quick_grid(tmp_path / "cut"), [parse_contender("apple", quick())], Log(), lambda: next(asked))
    (folder,) = (tmp_path / "cut").iterdir()
    assert not (folder / "summary.json").exists()
    resumed, log = quick_compare("apple", [1], tmp_path / "cut")
    assert (log.begun, log.kept) == ([("apple", 1)], [])
    assert list((tmp_path / "cut").iterdir()) == [folder]
    assert replace(resumed.rows[0], seconds=0) == replace(whole.rows[0], seconds=0)


@pytest.mark.filterwarnings("ignore:.*no checkpoint is whole")
def test_a_run_whose_checkpoints_are_damaged_is_run_anew(tmp_path: Path) -> None:
    for asked in ([False, False, True], [False, True]):  # the second time after the damaged one
        answers = iter(asked)
        with pytest.raises(Stopped):
            compare(quick_grid(tmp_path), [parse_contender("apple", quick())], Log(), answers.__next__)
        for file in tmp_path.glob("digits-dirichlet-apple-seed1/checkpoints/*.safetensors"):
            file.write_bytes(b"")
    quick_compare("apple", [1], tmp_path)
    assert RunFolder(tmp_path / "digits-dirichlet-apple-seed1-2").state() == "finished"
    assert len(list(tmp_path.iterdir())) == 2


def test_an_extended_run_is_not_one_of_that_many_rounds(tmp_path: Path) -> None:
    contender = parse_contender("apple", quick())
    shorter = quick().changed(rounds=quick().rounds - 1)
    compare(replace(quick_grid(tmp_path), base=shorter), [contender], Log())
    (folder,) = tmp_path.iterdir()
    resume(folder, rounds=quick().rounds)
    assert quick_compare("apple", [1], tmp_path)[1].begun == [("apple", 1)]


def test_three_rows_from_one_fedavg_run(tmp_path: Path) -> None:
    together, log = quick_compare("fedavg,fedavg-local,fedavg-ft", [1], tmp_path / "together")
    assert log.begun == [("fedavg-ft", 1)]
    apart = [quick_compare(name, [1], tmp_path / name)[0].rows[0] for name in ("fedavg", "fedavg-local", "fedavg-ft")]
    for one, other in zip(together.rows, apart, strict=True):
        assert (one.label, one.bmcta, one.last, one.clients) == (other.label, other.bmcta, other.last, other.clients)


def test_a_contender_keeps_what_the_experiment_says_of_it() -> None:
    base = load_experiment(assignments=["method=apple", "method.mu=0.7"])
    assert parse_contender("apple", base) == Contender("apple", base.method)
    plain = parse_contender("apple:budget=2", base)
    assert plain == Contender("apple:budget=2", Apple(budget=2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("appel", "method.name = 'appel': unknown method; did you mean 'apple'?"),
        ("apple:mue=1", "method.mue: unknown key of apple; did you mean 'mu'?"),
        ("fedfomo:budget=99", "method.budget = 99: at most clients − 1 = 7 others to download"),
    ],
)
def test_a_bad_contender_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        parse_contender(text, quick())


def test_worse_than_alone_and_spreads_by_hand(tmp_path: Path) -> None:
    comparison, _ = quick_compare("separate,fedavg", [1, 2], tmp_path)
    alone, fedavg = comparison.rows
    assert comparison.alone is alone
    assert alone.worse_than_alone == 0
    summaries = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*/summary.json"))]
    by_name = {(s["method"], s["seed"]): s for s in summaries}
    worse = []
    for seed in (1, 2):
        mine = by_name["fedavg", seed]["figures"]["after_aggregation"]["clients"]
        theirs = by_name["separate", seed]["figures"]["after_training"]["clients"]
        worse.append(sum(a < b for a, b in zip(mine, theirs, strict=True)))
    assert fedavg.worse_than_alone == sum(worse) / 2
    a, b = (by_name["fedavg", seed]["bmcta"] for seed in (1, 2))
    assert fedavg.bmcta.mean == pytest.approx((a + b) / 2)
    assert fedavg.bmcta.deviation == pytest.approx(abs(a - b) / 2**0.5)
    assert fedavg.bytes_down == 4 * by_name["fedavg", 1]["parameters"]


ROWS = [
    Row(
        "sep_arate", Spread(0.5, None), Spread(0.4, None), Spread(0.45, None), Spread(0.1, None), None, 0, 0, 3.2, [0.5]
    ),
    Row("b", Spread(0.75, 0.012), Spread(0.7, 0.0), Spread(0.7, 0.0), Spread(0.6, 0.1), 1.5, 2e6, 4e6, 65, [0.75]),
]
COMPARISON = Comparison(ROWS, ["a", "b"], None, Classification.measures["accuracy"])


def test_markdown() -> None:
    lines = as_markdown(COMPARISON).splitlines()
    assert lines[2] == "| sep_arate | 50.00 | 40.00 | 45.00 | 10.00 | – | 0.00 | 0.00 | 3 |"
    assert lines[3].startswith("| b | 75.00 ± 1.20 | 70.00 ± 0.00 | 70.00 ± 0.00 | 60.00 ± 10.00 | 1.5 of 1 | 2.00")


def test_csv_has_full_precision() -> None:
    first, second = csv.DictReader(io.StringIO(as_csv(COMPARISON)))
    assert (first["bmcta"], first["bmcta_sd"], first["worse_than_alone"]) == ("0.5", "", "")
    assert (second["bmcta"], second["bmcta_sd"], second["bytes_down"]) == ("0.75", "0.012", "4000000.0")


def test_latex_is_escaped_and_marks_the_best() -> None:
    text = as_latex(COMPARISON)
    assert r"sep\_arate & 50.00 & " in text
    assert r"b & \textbf{75.00 $\pm$ 1.20} & " in text
    assert text.startswith(r"\begin{tabular}{lrrrrrrrr}")


def test_the_command(tmp_path: Path) -> None:
    options = [word for setting in QUICK for word in ("--set", setting)]
    first = orchard_command("compare", "--methods", "separate,fedavg-local,apple", *options, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert [line.split()[0] for line in first.stderr.splitlines()] == [
        "orchard:",
        "1/3",
        "2/3",
        "3/3",
        "kept",
    ]  # advice once
    for words in ("method", "BMCTA", "worse than alone", "gains over training alone", "client 7"):
        assert words in first.stdout
    again = orchard_command("compare", "--methods", "separate", "--format", "csv", *options, cwd=tmp_path)
    assert "kept in runs/digits-dirichlet-separate-seed42" in again.stderr
    assert next(csv.DictReader(io.StringIO(again.stdout)))["method"] == "separate"


def test_a_loss_that_does_not_move_is_said_once_for_each_method(tmp_path: Path) -> None:
    still = [word for setting in (*QUICK, "rounds=5", "lr=1e-9") for word in ("--set", setting)]
    arguments = ["compare", "--methods", "separate,fedavg", *still]
    both = orchard_command(*arguments, "--seeds", "0,1", cwd=tmp_path).stderr.splitlines()
    assert [line.split(":")[1] for line in both if "the training loss has not moved" in line] == [
        " separate",
        " fedavg",
    ]
    again = orchard_command(*arguments, "--seeds", "1", cwd=tmp_path).stderr  # of runs that are reused
    assert again.count("try a larger learning rate (lr = 1e-09)") == 2
    assert "has not moved" not in orchard_command(*arguments, "--seeds", "1", "--quiet", cwd=tmp_path).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "fedavgg"], "did you mean 'fedavg'?"),
        (["--methods", ","], "--methods: names nothing"),
        (["--seeds", "1,x"], "--seeds: 'x' is not a whole number from 0"),
    ],
)
def test_bad_options_are_refused(tmp_path: Path, arguments: list[str], message: str) -> None:
    refused = orchard_command("compare", *arguments, cwd=tmp_path)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert not list(tmp_path.iterdir())


def test_a_method_from_another_package(tmp_path: Path) -> None:
    """The example package is built, installed and run by its name, like anybody's would be."""
    package = Path(__file__).parent.parent / "examples" / "orchard-halfway"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(tmp_path / "site"), str(package)], check=True, capture_output=True)
    environment = {"PYTHONPATH": str(tmp_path / "site")}
    listed = orchard_command("methods", cwd=tmp_path, environment=environment)
    assert "halfway" in listed.stdout
    options = [word for setting in QUICK for word in ("--set", setting)]
    run = orchard_command(
        "run", "--method", "halfway", "--set", "method.keep=0.25", *options, cwd=tmp_path, environment=environment
    )
    assert run.returncode == 0, run.stderr
    assert "BMCTA" in run.stdout
    refused = orchard_command(
        "run", "--set", "method.name=halfway", "--set", "method.keep=2.0", cwd=tmp_path, environment=environment
    )
    assert refused.returncode == 2
    assert "method.keep = 2.0: input should be less than or equal to 1" in refused.stderr


def test_who_learns_from_whom_is_shown_group_by_group(tmp_path: Path) -> None:
    words = ["--partition", "iid", "--set", "shift=labels", "--clients", "4", "--methods", "fedavg,graft"]
    words += [word for setting in QUICK for word in ("--set", setting)]
    said = orchard_command("compare", *words, "--out", str(tmp_path), cwd=tmp_path).stdout
    head, *rows = said[said.index("Who learns from whom with graft") :].splitlines()[1:6]
    groups = [row.split("group ")[1].split()[0] for row in rows]
    assert groups == ["0", "0", "1", "1"]
    for row in rows:
        number = row.removeprefix("client ").split(",")[0]
        assert number in head.split()
        shares = [0 if cell == "·" else int(cell) for cell in row.split()[4:]]
        assert sum(shares) == pytest.approx(100, abs=2)
        assert max(shares) == shares[head.split().index(number)]  # itself
