"""Grids on a Ray cluster: many runs at once, with the results of one after the other; and the commands."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import orchard
import orchard.runs.cluster as runs_cluster
from crashing import what_it_gave
from helpers import small_experiment
from orchard.errors import ClusterWarning, RunFailed, Stopped
from orchard.experiment import RunOptions
from orchard.runs.grid import Grid, Measured, parse_contender, run_grid
from processes import orchard_command
from ray_cluster import Accident, Broken, Cluster, Holding, Quiet, kill_one


def grid_of(root: Path, options: RunOptions, **changes: Any) -> tuple[Grid, list[Any]]:
    base = small_experiment(**{"dataset": "digits", "partition": "iid", "rounds": 3} | changes)
    return Grid(base, options, [0, 1], root), [parse_contender(name, base) for name in ("fedavg", "apple", "ditto")]


def figures(measured: dict[tuple[str, int], Measured]) -> dict[tuple[str, int], object]:
    return {key: what_it_gave(orchard.load(run.folder.path))[0] for key, run in measured.items()}


@pytest.mark.slow
@pytest.mark.parametrize("seen", [True, False], ids=["shared", "sent-home"])
def test_a_grid_on_a_cluster_is_the_grid(
    seen: bool, nodes: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not seen:
        monkeypatch.setattr(runs_cluster, "_sign", lambda root: nullcontext(Path("nowhere")))
    options = RunOptions(engine="ray", address=nodes.address, checkpoint_every=1)
    watcher, again = Quiet(), Quiet()
    measured = run_grid(*grid_of(tmp_path / "ray", options), watcher)
    assert figures(measured) == figures(run_grid(*grid_of(tmp_path / "local", RunOptions()), Quiet()))
    assert sorted(line for line in watcher.lines if "done" in line)[0] == "apple 0: done"
    names = [sorted(path.name for path in (tmp_path / which).iterdir()) for which in ("ray", "local")]
    assert names[0] == names[1]
    run_grid(*grid_of(tmp_path / "ray", options), again)
    assert sum("reused" in line for line in again.lines) == 6


@pytest.mark.slow
@pytest.mark.parametrize("seen", [True, False], ids=["shared", "sent-home"])
def test_a_run_of_a_grid_that_dies_goes_on_from_its_checkpoint(
    seen: bool, nodes: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not seen:
        monkeypatch.setattr(runs_cluster, "_sign", lambda root: nullcontext(Path("nowhere")))
    options = RunOptions(engine="ray", address=nodes.address, checkpoint_every=1)
    changes = {"model": "test_ray_grids:digit_model", "clients": 3, "batch_size": 10, "rounds": 40}
    accident = Accident(kill_one, after=2, processes=1)
    watcher = Quiet()
    monkeypatch.setattr(watcher, "begin", lambda label, seed: accident)
    (grid, contenders), (local, _) = (grid_of(tmp_path / str(o.engine), o, **changes) for o in (options, RunOptions()))
    with pytest.warns(ClusterWarning, match="lost: .*; it goes on elsewhere, from its last checkpoint"):
        measured = run_grid(replace(grid, seeds=[0]), contenders[:1], watcher)
    (run,) = measured.values()
    assert run.folder.read("environment.json")["resumed"]
    assert figures(measured) == figures(run_grid(replace(local, seeds=[0]), contenders[:1], Quiet()))


def digit_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 6), Holding(), nn.Linear(3, 10))


def broken_digit_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 6), Broken(), nn.Linear(3, 10))


@pytest.mark.slow
def test_a_grid_that_is_stopped_goes_on_later(nodes: Cluster, tmp_path: Path) -> None:
    options = RunOptions(engine="ray", address=nodes.address)
    with pytest.raises(Stopped, match="what was saved is safe; the same command goes on"):
        run_grid(*grid_of(tmp_path, options), Quiet(), lambda: True)
    measured = run_grid(*grid_of(tmp_path, options), Quiet())
    assert len(measured) == 6


@pytest.mark.slow
def test_failures_in_a_grid_are_named(nodes: Cluster, tmp_path: Path) -> None:
    grid, _ = grid_of(
        tmp_path, RunOptions(engine="ray", address=nodes.address), model="test_ray_grids:broken_digit_model"
    )
    watcher = Quiet()
    with pytest.raises(RunFailed, match=r"fedavg, seed 0: .*a bug in somebody's model") as failed:
        run_grid(grid, [parse_contender("fedavg", grid.base)], watcher)
    assert "in forward" in str(failed.value.__cause__)
    assert sum("failed" in line for line in watcher.lines) == 2


@pytest.mark.slow
def test_the_commands(nodes: Cluster, tmp_path: Path) -> None:
    where = ("--engine", "ray", "--address", nodes.address)
    small = ("--dataset", "digits", "--partition", "iid", "--clients", "2", "--rounds", "2", "--set", "epochs=1")
    compared = orchard_command("compare", "--methods", "fedavg,separate", *small, *where, cwd=tmp_path)
    assert compared.returncode == 0, compared.stderr
    assert "separate" in compared.stdout
    ran = orchard_command("run", "--method", "fedavg", *small, *where, "--json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    nowhere = orchard_command("run", *small, "--engine", "ray", "--address", "127.0.0.1:1", cwd=tmp_path)
    assert nowhere.returncode == 2
    assert nowhere.stderr.startswith("orchard: address = '127.0.0.1:1': no Ray cluster can be joined there")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "tune --methods ditto --dataset digits --partition iid --clients 2 --rounds 2 --set epochs=1 --set model=mlp",
        "reproduce table1 --dataset digits --scale smoke --rows separate,apple",
        "panel --methods separate,fedavg --federations digits-conventions --seeds 0",
    ],
)
def test_what_commands_print_does_not_depend_on_the_engine(command: str, nodes: Cluster, tmp_path: Path) -> None:
    local = orchard_command(*command.split(), "--quiet", "--out", "local", cwd=tmp_path)
    there = ("--engine", "ray", "--address", nodes.address, "--out", "ray")
    remote = orchard_command(*command.split(), "--quiet", *there, cwd=tmp_path)
    assert remote.returncode == 0, remote.stderr
    assert remote.stdout == local.stdout
