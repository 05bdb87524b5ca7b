"""What a deployment refuses of a dishonest member: uploads out of scale, and numbers of samples nobody agreed on."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import orchard
from helpers import federation_of, small_arrays, small_data, small_experiment
from orchard.core.contract import ClientUpdate, Failure, Vectors
from orchard.engines.flare.messages import Message
from orchard.engines.scale import Scale
from orchard.errors import RunFailed, UserError
from orchard.sites.report import SiteRun, report
from sites import SITES, Consortium, figures, small_plan


def update(**vectors: Tensor) -> ClientUpdate:
    return ClientUpdate(vectors, (), 0.5, None, None)


def scale_of(name: str, factor: float = 10) -> Scale:
    experiment = small_experiment(method=name)
    return Scale(federation_of(experiment, small_data(experiment)), factor, SITES)


def steps(scale: Scale, round: int, sent: Tensor, *lengths: float) -> dict[int, str]:
    """Let clients upload steps of these lengths from what they were sent; return who is refused, and why."""
    one = torch.zeros_like(sent)
    one[0] = 1
    downloads: dict[int, Vectors] = {i: {"model": sent} for i in range(len(lengths))}
    updates = {i: update(model=sent + length * one) for i, length in enumerate(lengths)}
    checked = scale.checked(round, downloads, updates)
    return {i: str(u) for i, u in checked.items() if isinstance(u, Failure)}


def test_a_step_is_compared_with_the_median_of_all() -> None:
    scale = scale_of("fedavg")
    sent = 10 * torch.eye(1, scale.federation.parameters)[0]
    assert steps(scale, 0, sent, 2, 2, 2, 19) == {}
    assert steps(scale, 1, sent, 2, 2, 2, -21) == {
        3: "west, round 2: rejected: the step of 'model' is 10 times the median"
    }
    assert scale.last[3]["model"][0] == 29  # its last good one


def test_short_steps_are_never_long_beside_shorter_ones() -> None:
    """A tenth of the median length counts as a step at least: 10 × 1 here."""
    scale = scale_of("fedavg")
    sent = 10 * torch.eye(1, scale.federation.parameters)[0]
    assert steps(scale, 0, sent, 0, 0, 0, 9.9) == {}
    assert list(steps(scale, 1, sent, 0, 0, 0, -11)) == [3]


def test_a_length_is_compared_with_the_median_of_all() -> None:
    scale = scale_of("fedavg")
    sent = torch.eye(1, scale.federation.parameters)[0]
    refused = steps(scale, 0, sent, 0, 0, 0, 30)
    assert refused == {3: "west, round 1: rejected: the length of 'model' is 31 times the median"}


def test_a_minority_that_does_not_move_gets_nobody_refused() -> None:
    scale = scale_of("fedavg")
    sent = torch.eye(1, scale.federation.parameters)[0]
    for r in range(4):
        assert steps(scale, r, sent, 0, 0.3, 0.3, 0.3) == {}


def test_with_two_clients_nobody_can_tell_who_is_right() -> None:
    scale = scale_of("fedavg")
    sent = torch.eye(1, scale.federation.parameters)[0]
    assert steps(scale, 0, sent, 0, 1000) == {}


def test_cores_are_compared_with_the_clients_own_before() -> None:
    scale = scale_of("apple")
    federation = scale.federation
    first = [federation.initial_core(i) for i in range(4)]
    others: dict[int, Vectors] = {i: {f"core {j}": first[j] for j in range(4) if j != i} for i in range(4)}
    good = {i: update(core=1.01 * first[i]) for i in range(4)}
    assert scale.checked(0, others, good) == good
    negated = {**good, 2: update(core=-first[2])}
    assert isinstance(scale.checked(1, others, negated)[2], Failure)
    # Who was away for long may go on from what it has just received.
    assert scale.checked(2, others, {**good, 2: update(core=first[1])})[2] == update(core=first[1])


def test_a_core_is_near_what_a_client_may_go_on_from() -> None:
    """Its last upload, what it has just received, or, if its records are lost, an initial model. Else it is refused."""
    scale = scale_of("apple")
    length = float(scale.federation.initial_core(2).norm())
    far = 20 * length * torch.eye(1, scale.federation.parameters)[0]
    everybody = dict.fromkeys(range(4), update(core=far))
    for r in range(5):
        scale.checked(r, {}, everybody)
    again = scale.federation.initial_core(2)
    assert not isinstance(scale.checked(5, {}, {**everybody, 2: update(core=far)})[2], Failure)
    assert scale.checked(6, {}, {**everybody, 2: update(core=again)})[2] == update(core=again)
    refused = scale_of("apple")
    for r in range(5):
        refused.checked(r, {}, everybody)
    leap = {**everybody, 2: update(core=-far)}
    assert "the step of 'core' is 20 times the median" in str(refused.checked(5, {}, leap)[2])  # nothing was sent
    assert "the step of 'core' is 20 times the median" in str(refused.checked(6, {2: {"core 1": far}}, leap)[2])
    assert refused.checked(7, {2: {"core 1": -far}}, leap)[2] == leap[2]


def test_what_is_no_model_is_not_compared() -> None:
    scale = scale_of("ifca")
    assert scale.compared == ["model"]


@pytest.mark.parametrize("name", ["fedavg", "apple"])
def test_a_negated_upload_is_refused_and_the_others_go_on(name: str, tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)

    def altered(site: str, answer: Message) -> Message:
        if site != "east" or answer.get("round", 0) < 2 or not answer.get("upload"):
            return answer
        ((name, content),) = answer["upload"]
        return {**answer, "upload": [[name, (-np.frombuffer(content, "<f4")).tobytes()]]}

    consortium.altered = altered
    plan = small_plan(method=name, rounds=4, agreement={"scale_bound": 3})
    whole = consortium.run(plan)
    assert [set(entry.failures) for entry in whole.rounds] == [set(), set(), {2}, {2}]
    assert whole.rounds[2].failures[2].startswith("east, round 3: rejected: the step of")
    again = Consortium(tmp_path / "again")
    again.altered = altered
    again.run(plan, stop_after=2)
    again.restart_sites()
    assert figures(again.run(plan)) == figures(whole)


def test_a_poisoned_core_reaches_nobody(tmp_path: Path) -> None:
    """Thirty times as long and negated, within the bound on norms: without the check the others' training ends."""
    consortium = Consortium(tmp_path)

    def altered(site: str, answer: Message) -> Message:
        if site != "east" or not answer.get("upload"):
            return answer
        ((name, content),) = answer["upload"]
        return {**answer, "upload": [[name, (-30 * np.frombuffer(content, "<f4")).tobytes()]]}

    consortium.altered = altered
    result = consortium.run(small_plan())
    assert [list(entry.failures) for entry in result.rounds] == [[2]] * 3
    assert all(entry.after_training[i] for entry in result.rounds for i in (0, 1, 3))
    assert not np.isnan(result.bmcta)


# --- Numbers of samples ---


def claiming(consortium: Consortium, site: str, count: int) -> None:
    """Let a site claim to have so many training samples, all of one class."""

    def altered(name: str, answer: Message) -> Message:
        if name != site or "samples" not in answer:
            return answer
        samples = {**answer["samples"], "train": count}
        return {**answer, "samples": samples, "counts": {**answer["counts"], "train": [count, 0, 0]}}

    consortium.altered = altered


def test_who_claims_more_than_all_others_together_is_asked_about_it_before_anything_begins(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    claiming(consortium, "east", 2**40)
    with pytest.raises(
        RunFailed, match=r"east claims 1099511627776 training samples, more than all others together; "
    ) as why:
        consortium.run(small_plan())
    assert "agree on it: [deploy] samples = {north = 17, south = 22, east = 1099511627776, west = 34}" in str(why.value)


def test_agreed_numbers_are_what_counts(tmp_path: Path) -> None:
    honest = Consortium(tmp_path / "honest")
    counts = dict(zip(SITES, honest.run(small_plan()).federation.samples, strict=True))
    agreed = small_plan(agreement={"samples": counts})
    assert figures(Consortium(tmp_path / "agreed").run(agreed)) == figures(
        orchard.run(small_experiment(), small_arrays())
    )
    liar = Consortium(tmp_path / "liar")
    claiming(liar, "east", counts["east"] + 5)
    with pytest.raises(
        RunFailed, match=rf"east claims {counts['east'] + 5} training samples; agreed in .* {counts['east']}"
    ):
        liar.run(agreed)


def test_agreed_numbers_name_every_site(tmp_path: Path) -> None:
    with pytest.raises((UserError, ValueError), match="samples: must name every site once: north, south, east, west"):
        small_plan(agreement={"samples": {"north": 17}})


# --- What a site says of it ---


def test_a_site_reports_whose_core_it_has_left_out(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)

    def poisoned(site: str, answer: Message) -> Message:
        if site != "east" or not answer.get("upload") or answer["round"] != 1:
            return answer
        ((name, content),) = answer["upload"]
        return {**answer, "upload": [[name, (-9 * np.frombuffer(content, "<f4")).tobytes()]]}

    consortium.altered = poisoned
    plan = small_plan(robust=True, agreement={"scale_bound": 99})
    consortium.run(plan)
    lines = list(report(SiteRun(consortium.record("north"), plan, tmp_path)))
    assert "left out, since it made this site's model worse: east, in rounds 3" in lines
