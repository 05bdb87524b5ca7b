"""Tables of one's own, from the file to the prediction: in one place and at separate sites."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import orchard
from orchard.data.division import federated_data
from orchard.experiment import load_experiment
from orchard.export.export import export_model
from orchard.sites.plan import Agreement, Plan
from orchard.sites.report import SiteRun, export
from processes import orchard_command
from sites import SITES, Consortium, figures, same_models

FAST: dict[str, Any] = {"rounds": 3, "epochs": 2, "batch_size": 8, "lr": 0.05}
COLUMNS = {"age": "number", "pressure": "number", "sex": ["f", "m"]}


def patients(site: int, rows: int = 60) -> pd.DataFrame:
    """Sites differ in age and in what they measure pressure in; some values are missing."""
    draw = np.random.default_rng(site)
    age, sex = draw.normal(50 + 5 * site, 10, rows), draw.choice(["f", "m"], rows)
    risk = (age - 50 - 5 * site) / 10 + (sex == "m") + draw.normal(0, 0.5, rows)
    pressure = (120 + 15 * risk) * (1 if site % 2 else 0.133)
    pressure[:: 7 + site] = np.nan
    ill = np.where(risk > 0.5, "ill", "healthy")
    return pd.DataFrame({"age": age.round(1), "pressure": pressure, "sex": sex, "stay": 3 + 2 * risk, "state": ill})


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """All sites in one file."""
    file = tmp_path / "patients.csv"
    frames = [patients(i).assign(hospital=site) for i, site in enumerate(SITES)]
    pd.concat(frames).to_csv(file, index=False)
    return file


def settings(**changes: object) -> dict[str, object]:
    return {"target": "state", "site": "hospital", "drop": ["stay"], **changes}


def test_a_table_names_its_sites_and_brings_their_number(table: Path) -> None:
    experiment = load_experiment(overrides={"dataset": str(table), "table": settings()})
    assert (experiment.clients, experiment.partition.name, experiment.model) == (4, "given", "mlp")
    data = federated_data(experiment)
    assert [client.name for client in data.clients] == sorted(SITES)
    assert data.task.classes == ("healthy", "ill")
    # age, pressure and where it is missing, two levels of sex
    assert data.shape == (5,)
    for client in data.clients:
        train, validation, test = (len(part.y) for part in client.parts())
        assert train + validation + test == 60
        assert (train, test) in ((40, 12), (41, 11))  # 20 % of each class, and 15 % of the rest
        numbers = client.train.x[:, [0]]
        torch.testing.assert_close(numbers.mean(0), torch.zeros(1), atol=1e-5, rtol=0)
        torch.testing.assert_close(numbers.std(0, correction=0), torch.ones(1))
        assert set(client.train.x[:, 2:].flatten().tolist()) == {0.0, 1.0}


def test_sites_together_are_standardised_by_one_scale(table: Path) -> None:
    experiment = load_experiment(overrides={"dataset": str(table), "table": settings(scaling="shared")})
    clients = federated_data(experiment).clients
    assert len({json.dumps(c.preparation.model_dump()) for c in clients if c.preparation}) == 1
    everyone = torch.cat([client.train.x[:, 0] for client in clients])
    torch.testing.assert_close(everyone.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(everyone.std(correction=0), torch.tensor(1.0))
    assert clients[0].train.x[:, 0].mean().abs() > 0.1  # ages differ between sites


def test_one_file_per_site_is_the_same_as_a_column_of_sites(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sites"
    folder.mkdir()
    for i, site in enumerate(SITES):
        patients(i).to_parquet(folder / f"{site}.parquet")
    apart = orchard.run(dataset=str(folder), table=settings(site=None), **FAST)
    together = orchard.run(dataset=str(table), table=settings(), **FAST)
    assert apart.distribution.clients == together.distribution.clients
    np.testing.assert_array_equal(apart.scores(), together.scores())


def test_a_table_without_sites_is_divided(table: Path) -> None:
    whole = settings(site=None, drop=["stay", "hospital"])
    result = orchard.run(dataset=str(table), table=whole, clients=3, partition="iid", **FAST)
    assert result.distribution.sizes().tolist() == [78, 78, 78]  # what does not divide evenly is left out


def test_numbers_are_predicted_in_their_units(table: Path) -> None:
    fast = {**FAST, "method": "apple", "rounds": 15}
    result = orchard.run(dataset=str(table), table=settings(target="stay", drop=["state"]), **fast)
    assert result.task.name == "regression"
    assert result.bmcta > 0.5
    assert result.figures().best.measures["mae"] == pytest.approx(1.0, abs=0.8)  # days


@pytest.mark.parametrize("suffix", [".safetensors", ".onnx"])
def test_an_exported_model_prepares_new_rows_as_in_training(table: Path, tmp_path: Path, suffix: str) -> None:
    run = tmp_path / "run"
    result = orchard.run(dataset=str(table), table=settings(), out=run, method="fedavg-ft", **FAST)
    client = federated_data(result.experiment).clients[1]
    name, card = export_model(run, "1", tmp_path / f"model{suffix}", "last")
    assert name == client.name == "north"
    rows = pd.read_csv(table)
    mine = rows[rows.hospital == name]
    mine.drop(columns="hospital").to_csv(tmp_path / "new.csv", index=False)
    done = orchard_command("predict", f"model{suffix}", "new.csv", "-o", "out.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    right = sum(line["predicted"] == line["label"] for line in lines) / len(lines)
    assert done.stderr.startswith(f"60 samples, accuracy {100 * right:.2f} %")
    module = result.personalised(1)
    everything = torch.cat([part.x for part in client.parts()])
    with torch.inference_mode():
        expected = sorted(module(everything).softmax(1)[:, 1].tolist())
    assert sorted(float(line["p(ill)"]) for line in lines) == pytest.approx(expected, abs=1e-5)
    assert "| pressure | pressure is missing | 1 if so, else 0 |" in card.read_text()


def test_rows_that_nobody_knew_are_predicted_and_rows_that_lack_a_column_refused(table: Path, tmp_path: Path) -> None:
    orchard.run(dataset=str(table), table=settings(), out=tmp_path / "run", **FAST)
    export_model(tmp_path / "run", "north", tmp_path / "model.safetensors")
    (tmp_path / "new.csv").write_text("age,pressure,sex\n61,,x\n,17.2,f\n")
    done = orchard_command("predict", "model.safetensors", "new.csv", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "2 samples\n")
    assert len(done.stdout.splitlines()) == 3
    (tmp_path / "short.csv").write_text("age,sex\n61,f\n")
    done = orchard_command("predict", "model.safetensors", "short.csv", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "orchard: short.csv: there is no column 'pressure'; known: age, sex\n"


def test_columns_are_shown_with_what_to_write_down(table: Path) -> None:
    done = orchard_command("data", "show", "patients.csv", cwd=table.parent)
    assert done.returncode == 0, done.stderr
    assert "240 rows, 6 columns" in done.stdout
    assert "--set table.target=NAME" in done.stdout
    chosen = ["--set", "table.target=state", "--set", "table.site=hospital", "--set", 'table.drop=["stay"]']
    done = orchard_command("data", "show", "patients.csv", *chosen, cwd=table.parent)
    assert done.returncode == 0, done.stderr
    assert '[table.columns]\nage = "number"\npressure = "number"\nsex = [\n    "f",\n    "m",\n]\n' in done.stdout
    assert (table.parent / "patients-given.png").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "is a table: say which column to predict, e.g. --set table.target=outcome"),
        ({"table": {"target": "outcome"}}, "target: there is no column 'outcome'"),
        ({"table": settings(target="age")}, 'set task = "classification" or task = "regression"'),
        ({"table": settings(), "partition": "iid"}, "the data come client by client; use 'given'"),
        ({"table": settings(), "task": "regression"}, "'state' is"),
        (
            {"table": settings(target="stay", drop=["state"]), "task": "multilabel"},
            "is not for that, but for regression",
        ),
        ({"table": settings(), "clients": 7}, "clients = 7: but"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(table: Path, changes: dict[str, object], message: str) -> None:
    rows = pd.read_csv(table)
    rows["age"] = rows["age"].round().astype(int)
    rows.to_csv(table, index=False)
    with pytest.raises(orchard.UserError) as refusal:
        orchard.run(dataset=str(table), **{**FAST, **changes})
    assert message.lower() in str(refusal.value).lower()


def test_data_frames_are_handed_over_as_files_are(table: Path) -> None:
    whole = pd.read_csv(table)
    from_file = orchard.run(dataset=str(table), table=settings(), **FAST)
    in_one = orchard.run(data=whole, table=settings(), **FAST)
    by_name = {name: rows.drop(columns="hospital") for name, rows in whole.groupby("hospital")}
    apart = orchard.run(data=by_name, table=settings(site=None), **FAST)
    for handed in (in_one, apart):
        assert handed.distribution.clients == from_file.distribution.clients
        np.testing.assert_array_equal(handed.scores(), from_file.scores())
    divided = settings(site=None, drop=["stay", "hospital"])
    assert orchard.run(data=whole, table=divided, partition="iid", clients=2, **FAST).federation.clients == 2
    with pytest.raises(orchard.UserError, match="say which column to predict"):
        orchard.run(data=whole, **FAST)


# --- Separate sites ---


def tables_at_sites(home: Path) -> Consortium:
    consortium = Consortium(home)
    for i, site in enumerate(SITES):
        file = home / site / "patients.csv"
        patients(i).to_csv(file, index=False, sep=";", decimal=",")
        consortium.settings[site] = consortium.settings[site].changed(data=file)
    return consortium


def plan_of(**table: object) -> Plan:
    values = {"dataset": "sites", "clients": 4, "partition": "given", "model": "mlp", "method": "fedavg-ft", **FAST}
    kept = {"target": "state", "columns": COLUMNS, **table}
    classes = ["stay"] if kept["target"] == "stay" else ["healthy", "ill"]
    task = "regression" if kept["target"] == "stay" else None
    experiment = load_experiment(overrides={**values, "table": kept, "task": task})
    return Plan(run="run", sites=SITES, experiment=experiment, agreement=Agreement(classes=classes))


def in_one_place(home: Path, plan: Plan, out: Path | None = None) -> orchard.Result:
    folder = home / "tables"
    folder.mkdir()
    for i, site in enumerate(SITES):
        patients(i).to_csv(folder / f"{i} {site}.csv", index=False)
    return orchard.run(plan.experiment.changed(dataset=str(folder)), out=out)


@pytest.mark.parametrize(
    "table", [{}, {"scaling": "shared"}, {"target": "stay"}, {"target": "stay", "scaling": "shared"}]
)
def test_sites_with_tables_give_what_one_place_gives(tmp_path: Path, table: dict[str, object]) -> None:
    consortium, plan = tables_at_sites(tmp_path), plan_of(**table)
    apart, together = consortium.run(plan), in_one_place(tmp_path, plan)
    assert figures(apart) == figures(together)
    assert same_models(consortium, together)
    prepared = [consortium.record(site)["about"]["preparation"] for site in SITES]
    assert prepared == together.distribution.preparations
    assert apart.distribution.preparations is None  # the server does not know them


def test_a_sites_card_has_figures_by_class_of_its_own_rows(tmp_path: Path) -> None:
    consortium, plan = tables_at_sites(tmp_path), plan_of(scaling="shared")
    consortium.run(plan)
    content = consortium.record("north")
    run = SiteRun(content, plan, consortium.settings["north"].data)
    text = export(run, tmp_path / "model.safetensors", "last").read_text("utf-8")
    healthy, ill = (line.strip("| ").split(" | ") for line in text.split("| true ↓ ")[1].splitlines()[2:4])
    right, count = int(healthy[1]) + int(ill[2]), int(healthy[3]) + int(ill[3])
    assert right / count == content["last"]["scores"]["test"]["accuracy"]


def test_an_interrupted_run_of_sites_keeps_the_scale(tmp_path: Path) -> None:
    plan = plan_of(target="stay", scaling="shared")
    consortium = tables_at_sites(tmp_path / "stopped")
    consortium.run(plan, stop_after=2)
    consortium.restart_sites()
    resumed, whole = consortium.run(plan), tables_at_sites(tmp_path / "whole").run(plan)
    assert figures(resumed) == figures(whole)


@pytest.mark.parametrize(
    "numbers",
    [
        None,
        {"counts": [40], "means": [0.0], "squares": [1.0]},
        {"counts": [999, 9], "means": [0, 0], "squares": [1, 1]},
    ],
)
def test_moments_that_cannot_be_are_rejected(tmp_path: Path, numbers: object) -> None:
    consortium = tables_at_sites(tmp_path)
    consortium.altered = lambda site, answer: (
        {**answer, "numbers": numbers} if site == "east" and "numbers" in answer else answer
    )
    with pytest.raises(orchard.RunFailed, match=r"east \(malformed\)"):
        consortium.run(plan_of(scaling="shared"))


def test_a_plan_for_tables_names_their_columns(tmp_path: Path) -> None:
    with pytest.raises(orchard.UserError, match=r"table\.columns: all sites need the same features"):
        plan_of(columns=None)


def test_a_table_is_read_once_for_a_run(table: Path) -> None:
    opened: list[object] = []
    sys.addaudithook(lambda event, found: opened.append(event) if event == "open" and found[0] == str(table) else None)
    orchard.run(dataset=str(table), table=settings(), **FAST)
    assert len(opened) == 1
    experiment = load_experiment(overrides={"dataset": str(table), "table": settings()})
    federated_data(experiment.changed(seed=1))
    assert len(opened) == 2


def test_a_table_that_changes_before_it_is_loaded_is_read_again(table: Path) -> None:
    experiment = load_experiment(overrides={"dataset": str(table), "table": settings()})
    pd.concat([pd.read_csv(table)] * 2).to_csv(table, index=False)
    assert federated_data(experiment).distribution().sizes().tolist() == [120] * 4
