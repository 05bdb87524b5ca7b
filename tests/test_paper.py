"""The paper's numbers, its protocol, and a table of it re-measured."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from helpers import ROOT
from orchard.data.catalogue import CATALOGUE
from orchard.errors import Stopped
from orchard.experiment import Experiment, RunOptions
from orchard.method import Moment
from orchard.methods import method_settings
from orchard.methods.apple import Apple
from orchard.paper import tuning
from orchard.paper.document import document, write
from orchard.paper.protocol import (
    ROWS,
    WITHOUT_PENALTY,
    apple_parameters,
    base_experiment,
    contenders,
    published,
    row_labels,
)
from orchard.paper.reproduce import Cell, Reproduction, Run, Task, reproduce
from orchard.paper.tuning import tuned, with_parameters, with_rates
from orchard.paper.wording import claims, course_rows, table_rows
from orchard.report.views import Relationships
from orchard.runs.folder import RunFolder
from orchard.runs.grid import Contender, Grid
from processes import orchard_command
from test_comparison import Log
from test_image_folders import write_images

DATASETS = ("mnist", "cifar10", "organamnist", "pathmnist")
SPLITS = ("pathological", "practical")


@pytest.mark.parametrize("partition", SPLITS)
@pytest.mark.parametrize("dataset", DATASETS)
def test_published_tables_are_whole_and_agree_with_each_other(dataset: str, partition: str) -> None:
    first, second = (published(table, dataset, partition) for table in ("table1", "table2"))
    assert tuple(first) == (*ROWS, WITHOUT_PENALTY, "apple")
    assert len(second) == 10
    # Table 2 is about μ = 0, and M = 11 is no limit: the two tables share these cells.
    assert second["fedfomo-11"] == first["fedfomo"]
    assert second["apple-11"] == first[WITHOUT_PENALTY]


def test_some_published_values() -> None:
    assert published("table1", "mnist", "practical")["separate"] == pytest.approx(0.7820)
    assert published("table1", "pathmnist", "pathological")["apple"] == pytest.approx(0.9751)
    assert published("table2", "organamnist", "practical")["fedfomo-1"] == pytest.approx(0.7837)
    assert published("table1", "bloodmnist", "practical") == {}


def test_the_papers_parameters_and_who_borrows_them() -> None:
    assert Apple(**apple_parameters("cifar10", "pathological")) == Apple(
        relationship_lr=1e-3, scheduler="exp", mu=0.001, scheduler_fraction=0.2
    )
    assert Apple(**apple_parameters("mnist", "practical")) == Apple()
    assert apple_parameters("bloodmnist", "practical") == apple_parameters("pathmnist", "practical")
    assert apple_parameters("tissuemnist", "practical") == apple_parameters("organamnist", "practical")
    assert apple_parameters("digits", "pathological") == apple_parameters("mnist", "pathological")


def test_a_folder_may_be_a_copy_of_a_dataset_of_the_papers(tmp_path: Path) -> None:
    copy = tmp_path / "cifar10-jpeg"
    for part, label in product(("train", "test"), ("cat", "dog")):
        write_images(copy / part / label, 3, "RGB")
    grid, rows = Task("table1", str(copy), "practical", "paper", [42], tmp_path, copy_of="cifar10").grid()
    assert (grid.base.size, grid.base.model, grid.base.batch_size) == (28, "cnn", 256)
    assert rows[-2].settings == Apple(**apple_parameters("cifar10", "practical"))
    found = replace(made({"apple": 0.5}), dataset="cifar10-jpeg", copy_of="cifar10")
    assert found.command.startswith("orchard reproduce table1 --dataset cifar10-jpeg --copy-of cifar10 --partition")
    found.write(tmp_path)
    assert "## cifar10-jpeg (a copy of cifar10), practical: Table 1\n" in document(tmp_path)


def test_the_full_protocol_is_the_papers() -> None:
    base = base_experiment("mnist", "practical", "paper")
    assert (base.clients, base.rounds, base.epochs, base.batch_size, base.lr) == (12, 160, 5, 256, 0.01)
    assert (base.lr_decay, base.fraction, base.model, base.partition.seed) == (1.0, 1.0, "cnn", 42)
    desk = base_experiment("mnist", "practical", "desk")
    assert desk == base.model_copy(update={"rounds": 100, "fraction": 0.2})


def test_table_2_limits_downloads() -> None:
    rows = contenders("table2", base_experiment("mnist", "practical", "paper"))
    budgets = {row.label: row.settings.model_dump()["budget"] for row in rows}
    assert budgets["apple-11"] is None
    assert budgets["fedfomo-7"] == 7
    assert all(row.settings.model_dump().get("mu", 0) == 0 for row in rows)
    assert set(budgets) == set(published("table2", "mnist", "practical"))


def made(values: dict[str, float], table: str = "table1", **other: object) -> Reproduction:
    cells = [
        Cell(label, 0.9, {}, [Run(seed, value + change, 0.4, 0.45, 60, [0.2, 0.4]) for seed, change in SPREAD.items()])
        for label, value in values.items()
    ]
    shared = {"clients": 12, "rounds": 100, "epochs": 5, "fraction": 0.2}
    about = {"torch": ["2"], "cpu": ["a processor"], "cores": [2], "code": ["abc", "def"], "git_commit": ["123"]}
    whole = Reproduction(table, "mnist", "practical", "desk", False, [1, 2], cells, shared, about)  # type: ignore[arg-type]
    return replace(whole, **other)  # type: ignore[arg-type]


SPREAD = {1: -0.01, 2: 0.01}


def unpublished(found: Reproduction) -> Reproduction:
    return replace(found, cells=[replace(cell, published=None) for cell in found.cells])


def test_claims_by_hand() -> None:
    values = {"separate": 0.5, "fedavg": 0.7, "apfl": 0.65, "fedfomo": 0.9, WITHOUT_PENALTY: 0.93, "apple": 0.91}
    assert claims(unpublished(made(values))) == [
        "APPLE first? Yes: apple (μ = 0) is +3.00 points from the best other, fedfomo.",
        "Every personalised method above FedAvg? No, not apfl.",
    ]
    limited = {"apple-11": 0.95, "fedfomo-11": 0.9, "apple-1": 0.93, "fedfomo-1": 0.94}
    assert claims(made(limited, "table2")) == [
        "APPLE with M = 1 instead of M = 11: -2.00 points. Published: +0.00 points.",
        "FedFomo with M = 1 instead of M = 11: +4.00 points. Published: +0.00 points.",
        "APPLE above FedFomo at every budget? No, not at M = 1. Published: No, not at M = 11, 1.",
    ]


def test_claims_are_about_the_papers_methods() -> None:
    values = {"separate": 0.5, "fedavg": 0.7, "fedfomo": 0.9, WITHOUT_PENALTY: 0.93, "apple": 0.91}
    with_own = made({**values, "graft": 0.99})
    with_own = replace(with_own, cells=[*with_own.cells[:-1], replace(with_own.cells[-1], published=None)])
    assert claims(with_own) == claims(made(values))


def test_the_papers_claims_hold_in_the_papers_numbers() -> None:
    """All but one, as the table itself has it: FedFomo is below FedAvg on OrganMNIST, practical."""
    for dataset, partition in product(DATASETS, SPLITS):
        first, above = claims(unpublished(made(published("table1", dataset, partition))))
        assert first.startswith("APPLE first? Yes: apple")
        exception = (dataset, partition) == ("organamnist", "practical")
        assert above.endswith("above FedAvg? No, not fedfomo." if exception else "above FedAvg? Yes.")


def test_a_table_is_kept_read_back_and_written_down(tmp_path: Path) -> None:
    found = made({"separate": 0.5, "fedavg": 0.7, WITHOUT_PENALTY: 0.93, "apple": 0.91})
    assert table_rows(found)[1] == ["separate", "90.00", "50.00 ± 1.41", "-40.00", "40.00 ± 0.00", "45.00 ± 0.00"]
    kept = found.write(tmp_path)
    assert Reproduction.read(kept) == found
    (tmp_path / "introduction.md").write_text("# Results\n")
    (tmp_path / f"{found.name}.md").write_text("It is so because of this.\n")
    text = document(tmp_path)
    assert text.startswith("# Results\n\n## mnist, practical: Table 1\n")
    assert "; code abc and def, commit 123.\n" in text
    assert "    orchard reproduce table1 --dataset mnist --partition practical --scale desk --seeds 1,2 " in text
    assert text.endswith("It is so because of this.\n")
    since = {name: values for name, values in found.environment.items() if name != "code"}
    replace(found, environment={**since, "results_version": [1]}).write(tmp_path / "since")
    assert "; results version 1, commit 123.\n" in document(tmp_path / "since")


def test_a_table_grows_row_by_row_and_seed_by_seed(tmp_path: Path) -> None:
    first = made({"separate": 0.5})
    first.write(tmp_path)
    assert "Not measured yet: fedavg, fedavg-local, " in document(tmp_path)
    assert "APPLE first?" not in document(tmp_path)
    since = [replace(run, results_version=1) for run in made({"apple": 0.9}).cells[0].runs]
    later = made({"apple": 0.9})
    later = replace(
        later, cells=[replace(later.cells[0], runs=since)], environment={"code": [], "results_version": [1]}
    )
    found = Reproduction.read(later.write(tmp_path))
    assert [cell.label for cell in found.cells] == ["separate", "apple"], "in the order of the paper's table"
    assert found.environment["code"] == ["abc", "def"]
    assert found.environment["results_version"] == [1]
    assert "By an older version of the code: separate." in document(tmp_path)
    again = replace(
        first, cells=[replace(first.cells[0], runs=[Run(2, 0.7, 0.6, 0.6, 60, [0.7]), Run(3, 0, 0, 0, 1, [0])])]
    )
    found = Reproduction.read(again.write(tmp_path))
    assert [(run.seed, run.bmcta) for run in found.cells[0].runs] == [(1, 0.49), (2, 0.7), (3, 0.0)]
    papers = made(dict.fromkeys((*ROWS, WITHOUT_PENALTY, "apple"), 0.5))
    papers.write(tmp_path)
    assert "Not measured yet: graft." in document(tmp_path)
    assert "APPLE first?" in document(tmp_path)
    made(dict.fromkeys(row_labels("table1", 12), 0.5)).write(tmp_path)
    assert "Not measured yet" not in document(tmp_path)


def test_the_rows_of_a_table_are_those_that_are_run() -> None:
    for dataset in ("mnist", "digits"):
        base = base_experiment(dataset, "practical", "desk")
        for table in ("table1", "table2"):
            assert row_labels(table, base.clients) == [row.label for row in contenders(table, base)]


def test_the_course_of_a_table_by_hand() -> None:
    found = made({"separate": 0.5, "fedavg": 0.7})
    assert course_rows(found) == [["after rounds", "1", "2"], ["separate", "20.0", "40.0"], ["fedavg", "20.0", "40.0"]]
    curve = [number / 200 for number in range(1, 101)]
    longer = [replace(cell, runs=[replace(run, curve=curve) for run in cell.runs]) for cell in found.cells]
    assert course_rows(replace(found, cells=longer))[0][1:] == ["1", "5", "10", "20", "40", "60", "80", "100"]
    assert course_rows(replace(found, cells=longer))[1][-2:] == ["40.0", "50.0"]


def test_a_tuned_table_says_so_and_what_was_chosen(tmp_path: Path) -> None:
    plain = made({"separate": 0.5, "fedavg": 0.7, WITHOUT_PENALTY: 0.93, "apple": 0.91})
    chosen = {"name": "apple", "lr": 0.001, "lr_decay": 0.9, "mu": 0.1, "scheduler": "exp", "scheduler_fraction": 0.2}
    free = {"name": "apple", "mu": 0.0, "lr": 0.01, "lr_decay": 1.0}
    by_label = {"apple": chosen, WITHOUT_PENALTY: free}
    other = {"name": "separate", "lr": 0.01, "lr_decay": 1.0}
    cells = [replace(cell, parameters=by_label.get(cell.label, other)) for cell in plain.cells]
    found = replace(plain, cells=cells, tuned=True)
    assert table_rows(found)[-1][-1] == "lr=0.001 lr_decay=0.9 mu=0.1 scheduler=exp scheduler_fraction=0.2"
    assert table_rows(found)[-2][-1] == "lr=0.01 lr_decay=1.0"
    assert found.write(tmp_path) != plain.write(tmp_path)
    assert "## mnist, practical: Table 1, tuned\n" in document(tmp_path)
    assert "--seeds 1,2 --tune --results results\n" in document(tmp_path)


def test_the_document_is_what_was_measured(tmp_path: Path) -> None:
    write(ROOT / "results", tmp_path / "results.md")
    assert (ROOT / "docs/results.md").read_text() == (tmp_path / "results.md").read_text()
    drawn, kept = (
        {file.name: words(file) for file in (home / "figures").iterdir()} for home in (tmp_path, ROOT / "docs")
    )
    assert drawn == kept
    assert {"mean client test accuracy", "fedavg-ft", "apple"} <= set(drawn["table1-mnist-practical-desk.svg"])


def words(svg: Path) -> list[str]:
    """Return a figure's texts; its numbers may differ in their last digits from machine to machine."""
    return re.findall(r">([^<>\n]+)</text>", svg.read_text("utf-8"))


def test_the_papers_figures_show_what_runs_have_kept(tmp_path: Path) -> None:
    found = made({"separate": 0.5, "fedavg-local": 0.6, "apple": 0.9})
    found.write(tmp_path)
    write(tmp_path, tmp_path / "older.md")
    (file,) = (tmp_path / "figures").iterdir()
    older = words(file)
    assert {"separate", "apple", "mean client test accuracy"} <= set(older)
    assert not {"fedavg-local", "training loss"} & set(older)
    related = Relationships([0, 2], [[[0.5, 0.5], [0.5, 0.5]], [[0.7, 0.3], [0.2, 0.8]]])
    cells = [
        replace(
            cell,
            runs=[replace(run, loss=[2.0, 1.0], clients=[0.8, None], relationships=related) for run in cell.runs],
        )
        for cell in found.cells
    ]
    newer = replace(found, cells=cells, shared={**found.shared, "clients": 2})
    newer.write(tmp_path)
    assert Reproduction.read(tmp_path / f"{found.name}.json").relationships == related
    write(tmp_path, tmp_path / "newer.md")
    assert {"training loss", "test accuracy, best round"} <= set(words(file))
    assert {"self-relationships", "of client 0", "of client 1"} <= set(
        words(tmp_path / f"figures/{found.name}-relationships.svg")
    )
    assert f"(figures/{found.name}-relationships.svg)" in (tmp_path / "newer.md").read_text()


def plain(name: str) -> Contender:
    return Contender(name, method_settings(name).model_validate({"name": name}))


def test_the_grids_that_tuning_searches() -> None:
    apple = Contender("apple", Apple())
    assert len({(row.changes["lr"], row.changes["lr_decay"]) for row in with_rates(apple)}) == 9
    assert len({row.settings.model_dump_json() for row in [apple, *with_parameters(apple)]}) == 18
    assert len(with_parameters(apple)) == 17, "what it has is one of the grid"
    assert len(with_parameters(Contender("apple", Apple(mu=0.001)))) == 18, "or not"
    assert with_parameters(Contender("apple (μ = 0)", Apple(mu=0))) == [], "nothing to choose"
    assert [row.settings.model_dump()["mu"] for row in with_parameters(plain("fedprox-ft"))] == [1.0, 0.1, 0.001]


def test_tuning_takes_what_validation_prefers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the figures of the runs themselves, of which one gives both rows."""
    rates = (0.1, 0.05, 0.02)
    monkeypatch.setattr(tuning, "RATES", {"lr": rates, "lr_decay": (1.0,)})
    base = Experiment(rounds=3, epochs=2, clients=4, model="mlp", batch_size=32)
    log = Log()
    chosen = tuned(Grid(base, RunOptions(), [1], tmp_path), [plain("fedavg"), plain("fedavg-local")], log, None)
    assert len(log.begun) == 3
    runs = {run.experiment.lr: run for run in (RunFolder(path).result() for path in tmp_path.iterdir())}
    moments: tuple[Moment, ...] = ("after_aggregation", "after_training")
    by_test = []
    for row, moment in zip(chosen, moments, strict=True):
        figures = {lr: runs[lr].figures(moment) for lr in rates}
        assert row.changes == {"lr": max(rates, key=lambda lr: figures[lr].validation), "lr_decay": 1.0}
        by_test.append(max(rates, key=lambda lr: figures[lr].best.score))
    assert by_test != [row.changes["lr"] for row in chosen], "else nobody would notice if the test data chose"


def test_tuning_goes_on_with_a_methods_own_parameters_and_who_fails_loses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "RATES", {"lr": (1e30, 0.05), "lr_decay": (1.0,)})
    monkeypatch.setattr(tuning, "PARAMETERS", {"apple": {"mu": (0.5, 300.0)}})
    base = Experiment(rounds=4, epochs=4, clients=4, model="mlp", batch_size=32)
    start = Contender("apple", Apple(relationship_lr=0.01, mu=0.1, scheduler_fraction=1.0))
    log = Log()
    (chosen,) = tuned(Grid(base, RunOptions(), [1], tmp_path), [start], log, None)
    assert log.failed == [("apple lr=1e+30 lr_decay=1.0", 1)]
    assert chosen.changes == {"lr": 0.05, "lr_decay": 1.0}
    runs = [RunFolder(path) for path in tmp_path.iterdir()]
    tried = {run.experiment().method: run.result().figures().validation for run in runs if run.state() == "finished"}
    assert len(tried) == 3
    assert chosen.settings == max(tried, key=lambda settings: tried[settings])


@pytest.mark.parametrize("dataset", [name for name, entry in CATALOGUE.items() if not entry.files])
def test_a_smoke_test_of_table_1(dataset: str, tmp_path: Path) -> None:
    options = ["--dataset", dataset, "--scale", "smoke", "--results", "results"]
    done = orchard_command("reproduce", "table1", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[2:10]] == list(ROWS)
    assert "APPLE first? " in done.stdout
    (kept,) = (tmp_path / "results").iterdir()
    found = Reproduction.read(kept)
    runs = [RunFolder(folder) for folder in (tmp_path / "runs/paper").iterdir()]
    by_method = {run.experiment().method.name: run for run in runs}
    moments: dict[str, Moment] = {
        "fedavg": "after_aggregation",
        "fedavg-ft": "after_finetuning",
        "separate": "after_training",
    }
    for label, moment in moments.items():
        (run,) = next(cell.runs for cell in found.cells if cell.label == label)
        result = by_method["fedavg-ft" if label == "fedavg" else label].result()
        figures = result.figures(moment)
        assert run.bmcta == figures.best.score == pytest.approx(max(run.curve), abs=1e-5)
        assert run.last == figures.last.score == pytest.approx(run.curve[-1], abs=1e-5)
        assert run.validation_selected == figures.validation_selected.score
        assert len(run.curve) == len(result.rounds)
    assert found.environment["torch"] == [runs[0].read("environment.json")["torch"]]
    again = orchard_command("reproduce", "figures", *options, cwd=tmp_path)
    assert again.stdout.startswith(done.stdout)
    assert again.stderr.count("kept in runs/paper/") == 9
    drawn = {file.name for file in (tmp_path / f"figures/table1-{dataset}-practical-smoke").iterdir()}
    assert {"convergence.pdf", "clients.pdf", "relationships-apple.pdf", "data.pdf"} <= drawn
    some = orchard_command("reproduce", "table1", *options[:4], "--rows", f"{WITHOUT_PENALTY},fedavg", cwd=tmp_path)
    lines = {line.split("  ")[0]: line.split() for line in done.stdout.splitlines()}
    rows = [lines[label] for label in ("fedavg", WITHOUT_PENALTY)]
    assert [line.split() for line in some.stdout.splitlines()[2:]] == rows, "a row gives alone what it gives there"


@pytest.mark.slow
def test_table_2_with_several_seeds_can_be_stopped_and_repeated(tmp_path: Path) -> None:
    """Stopped in its third run; of four digits' clients three others can be downloaded."""
    task = Task("table2", "digits", "practical", "smoke", [1, 2], tmp_path)
    log, asked = Log(), iter(range(100))
    with pytest.raises(Stopped, match="stopped at fedfomo-2, seed 1; what was saved is safe; the same command goes on"):
        reproduce(task, log, lambda: next(asked) > 14)
    assert [label for label, _ in log.begun] == ["fedfomo-3", "apple-3", "fedfomo-2"]
    found, folders = reproduce(task, Log())
    assert [cell.label for cell in found.cells] == [f"{name}-{m}" for m in (3, 2, 1) for name in ("fedfomo", "apple")]
    assert len(folders) == 12
    assert found.name == "table2-digits-practical-smoke-seeds-1-2"
    best = [run.bmcta for run in found.cells[1].runs]
    assert found.cells[1].bmcta.mean == sum(best) / 2
    assert found.cells[1].bmcta.deviation == pytest.approx(abs(best[0] - best[1]) / 2**0.5)
    assert not any("Published" in claim for claim in claims(found))


def test_what_cannot_be_done_is_refused_before_anything_is_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for options, message in (
        (["--dataset", "mnits"], "dataset = 'mnits': unknown; did you mean 'mnist'?"),
        (["--dataset", "./file"], "dataset = './file': unknown"),
        (["--dataset", "digits", "--results", "file"], "--results file: cannot be written: File exists"),
        (
            ["--dataset", ".", "--copy-of", "cifar"],
            "--copy-of: the paper does not use 'cifar'; did you mean 'cifar10'?",
        ),
        (["--dataset", "digits", "--copy-of", "mnist"], "--copy-of: is for a folder of images; 'digits' is a dataset"),
        (["--dataset", "digits", "--rows", "aple"], "--rows: table1 has no 'aple'; did you mean 'apple'?"),
    ):
        refused = orchard_command("reproduce", "table1", "--scale", "smoke", *options, cwd=tmp_path)
        assert (refused.returncode, message in refused.stderr) == (2, True), refused.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["file"]
