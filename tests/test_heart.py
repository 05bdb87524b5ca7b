"""Heart disease at four hospitals: files in the official format, and the real ones where they are there."""

from pathlib import Path

import numpy as np
import pytest
import torch

import orchard
from helpers import REAL_DATA
from orchard.data.clients import ClientData
from orchard.data.division import federated_data, standardised
from orchard.data.heart import read_heart_disease
from orchard.data.samples import Samples
from orchard.data.tables.encoding import FeatureColumn, Schema
from orchard.experiment import Experiment, load_experiment

NAMES = ("cleveland", "hungarian", "switzerland", "va")
CLASSES = ("healthy", "ill")
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
    data = read_heart_disease(four_files(tmp_path), "all", CLASSES)
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
    data = read_heart_disease(four_files(tmp_path, (COMPLETE, COMPLETE, COMPLETE, LACKING, EMPTY)), "complete", CLASSES)
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
        read_heart_disease(paths, "all", CLASSES)


def test_hospitals_are_of_heart_disease_alone() -> None:
    message = "'hospitals': only 'heart-disease' and 'heart-disease-complete' come by hospitals, not digits"
    with pytest.raises(orchard.UserError, match=message):
        federated_data(load_experiment(overrides={"dataset": "digits", "partition": "hospitals"}))


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
