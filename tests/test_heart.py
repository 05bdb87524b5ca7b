"""Heart disease at four hospitals: files in the official format, and the real ones where they are there."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import orchard
from helpers import REAL_DATA
from orchard.data.clients import ClientData
from orchard.data.division import federated_data, standardised
from orchard.data.heart import COLUMNS, read_heart_disease
from orchard.data.samples import Samples
from orchard.data.tables.encoding import FeatureColumn, Schema
from orchard.experiment import Experiment, load_experiment
from orchard.export.export import export_model
from processes import orchard_command

NAMES = ("cleveland", "hungarian", "switzerland", "va")
real = pytest.mark.skipif(not (REAL_DATA / "heart-disease").exists(), reason="the real data are not here")

#           age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal num
COMPLETE = "63.0,1.0,4.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0"
LACKING = "28,0,1,130,0,0,1,185,0,0,?,?,?,3"
EMPTY = "35,1,2,?,?,?,?,?,?,?,?,?,?,1"


def four_files(folder: Path, lines: tuple[str, ...] = (COMPLETE, LACKING, EMPTY)) -> list[Path]:
    paths = [folder / f"processed.{name}.data" for name in NAMES]
    for path in paths:
        path.write_text("\n".join(lines) + "\n", "ascii")
    return paths


def test_every_patient_with_what_is_missing_marked(tmp_path: Path) -> None:
    data = read_heart_disease(four_files(tmp_path), "all")
    rows = torch.cat([data.train.x, data.test.x])
    # 9 numbers and 3 + 2 + 2 + 2 columns of levels; all but age, sex and cp are missing somewhere
    assert rows.shape == (12, 18 + 10)
    empty = rows[rows[:, 0] == 35][0]
    assert empty[:5].tolist() == [35, 1, 1, 0, 0]
    assert empty[5:18].isnan().all()
    assert empty[18:].tolist() == [1] * 10
    lacking = rows[rows[:, 0] == 28][0]
    assert lacking[6].isnan()  # a cholesterol of 0
    assert lacking[8:10].tolist() == [1, 0]  # restecg 1, of the levels 1 and 2
    assert lacking[18:].tolist() == [0, 1, 0, 0, 0, 0, 0, 1, 1, 1]
    labels = torch.cat([data.train.y, data.test.y])
    assert labels.tolist().count(1) == 8


def test_complete_rows_without_three_columns(tmp_path: Path) -> None:
    data = read_heart_disease(four_files(tmp_path, (COMPLETE, COMPLETE, COMPLETE, LACKING, EMPTY)), "complete")
    rows = torch.cat([data.train.x, data.test.x])
    assert rows.shape == (16, 13)
    assert not rows.isnan().any()
    assert rows[rows[:, 0] == 28][:, 6].tolist() == [0] * 4  # here a cholesterol of 0 is a value
    assert len(data.test.y) == 4  # one healthy patient of three in each hospital; the only ill one is for training


def test_a_client_standardises_by_its_own_training_part() -> None:
    nan = float("nan")
    train = Samples(torch.tensor([[1.0, 5.0, nan], [3.0, 5.0, nan], [nan, 5.0, nan]]), torch.tensor([0, 1, 0]))
    test = Samples(torch.tensor([[4.0, 7.0, 9.0]]), torch.tensor([1]))
    columns = tuple(FeatureColumn(name=name, marks_missing=False) for name in "abc")
    schema = Schema(columns=columns, targets=("y",))
    (client,) = standardised([ClientData("north", train, train, test)], schema, shared=False)
    assert client.train.x.tolist() == [[-1, 0, 0], [1, 0, 0], [0, 0, 0]]
    assert client.test.x.tolist() == [[2, 2, 9]]  # a column that does not vary, or is empty, is not scaled


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("63,1,1", r"processed\.hungarian\.data: line 2 has 3 values, not 14"),
        (COMPLETE.replace("145.0", "high"), r"line 2: holds something that is neither a number nor '\?'"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, line: str, message: str) -> None:
    paths = four_files(tmp_path)
    paths[1].write_text(f"{COMPLETE}\n{line}\n", "ascii")
    with pytest.raises(orchard.UserError, match=message):
        read_heart_disease(paths, "all")


def test_hospitals_are_of_heart_disease_alone() -> None:
    message = "'hospitals': only 'heart-disease' and 'heart-disease-complete' come by hospitals, not digits"
    with pytest.raises(orchard.UserError, match=message):
        federated_data(load_experiment(overrides={"dataset": "digits", "partition": "hospitals"}))


def hospitals(folder: Path) -> Path:
    """Four hospitals with some patients of each kind, as UCI writes them; return the folder of their files."""
    draw = np.random.default_rng(0)
    home = folder / "heart-disease"
    home.mkdir()
    for name in NAMES:
        lines = []
        for row in range(24):
            ill, given = row % 2, draw.random() > 0.2
            lines.append(
                f"{draw.integers(30, 70)},{row % 3 % 2},{draw.integers(1, 5)},{130 + 10 * ill},{240 * given:.0f},0,"
                f"{draw.integers(3)},{150 - 20 * ill},{ill},{draw.random():.1f},{2 if given else '?'},"
                f"{ill if given else '?'},{draw.choice([3, 6, 7])}.0,{ill * draw.integers(1, 5)}"
            )
        (home / f"processed.{name}.data").write_text("\n".join(lines) + "\n", "ascii")
    return folder


def predicted(model: str, rows: str, folder: Path) -> tuple[list[dict[str, str]], str]:
    done = orchard_command("predict", model, rows, "-o", "out.csv", cwd=folder)
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader((folder / "out.csv").read_text().splitlines())), done.stderr


FAST: dict[str, Any] = {"rounds": 2, "method": "fedavg-ft"}


@pytest.mark.filterwarnings("ignore:.*is not the published file")
@pytest.mark.parametrize("dataset", ["heart-disease", "heart-disease-complete"])
def test_an_exported_model_takes_ucis_columns(tmp_path: Path, dataset: str) -> None:
    data_dir = hospitals(tmp_path)
    result = orchard.run(dataset=dataset, data_dir=data_dir, out=tmp_path / "run", **FAST)
    _, card = export_model(tmp_path / "run", "0", tmp_path / "model.safetensors", "last")
    file = data_dir / "heart-disease" / "processed.cleveland.data"
    patients = file.read_text("ascii").splitlines()
    (tmp_path / "all.csv").write_text("\n".join([",".join(COLUMNS), *patients]))
    lines, said = predicted("model.safetensors", "all.csv", tmp_path)
    client = federated_data(result.experiment, data_dir).clients[0]
    with torch.inference_mode():
        expected = result.personalised(0)(torch.cat([part.x for part in client.parts()])).softmax(1)[:, 1]
    assert sorted(float(line["p(ill)"]) for line in lines) == pytest.approx(sorted(expected.tolist()), abs=1e-5)
    assert [line["label"] for line in lines] == ["ill" if k % 2 else "healthy" for k in range(24)]
    assert said.startswith("24 samples, accuracy ")

    without = [line.rsplit(",", 1)[0].replace("?", "") for line in patients]
    (tmp_path / "new.csv").write_text("\n".join([",".join(COLUMNS[:-1]), *without]))
    again, _ = predicted("model.safetensors", "new.csv", tmp_path)
    assert [line["p(ill)"] for line in again] == [line["p(ill)"] for line in lines]
    assert {line["label"] for line in again} == {""}

    text, everything = card.read_text(), dataset == "heart-disease"
    assert "orchard predict model.safetensors rows.csv" in text
    used = COLUMNS[:-1] if everything else COLUMNS[:10]
    assert f"A row of UCI's columns {', '.join(used)} becomes" in text
    assert "| cp | cp = 2 | " in text
    assert ("A `chol` of 0 counts as missing" in text) == ("| chol | chol is missing | " in text) == everything


@pytest.mark.filterwarnings("ignore:.*is not the published file")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.drop(columns="thal"), "rows.csv: there is no column 'thal'"),
        (lambda rows: rows.assign(age="old"), "rows.csv: row 1: 'age' is 'old', not a number"),
        (lambda rows: rows.assign(num=["?", *rows.num[1:]]), "the target 'num' is missing in 1 of 24 rows (rows 1)"),
    ],
)
def test_rows_that_are_not_ucis_are_refused(
    tmp_path: Path, change: Callable[[pd.DataFrame], pd.DataFrame], message: str
) -> None:
    orchard.run(dataset="heart-disease", data_dir=hospitals(tmp_path), out=tmp_path / "run", **FAST)
    export_model(tmp_path / "run", "0", tmp_path / "model.safetensors")
    rows = pd.read_csv(tmp_path / "heart-disease" / "processed.va.data", names=list(COLUMNS))
    change(rows).to_csv(tmp_path / "rows.csv", index=False)
    refused = orchard_command("predict", "model.safetensors", "rows.csv", cwd=tmp_path)
    assert refused.returncode == 2
    assert message in refused.stderr


@real
def test_an_exported_model_gives_the_runs_figures_on_the_hospitals_own_rows(tmp_path: Path) -> None:
    result = orchard.run(dataset="heart-disease", data_dir=REAL_DATA, out=tmp_path / "run", **FAST)
    name, _ = export_model(tmp_path / "run", "3", tmp_path / "model.safetensors", "last")
    assert name == "Switzerland"
    lines = (REAL_DATA / "heart-disease" / "processed.switzerland.data").read_text("ascii").splitlines()
    (tmp_path / "rows.csv").write_text("\n".join([",".join(COLUMNS), *lines]))
    rows, _ = predicted("model.safetensors", "rows.csv", tmp_path)
    client = federated_data(result.experiment, REAL_DATA).clients[3]
    x, y = (torch.cat(parts) for parts in zip(*client.parts(), strict=True))
    with torch.inference_mode():
        expected = result.personalised(3)(x).softmax(1)[:, 1].tolist()
    assert sorted(float(row["p(ill)"]) for row in rows) == pytest.approx(sorted(expected), abs=1e-5)
    assert [row["label"] for row in rows].count("ill") == int(y.sum()) == 115


@real
@pytest.mark.parametrize(
    ("dataset", "patients", "columns"),
    [("heart-disease", [303, 294, 200, 123], 28), ("heart-disease-complete", [303, 261, 130, 46], 13)],
)
def test_the_real_hospitals(dataset: str, patients: list[int], columns: int) -> None:
    data = federated_data(Experiment(dataset=dataset), REAL_DATA)
    assert [client.name for client in data.clients] == ["Cleveland", "Hungary", "Long Beach", "Switzerland"]
    assert data.distribution().totals().sum(axis=1).tolist() == patients
    assert data.shape == (columns,)
    for client in data.clients:
        assert np.allclose(client.train.x[:, 0].mean().item(), 0, atol=1e-5)
        assert all(bool(part.x.isfinite().all()) for part in (client.train, client.validation, client.test))
