"""The paper's numbers, its protocol, and a table of it re-measured."""

from dataclasses import replace
from pathlib import Path

import pytest

from helpers import ROOT
from orchard.catalogue import CATALOGUE
from orchard.comparison import Contender, Spread
from orchard.experiment import Experiment
from orchard.methods.apple import Apple
from orchard.paper.document import document
from orchard.paper.protocol import ROWS, WITHOUT_PENALTY, apple_parameters, base_experiment, contenders, published
from orchard.paper.reproduce import Cell, Reproduction, claims, table_rows
from orchard.paper.tuning import tuned
from processes import orchard_command
from test_comparison import Log

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


def made(values: dict[str, float], table: str = "table1") -> Reproduction:
    spreads = {label: Spread(value, 0.01) for label, value in values.items()}
    cells = [Cell(label, 0.9, spread, spread, spread, {}) for label, spread in spreads.items()]
    shared = {"clients": 12, "rounds": 100, "epochs": 5, "fraction": 0.2}
    about = {"torch": "2", "cpu": "a processor", "cores": 2, "code": "abc"}
    return Reproduction(table, "mnist", "practical", "desk", [1, 2], cells, shared, about)  # type: ignore[arg-type]


def test_claims_by_hand() -> None:
    values = {"separate": 0.5, "fedavg": 0.7, "apfl": 0.65, "fedfomo": 0.9, WITHOUT_PENALTY: 0.93, "apple": 0.91}
    assert claims(made(values)) == [
        "APPLE first? Yes: +3.00 points to the best other, fedfomo.",
        "Every personalised method above FedAvg? No; not so: apfl.",
    ]
    limited = {"apple-11": 0.95, "fedfomo-11": 0.9, "apple-1": 0.93, "fedfomo-1": 0.94}
    assert claims(made(limited, "table2")) == [
        "apple: M = 1 is -2.00 points from M = 11.",
        "fedfomo: M = 1 is +4.00 points from M = 11.",
        "APPLE above FedFomo at every budget? No; not at M = 1.",
    ]


def test_a_table_is_kept_read_back_and_written_down(tmp_path: Path) -> None:
    found = made({"separate": 0.5, "fedavg": 0.7, WITHOUT_PENALTY: 0.93, "apple": 0.91})
    assert table_rows(found)[1] == ["separate", "90.00", "50.00 ± 1.00", "-40.00", "50.00 ± 1.00", "50.00 ± 1.00"]
    kept = found.write(tmp_path)
    assert Reproduction.read(kept) == found
    (tmp_path / "introduction.md").write_text("# Results\n")
    (tmp_path / f"{found.name}.md").write_text("It is so because of this.\n")
    text = document(tmp_path)
    assert text.startswith("# Results\n\n## mnist, practical: Table 1\n")
    assert "    orchard reproduce table1 --dataset mnist --partition practical --scale desk --seeds 1,2\n" in text
    assert text.endswith("It is so because of this.\n")


@pytest.mark.skipif(not (ROOT / "docs/results.md").exists(), reason="nothing has been measured yet")
def test_the_document_is_what_was_measured() -> None:
    assert (ROOT / "docs/results.md").read_text() == document(ROOT / "results")


@pytest.mark.slow
def test_tuning_takes_what_validation_prefers(tmp_path: Path) -> None:
    """Of nine pairs of learning rate and decay; the smaller rates learn nothing in one round."""
    base = Experiment(rounds=1, epochs=1, clients=2, model="mlp")
    log = Log()
    (row,) = tuned(base, [Contender("apple", Apple())], 1, tmp_path, log, None)
    assert len(log.begun) == 9 + 18 - 1, "the winner of the first grid is one of the second"
    assert row.label == "apple"
    assert row.changes["lr"] == 0.01
    assert isinstance(row.settings, Apple)
    assert row.settings.mu in (1.0, 0.1, 0.01)
    again = Log()
    assert tuned(base, [replace(row, changes={})], 1, tmp_path, again, None)[0].changes == row.changes


@pytest.mark.parametrize("dataset", [name for name, entry in CATALOGUE.items() if not entry.files])
def test_a_smoke_test_of_table_1(dataset: str, tmp_path: Path) -> None:
    options = ["--dataset", dataset, "--scale", "smoke", "--results", "results"]
    done = orchard_command("reproduce", "table1", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[2:10]] == list(ROWS)
    assert "APPLE first? " in done.stdout
    (kept,) = (tmp_path / "results").iterdir()
    assert len(Reproduction.read(kept).cells) == 10
    again = orchard_command("reproduce", "figures", *options, cwd=tmp_path)
    assert again.stdout.startswith(done.stdout)
    assert again.stderr.count("kept in runs/paper/") == 8
    drawn = {file.name for file in (tmp_path / f"figures/table1-{dataset}-practical-smoke").iterdir()}
    assert {"convergence.pdf", "clients.pdf", "relationships-apple.pdf", "data.pdf"} <= drawn
