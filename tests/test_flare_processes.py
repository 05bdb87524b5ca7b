"""Silos in processes of their own, connected by FLARE with mutual TLS, killed at will."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import orchard
from orchard.core.vector import Model
from orchard.experiment import load_experiment
from orchard.methods.registry import BUILT_IN
from orchard.runs.folder import RunFolder
from orchard.runs.result import Result
from orchard.sites.record import SiteRecord

pytest.importorskip("nvflare")

from federation import Federation, digits, ended
from orchard.data.client_arrays import ClientArrays
from task_data import NAMES, SETTINGS, task_arrays
from test_own_tables import COLUMNS, patients

PRIVATE = ("relationships", "alpha", "cluster", "time", "seconds")


def simulated(arrays: list[ClientArrays], **changes: object) -> Result:
    """What the same federation gives in one process."""
    small = {"dataset": "arrays", "method": "apple", "model": "mlp", "rounds": 6, "epochs": 2, "batch_size": 16}
    values = {**small, "clients": len(arrays)}
    return orchard.run(load_experiment(overrides={**values, **changes}), arrays)


def figures(result: Result) -> list[dict[str, object]]:
    return [{k: v for k, v in entry.as_json().items() if k not in PRIVATE} for entry in result.rounds]


def held(federation: Federation, site: str, run: str) -> torch.Tensor:
    """Return the personalised model that a site has on its disk."""
    record = SiteRecord(federation.home / site / "records" / run, {}).newest()
    assert record is not None
    vector: torch.Tensor = record["last"]["vector"]
    return vector


def check_same(federation: Federation, together: Result, out: str = "run") -> None:
    folder = RunFolder(federation.home / out)
    assert figures(folder.result()) == figures(together)
    models: list[Model] = list(together.models)
    for site, model in zip(federation.sites, models, strict=True):
        assert torch.equal(held(federation, site, folder.read("plan.json")["run"]), model[0])


@pytest.mark.slow
def test_ten_deaths_change_nothing(tmp_path: Path) -> None:
    """Of workers, of sites and the server with all of their processes or without their worker, at random moments."""
    kinds = [
        "worker",
        "site",
        "server",
        "worker",
        "server job",
        "site alone",
        "server alone",
        "server",
        "site",
        "worker",
    ]
    arrays, draw = digits(3), np.random.default_rng()
    together = simulated(arrays, rounds=40)
    with Federation(tmp_path, ["north", "south", "east"], arrays) as federation:
        federation.start_all()
        run = federation.run(rounds=40)
        for kind in kinds:
            before, site = federation.rounds("north"), str(draw.choice(federation.sites))
            federation.wait(lambda before=before: federation.rounds("north") > before + 1, "more rounds")  # type: ignore[misc]
            time.sleep(float(draw.uniform(0, 1.5)))
            print(f"killing: {kind} {site} after {federation.rounds('north')} rounds", flush=True)  # noqa: T201
            if kind == "worker":
                federation.kill_worker(site)
            elif kind == "server job":
                federation.kill_worker("localhost")
            else:
                victim = site if "site" in kind else "localhost"
                federation.kill(victim, alone="alone" in kind)
                federation.start(victim)
        ended(run, 300)
        check_same(federation, together)


@pytest.mark.slow
def test_a_site_that_is_away_is_missed_and_takes_part_again(tmp_path: Path) -> None:
    with Federation(tmp_path, ["north", "south", "east"], digits(3)) as federation:
        federation.start_all()
        run = federation.run(rounds=60, deploy={"patience_seconds": 5, "min_sites": 2, "round_seconds": 20})
        federation.wait(lambda: federation.rounds("east") >= 2, "the second round")
        federation.kill("east")
        federation.wait(lambda: federation.rounds("north") >= federation.rounds("east") + 4, "three rounds without it")
        missed = federation.rounds("east")
        federation.start("east")
        federation.wait(lambda: federation.rounds("east") > missed, "its return")
        ended(federation.command("stop", str(tmp_path / "run")))
        run.communicate(timeout=60)
        ended(federation.command("attach", str(tmp_path / "run"), "--quiet"), 200)
        result = RunFolder(tmp_path / "run").result()
        away = [r for r, entry in enumerate(result.rounds) if entry.after_training[2] is None]
        assert len(away) >= 3
        assert away == list(range(away[0], away[-1] + 1))
        reasons = [result.rounds[r].failures[2].removeprefix(f"east, round {r + 1}: ") for r in away]
        assert sorted(reasons, reverse=True) == reasons  # first waited for in vain, then known to be away
        assert set(reasons) <= {"deadline", "absent"}
        assert result.rounds[-1].after_training[2] is not None


def test_a_site_dies_and_the_run_goes_on_to_the_same_result(tmp_path: Path) -> None:
    arrays = digits(2)
    together = simulated(arrays)
    with Federation(tmp_path, ["north", "south"], arrays) as federation:
        federation.start_all()
        run = federation.run()
        federation.wait(lambda: federation.rounds("south") >= 2, "the second round")
        federation.kill_worker("south")
        said = ended(run)
        assert "going on in a new one" in said
        check_same(federation, together)


@pytest.mark.slow
def test_every_method_gives_what_it_gives_in_one_process(tmp_path: Path) -> None:
    arrays = digits(3)
    with Federation(tmp_path, ["north", "south", "east"], arrays) as federation:
        federation.start_all()
        for name in BUILT_IN:
            ended(federation.run(out=name, method=name, rounds=2, batch_size=16))
            check_same(federation, simulated(arrays, method=name, rounds=2), name)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["multilabel", "regression", "segmentation"])
def test_every_task_gives_what_it_gives_in_one_process(task: str, tmp_path: Path) -> None:
    arrays, settings = task_arrays(task)[:3], {**SETTINGS[task], "rounds": 2, "batch_size": 16}
    with Federation(tmp_path, ["north", "south", "east"], arrays) as federation:
        federation.start_all()
        ended(federation.run(**settings, deploy={"classes": NAMES[task]}))
        check_same(federation, simulated(arrays, **settings))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["stay", "state"])
def test_tables_with_a_shared_scale_give_what_they_give_in_one_place(target: str, tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    files = [tmp_path / "tables" / f"{site}.csv" for site in ("a", "b", "c")]
    for k, file in enumerate(files):
        patients(k).to_csv(file, index=False)
    table = {"target": target, "columns": COLUMNS, "scaling": "shared"}
    small = {"method": "apple", "model": "mlp", "rounds": 2, "epochs": 2, "batch_size": 16, "lr": 0.05}
    settings: dict[str, Any] = {"table": table, **small}
    if target == "stay":
        settings["task"] = "regression"
    together = orchard.run(dataset=str(tmp_path / "tables"), **settings)
    with Federation(tmp_path, ["north", "south", "east"], files) as federation:
        federation.start_all()
        classes = ["stay"] if target == "stay" else ["healthy", "ill"]
        ended(federation.run(dataset="sites", partition="given", **settings, deploy={"classes": classes}))
        check_same(federation, together)
