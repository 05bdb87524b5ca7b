"""Every task on separate sites: the same result as in one process, and nothing unexpected leaves or is believed."""

from pathlib import Path

import pytest
import tomli_w
import torch

import orchard
from helpers import SMALL
from orchard.engines.flare.messages import Message, MessageRejected, unpack_enrolment
from orchard.errors import RunFailed, UserError
from orchard.experiment import load_experiment
from orchard.export.predict import load_predictor
from orchard.runs.result import Result
from orchard.sites.check import check
from orchard.sites.enrolment import enrolled, started
from orchard.sites.plan import Plan
from orchard.sites.report import export, report, site_run
from orchard.tasks.regression import Regression
from sites import Consortium, figures, same_models, small_plan
from task_data import NAMES, SETTINGS, task_arrays
from test_flare_site import kit

__all__ = ["kit"]

every_task = pytest.mark.parametrize("task", SETTINGS)


def consortium_of(task: str, home: Path) -> Consortium:
    return Consortium(home, task_arrays(task, 24, 12))


def plan_of(task: str, **changes: object) -> Plan:
    return small_plan(agreement={"classes": NAMES[task]}, **{**SETTINGS[task], "rounds": 2, **changes})


def together(task: str, **changes: object) -> Result:
    values = {**SMALL, **SETTINGS[task], "rounds": 2, **changes}
    return orchard.run(load_experiment(overrides=values), task_arrays(task, 24, 12))


@pytest.mark.parametrize("method", ["apple", "graft"])
@every_task
def test_sites_give_what_clients_in_one_process_give(task: str, method: str, tmp_path: Path) -> None:
    one, consortium = together(task, method=method), consortium_of(task, tmp_path)
    apart = consortium.run(plan_of(task, method=method))
    assert figures(apart) == figures(one)
    assert same_models(consortium, one)
    assert apart.distribution.scale == one.distribution.scale
    assert apart.distribution.counts == one.distribution.counts
    assert apart.task.classes == tuple(NAMES[task])


def test_sites_go_on_with_the_scale_they_agreed_on(tmp_path: Path) -> None:
    one, consortium = together("regression"), consortium_of("regression", tmp_path)
    consortium.run(plan_of("regression"), stop_after=1)
    consortium.restart_sites()
    assert figures(consortium.run(plan_of("regression"))) == figures(one)
    assert same_models(consortium, one)
    assert consortium.record("east")["about"]["scale"] == one.distribution.scale


# --- What a site says of its targets ---


def enrolment(**changes: object) -> Message:
    counts = {"train": [5, 5], "validation": [1, 1], "test": [2, 2]}
    samples = {"train": 5, "validation": 1, "test": 2}
    moments = [5.0, 1.0, 2.0, 0.5, 0.0]
    return {"shape": [3], "samples": samples, "counts": counts, "moments": moments, **changes}


TWO = Regression(("height", "weight"))


def test_a_server_takes_an_enrolment_as_it_is_meant() -> None:
    assert unpack_enrolment(enrolment(), TWO).moments == [5.0, 1.0, 2.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("moments", "category"),
    [
        (None, "malformed"),
        ([], "malformed"),
        ({0: 5.0}, "malformed"),
        ([5.0, 1.0, 2.0, 0.5], "malformed"),
        ([5.0, 1.0, 2.0, 0.5, 0.0, 0.0], "malformed"),
        ([6.0, 1.0, 2.0, 0.5, 0.0], "malformed"),  # other samples than it has
        ([5.0, "1", 2.0, 0.5, 0.0], "malformed"),
        ([5.0, True, 2.0, 0.5, 0.0], "malformed"),
        ([5.0, float("nan"), 2.0, 0.5, 0.0], "figure out of range"),
        ([5.0, float("inf"), 2.0, 0.5, 0.0], "figure out of range"),
        ([5.0, 1e39, 2.0, 0.5, 0.0], "figure out of range"),  # larger than any target can be
        ([5.0, 1.0, 2.0, -0.5, 0.0], "figure out of range"),
        ([5.0, 1.0, 2.0, 1e80, 0.0], "figure out of range"),
        ([5.0, 1.0, 2.0, float("nan"), 0.0], "figure out of range"),
    ],
)
def test_a_server_rejects_moments_that_no_targets_have(moments: object, category: str) -> None:
    with pytest.raises(MessageRejected, match=f"^{category}$"):
        unpack_enrolment(enrolment(moments=moments), TWO)


def test_a_site_that_lies_about_its_targets_does_not_take_part(tmp_path: Path) -> None:
    consortium = consortium_of("regression", tmp_path)
    consortium.altered = lambda site, answer: (
        {**answer, "moments": [1e9, *answer["moments"][1:]]} if site == "east" and "moments" in answer else answer
    )
    with pytest.raises(RunFailed, match=r"not there: east .malformed."):
        consortium.run(plan_of("regression"))


def test_moments_where_there_is_nothing_to_agree_on_are_rejected(tmp_path: Path) -> None:
    consortium = consortium_of("multilabel", tmp_path)
    consortium.altered = lambda site, answer: {**answer, "moments": [4711.0]} if "moments" in answer else answer
    with pytest.raises(RunFailed, match=r"north .malformed."):
        consortium.run(plan_of("multilabel"))


@pytest.mark.parametrize(
    "scale",
    [
        None,
        [],
        [[150.0]],
        [[150.0], [70.0], [1.0]],
        [[150.0, 1.0], [70.0, 1.0]],
        [[150.0], []],
        [[150.0], [0.0]],
        [[150.0], [-70.0]],
        [[150.0], [float("nan")]],
        [[float("inf")], [70.0]],
        [["150"], [70.0]],
        [[150], [70]],
        "ab",
        {"mean": [150.0], "deviation": [70.0]},
    ],
    ids=repr,
)
def test_a_site_rejects_a_scale_that_numbers_cannot_have(scale: object, tmp_path: Path) -> None:
    consortium = consortium_of("regression", tmp_path)
    known = enrolled(plan_of("regression"), "north", consortium.settings["north"])
    told = {"samples": [len(known.data.clients[0].train.y)] * 4, "shape": list(known.data.shape)}
    assert started(known, {**told, "scale": [[150.0], [70.0]]}).federation.task.scale() == [[150.0], [70.0]]
    with pytest.raises(MessageRejected, match=r"^not this federation$"):
        started(known, {**told, "scale": scale})


@pytest.mark.parametrize(
    ("task", "figure", "value"),
    [
        ("regression", "r2", 1.5),
        ("regression", "mae", -1.0),
        ("regression", "mae", float("inf")),
        ("multilabel", "auroc", 1.01),
        ("segmentation", "iou", -0.1),
    ],
)
def test_a_figure_that_its_measure_cannot_have_is_rejected(
    task: str, figure: str, value: float, tmp_path: Path
) -> None:
    consortium = consortium_of(task, tmp_path)

    def altered(site: str, answer: Message) -> Message:
        if site != "east" or not answer.get("after_training") or answer["round"] != 1:
            return answer
        scores = answer["after_training"]
        return {**answer, "after_training": {**scores, "test": {**scores["test"], figure: value}}}

    consortium.altered = altered
    result = consortium.run(plan_of(task))
    assert result.rounds[1].failures == {2: "east, round 2: rejected: figure out of range"}


def test_measures_of_another_task_are_rejected(tmp_path: Path) -> None:
    consortium = consortium_of("regression", tmp_path)
    other = {"validation": {"auroc": 0.5}, "test": {"auroc": 0.5}}
    consortium.altered = lambda site, answer: (
        {**answer, "after_training": other} if site == "east" and answer.get("after_training") else answer
    )
    assert consortium.run(plan_of("regression")).rounds[0].failures == {2: "east, round 1: rejected: malformed"}


# --- What a site's own people read ---

LEAVES = {
    "classification": ("samples of each class", "accuracy, balanced accuracy, AUROC"),
    "multilabel": ("samples with each finding", "AUROC, average precision"),
    "regression": ("samples", "R², MAE"),
    "segmentation": ("samples that hold each class", "Dice, IoU"),
}


@every_task
def test_check_says_what_leaves(task: str, tmp_path: Path, kit: Path) -> None:
    consortium_of(task, tmp_path)
    file = tmp_path / "experiment.toml"
    settings = {key: value for key, value in {**SMALL, **SETTINGS[task]}.items() if key not in ("dataset", "clients")}
    file.write_text(tomli_w.dumps({**settings, "deploy": {"classes": NAMES[task]}}))
    said = list(check(kit, file))
    counted, measured = LEAVES[task]
    assert f"  once: the shape of a sample, and the number of {counted} in each part" in said
    assert any(line.endswith(f"on its validation and test data: {measured}") for line in said)
    assert any("count, mean and sum of squared deviations" in line for line in said) == (task == "regression")


@every_task
def test_a_sites_report_and_model_are_of_its_task(task: str, tmp_path: Path, kit: Path) -> None:
    one, consortium = together(task), consortium_of(task, tmp_path)
    consortium.run(plan_of(task))
    run = site_run(kit, None)
    score = one.task.measures[one.task.score]
    last = next(line for line in report(run) if line.startswith("the last"))
    assert f"test {score.title} {score.text(one.scores()[-1, 0])}, validation" in last
    card = export(run, tmp_path / "model.safetensors", "last")
    predictor = load_predictor(tmp_path / "model.safetensors")
    assert predictor.task.scale() == one.task.scale()
    assert predictor.task.classes == tuple(NAMES[task])
    x = torch.from_numpy(task_arrays(task, 24, 12)[0].x_test)
    x = x[:, None] if x.dim() == 3 else x
    with torch.no_grad():
        assert torch.equal(predictor.outputs(x), one.personalised(0)(x))
    text = card.read_text("utf-8")
    assert NAMES[task][-1] in text
    assert ("| finding | test samples that have it |" in text) == (task == "multilabel")


@pytest.mark.parametrize(
    ("task", "classes", "refusal"),
    [
        ("multilabel", ["a", "b"], "has 3 findings for each sample, not 2"),
        ("regression", ["a", "b"], "has 1 numbers for each sample, not 2"),
    ],
)
def test_targets_that_were_not_agreed_upon_are_refused(
    task: str, classes: list[str], refusal: str, tmp_path: Path
) -> None:
    consortium = consortium_of(task, tmp_path)
    plan = small_plan(agreement={"classes": classes}, **SETTINGS[task])
    with pytest.raises(UserError, match=refusal):
        enrolled(plan, "north", consortium.settings["north"])
