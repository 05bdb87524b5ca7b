"""Numbers that are standardised by figures known beforehand: nothing about them leaves a site."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import orchard
from helpers import REAL_DATA
from orchard.data.heart import COLUMNS as HEART
from orchard.engines.flare.messages import Message
from orchard.errors import UserError
from orchard.experiment import load_experiment
from orchard.export.export import export_model
from orchard.sites.plan import Agreement, Plan
from sites import SITES, Consortium, figures, same_models
from task_data import task_arrays
from test_heart import NAMES, real
from test_own_tables import COLUMNS, patients
from test_own_tables import FAST as FASTEST

SCALE = {"age": [50.0, 10.0], "pressure": [100.0, 25.0]}
STAY = {**SCALE, "stay": [5.0, 3.0]}
TARGETS: dict[str, dict[str, Any]] = {
    "classification": {"table": {"target": "state", "columns": COLUMNS}, "scale": SCALE},
    "regression": {"table": {"target": "stay", "columns": COLUMNS}, "scale": STAY},
}
FAST = {**FASTEST, "lr": 0.01}
PRIVATE = {"noise_multiplier": 1.0}


def consortium_with(home: Path, frames: Mapping[str, pd.DataFrame]) -> Consortium:
    consortium = Consortium(home)
    for site, frame in frames.items():
        file = home / site / "patients.csv"
        frame.to_csv(file, index=False)
        consortium.settings[site] = consortium.settings[site].model_copy(update={"data": file})
    return consortium


def frames() -> dict[str, pd.DataFrame]:
    return {site: patients(i) for i, site in enumerate(SITES)}


def plan_of(task: str, **changes: Any) -> Plan:
    overrides = {"dataset": "patients", "clients": 4, "partition": "given", "task": task, "model": "mlp", **FAST}
    experiment = load_experiment(overrides={**overrides, **TARGETS[task], **changes})
    classes = {"classification": ["healthy", "ill"], "regression": ["stay"]}[task]
    return Plan(run="run", sites=SITES, experiment=experiment, agreement=Agreement(classes=classes))


def told_first(consortium: Consortium, plan: Plan) -> list[Message]:
    """Return what the sites say of themselves before anything is trained."""
    message = {"what": "enrol", "plan": plan.to_json(), "orchard": orchard.__version__}
    return [worker.handle(message) for worker in consortium.workers.values()]


def test_a_number_is_standardised_by_what_is_known_of_it() -> None:
    frame = pd.DataFrame({"age": [40.0, 60.0, np.nan, 75.0] * 10, "ill": ["yes", "no"] * 20})
    data = {"a": frame, "b": frame}
    result = orchard.run(data=data, table={"target": "ill"}, scale={"age": [50.0, 10.0]}, **FAST)
    (first, _) = result.distribution.preparations or []
    assert first["scaling"] == {"means": [50.0, 0.0], "deviations": [10.0, 1.0]}
    experiment = result.experiment
    assert experiment.identity()["scale"] == {"age": [50.0, 10.0]}
    assert "exact means" not in "\n".join(orchard.check(experiment.changed(privacy=PRIVATE), data))
    assert "exact means" in "\n".join(orchard.check(experiment.changed(privacy=PRIVATE, scale=None), data))


def test_what_regression_predicts_of_arrays_is_standardised_too() -> None:
    settings = {"task": "regression", "model": "mlp", "scale": {"target": [150.0, 75.0]}, **FAST}
    result = orchard.run(data=task_arrays("regression"), **settings)
    assert result.task.scale() == [[150.0], [75.0]]
    assert result.distribution.scale == [[150.0], [75.0]]


@pytest.mark.parametrize("task", TARGETS)
def test_sites_give_what_they_give_in_one_place_and_tell_nothing_of_their_numbers(task: str, tmp_path: Path) -> None:
    plan, consortium = plan_of(task), consortium_with(tmp_path, frames())
    for site, frame in frames().items():
        (tmp_path / "tables").mkdir(exist_ok=True)
        frame.to_csv(tmp_path / "tables" / f"{SITES.index(site)}.csv", index=False)
    together = orchard.run(dataset=str(tmp_path / "tables"), **{**TARGETS[task], "model": "mlp", **FAST})
    said = told_first(consortium, plan)
    assert all(answer["numbers"] is None and answer["moments"] == [] for answer in said)
    apart = consortium.run(plan)
    assert same_models(consortium, together)
    assert figures(apart) == figures(together)


@pytest.mark.parametrize("task", TARGETS)
def test_under_privacy_a_patients_numbers_change_nothing_of_what_is_told_before_training(
    task: str, tmp_path: Path
) -> None:
    other = frames()
    row = other["north"].index[other["north"]["pressure"].notna()][0]
    other["north"].loc[row, ["age", "pressure"]] = [99.0, 250.0]
    plan = plan_of(task, privacy=PRIVATE)
    said, changed = (
        told_first(consortium_with(tmp_path / name, data), plan) for name, data in (("a", frames()), ("b", other))
    )
    assert said == changed


def test_under_privacy_sites_train_on_tables_and_a_model_says_by_what_it_standardises(tmp_path: Path) -> None:
    consortium = consortium_with(tmp_path, frames())
    result = consortium.run(plan_of("regression", privacy=PRIVATE))
    assert len(result.rounds) == 3
    assert all(not entry.failures for entry in result.rounds)
    record = consortium.record("north")
    assert torch.isfinite(record["last"]["vector"]).all()
    assert record["about"]["scale"] == [[5.0], [3.0]]
    assert record["about"]["preparation"]["scaling"]["means"] == [50.0, 0.0, 100.0, 0.0, 0.0, 0.0, 0.0]


def test_a_card_does_not_call_known_figures_exact_ones(tmp_path: Path) -> None:
    settings = {**TARGETS["regression"], "model": "mlp", **FAST, "privacy": PRIVATE}
    data, exact = frames(), "means and deviations by which numbers are standardised, which are exact"
    for scale, said in ((STAY, False), (None, True)):
        run = tmp_path / f"run {said}"
        orchard.run(data=data, out=run, **{**settings, "scale": scale})
        _, card = export_model(run, "0", tmp_path / "model.safetensors")
        assert (exact in card.read_text("utf-8")) is said


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"scale": {"age": [50.0, 10.0]}}, r"scale: lacks 'pressure'; give its mean and deviation"),
        ({"scale": {**SCALE, "sex": [0.5, 0.5]}}, r"scale: 'sex': standardised are: age, pressure"),
        ({"scale": {**SCALE, "age": [50.0, 0.0]}}, r"scale\.age\.1 = 0\.0"),
        ({"scale": {**SCALE, "age": [50.0]}}, r"scale\.age"),
        (
            {"table": {**TARGETS["classification"]["table"], "scaling": "shared"}},
            r'leave table\.scaling = "shared" out',
        ),
    ],
)
def test_a_scale_that_does_not_fit_is_refused(changes: dict[str, Any], why: str) -> None:
    settings = {**TARGETS["classification"], **changes}
    with pytest.raises(UserError, match=why):
        orchard.run(data=frames(), **{**settings, "model": "mlp", **FAST})
    with pytest.raises(UserError, match=why):
        plan_of("classification", **changes)


def test_where_nothing_is_standardised_a_scale_is_refused() -> None:
    with pytest.raises(UserError, match=r"scale: 'age': nothing is standardised here"):
        orchard.check(dataset="digits", scale={"age": [50.0, 10.0]})


HEART_SCALE = {
    **{"age": [54.0, 9.0], "trestbps": [130.0, 18.0], "chol": [240.0, 50.0], "thalach": [140.0, 25.0]},
    **{"oldpeak": [1.0, 1.0], "ca": [0.7, 1.0]},
}
"""Round figures, not made of these patients."""
HEART_LEVELS = {
    **{"sex": ["0", "1"], "cp": ["1", "2", "3", "4"], "fbs": ["0", "1"], "restecg": ["0", "1", "2"]},
    **{"exang": ["0", "1"], "slope": ["1", "2", "3"], "thal": ["3", "6", "7"]},
}


@real
@pytest.mark.slow
def test_four_hospitals_train_under_privacy_and_learn(tmp_path: Path) -> None:
    """Of their own records, at four sites, at ε = 8; naming each hospital's commonest answer is right in 72 %."""
    data = {}
    for site, name in zip(SITES, NAMES, strict=True):
        rows = pd.read_csv(REAL_DATA / "heart-disease" / f"processed.{name}.data", names=HEART, na_values="?")
        rows["chol"] = rows["chol"].where(rows["chol"] > 0)
        data[site] = rows.assign(num=np.where(rows["num"] > 0, "ill", "healthy"))
    columns = {**dict.fromkeys(HEART_SCALE, "number"), **HEART_LEVELS}
    plan = plan_of(
        "classification",
        **{"table": {"target": "num", "columns": columns}, "scale": HEART_SCALE, "privacy": {"epsilon": 8.0}},
        **{"model": "logistic", "method": "graft", "rounds": 40, "epochs": 1, "batch_size": 64, "lr": 0.2},
    )
    consortium = consortium_with(tmp_path, data)
    consortium.run(plan)
    last = [consortium.record(site)["last"]["scores"]["test"]["accuracy"] for site in SITES]
    assert np.mean(last) > 0.75
