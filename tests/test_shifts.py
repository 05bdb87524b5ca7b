"""Differences between groups of clients, and the embedded digits by writer."""

import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import orchard
from helpers import classes, small_arrays, small_experiment, small_run
from orchard.data.catalogue import CATALOGUE
from orchard.data.client_arrays import from_arrays
from orchard.data.clients import FederatedData
from orchard.data.datasets import DIGITS, FORMS
from orchard.data.division import federated_data
from orchard.data.readers import read_npz
from orchard.data.samples import Samples
from orchard.data.shifts import ShiftSettings, groups_of, shift_samples
from orchard.experiment import load_experiment, to_toml
from orchard.report.command import command_of
from orchard.runs.folder import RunFolder
from sites import small_plan

PARTS = ("train", "validation", "test")


def digits(**settings: object) -> FederatedData:
    return federated_data(load_experiment(overrides={"dataset": "digits", "clients": 4, **settings}))


def shifted(kind: str, group: int, x: torch.Tensor, y: torch.Tensor) -> Samples:
    settings = ShiftSettings.model_validate({"kind": kind, "groups": 4})
    return shift_samples(Samples(x, y), settings, group, classes(10), np.random.default_rng(0))


IMAGE = torch.tensor([[[[-1.0, 0.0], [0.5, 1.0]]]])


def test_by_hand() -> None:
    y = torch.tensor([8])
    assert shifted("labels", 1, IMAGE, y).y.tolist() == [1]  # 8 + 3 modulo 10
    assert shifted("labels", 2, IMAGE, y).y.tolist() == [4]
    assert shifted("invert", 1, IMAGE, y).x.tolist() == [[[[1.0, -0.0], [-0.5, -1.0]]]]
    assert shifted("rotate", 1, IMAGE, y).x.tolist() == [[[[0.0, 1.0], [-1.0, 0.5]]]]
    assert shifted("rotate", 2, IMAGE, y).x.tolist() == [[[[1.0, 0.5], [0.0, -1.0]]]]
    assert shifted("blur", 1, IMAGE, y).x.tolist() == [[[[0.125, 0.125], [0.125, 0.125]]]]
    noisy = shifted("noise", 1, IMAGE, y).x
    assert not torch.equal(noisy, IMAGE)
    assert float(noisy.abs().max()) <= 1


@pytest.mark.parametrize("kind", ["labels", "invert", "rotate", "blur", "noise"])
def test_group_0_stays_as_it_is_and_the_others_change_in_every_part(kind: str) -> None:
    plain, other = digits(), digits(shift=kind)
    assert plain.groups is None
    assert other.groups is not None
    assert sorted(other.groups) == [0, 0, 1, 1]
    for mine, theirs, group in zip(plain.clients, other.clients, other.groups, strict=True):
        for part in PARTS:
            before, after = getattr(mine, part), getattr(theirs, part)
            same = torch.equal(before.x, after.x), torch.equal(before.y, after.y)
            assert same == ((True, True) if group == 0 else (kind == "labels", kind != "labels"))


@given(st.integers(2, 40), st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_groups_are_as_equal_as_can_be(clients: int, groups: int, seed: int) -> None:
    shift = ShiftSettings(kind="invert", groups=min(groups, clients))
    counts = np.bincount(groups_of(clients, shift, seed), minlength=shift.groups)
    assert counts.sum() == clients
    assert counts.max() - counts.min() <= 1


def test_groups_depend_on_the_partitions_seed_alone() -> None:
    dealt = {seed: digits(shift="invert", partition={"name": "iid", "seed": seed}).groups for seed in range(8)}
    assert len(set(dealt.values())) > 1
    assert digits(shift="labels", partition={"name": "iid", "seed": 3}, seed=7).groups == dealt[3]


def test_groups_are_known_to_the_run_folder_and_to_no_method(tmp_path: Path) -> None:
    result = small_run(shift={"kind": "labels", "groups": 3}, out=tmp_path / "run")
    assert result.distribution.groups is not None
    assert RunFolder(tmp_path / "run").result().distribution == result.distribution
    assert not hasattr(result.federation, "groups")
    assert load_experiment(tmp_path / "run/experiment.toml").shift == ShiftSettings(kind="labels", groups=3)
    assert "shift" not in to_toml(small_experiment())


def test_the_command_that_repeats_a_run_has_the_shift() -> None:
    experiment = load_experiment(overrides={"shift": {"kind": "rotate", "groups": 4}, "partition": "writers"})
    command = command_of(experiment)
    assert command is not None
    words = shlex.split(command)
    assignments = [words[k + 1] for k, word in enumerate(words) if word == "--set"]
    assert {'shift.kind="rotate"', "shift.groups=4"} <= set(assignments)
    options = {words[k].removeprefix("--"): words[k + 1] for k in range(2, len(words), 2) if words[k] != "--set"}
    numbers = {key: int(value) if value.isdecimal() else value for key, value in options.items()}
    assert load_experiment(overrides=numbers, assignments=assignments) == experiment


@pytest.mark.parametrize(
    ("shift", "message"),
    [
        ("turn", "shift.kind = 'turn': input should be 'labels', 'invert', 'rotate', 'blur' or 'noise'"),
        ({"kind": "labels", "groups": 1}, "shift.groups = 1: input should be greater"),
        ({"kind": "labels", "groups": 5}, "shift.groups = 5: there are 4 clients"),
        ("rotate", r"shift.kind = 'rotate': needs images, not samples of shape \(6,\)"),
    ],
)
def test_what_cannot_be_done_is_refused(shift: object, message: str) -> None:
    with pytest.raises(orchard.UserError, match=message):
        from_arrays(small_arrays(), small_experiment(shift=shift))


def test_sites_have_the_data_that_they_have() -> None:
    with pytest.raises(orchard.UserError, match=r"experiment\.shift: the sites' data are as they are"):
        small_plan(shift="labels")


# --- Digits by writer ---


WRITERS = CATALOGUE["digits"].natural[1]


def test_each_form_is_a_client() -> None:
    data = digits(partition="writers", clients=14)
    assert [client.name for client in data.clients] == [f"writer {k:02d}" for k in range(WRITERS)]
    sizes = [sum(len(getattr(client, part).y) for part in PARTS) for client in data.clients]
    assert sizes == np.diff([*FORMS, 1797]).tolist()
    assert len(FORMS) == WRITERS
    for partition in ("writers", {"name": "writers", "seed": 3}):
        assert load_experiment(overrides={"partition": partition}).clients == WRITERS


def test_forms_follow_one_order() -> None:
    """All begin by counting from 0 to 9 three times; one has lost its first digit, one a few others."""
    labels = read_npz(DIGITS)["labels"]
    counting = [k % 10 for k in range(30)]
    assert sum(labels[start : start + 30].tolist() == counting for start in FORMS) == 12


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"partition": "writers", "clients": 8},
            r"clients = 8: but digits names 14 owners \(writer 00, .*set clients = 14",
        ),
        (
            {"partition": {"name": "column", "key": "writer"}},
            "'column': only arrays of your own have columns, not digits",
        ),
    ],
)
def test_other_wishes_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(orchard.UserError, match=message):
        digits(**settings)
