"""The server's and the sites' parts of a federation on separate machines, with the wire in between in this process."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import orchard
from helpers import measures, method, small_arrays, small_experiment
from orchard.engines.flare.messages import Message
from orchard.errors import RunFailed
from orchard.methods.apple import Apple
from orchard.methods.registry import BUILT_IN
from orchard.runs.folder import RunFolder
from orchard.sites.worker import SiteWorker
from sites import SITES, Consortium, figures, same_models, small_plan


@pytest.mark.parametrize("name", BUILT_IN)
def test_sites_give_what_clients_in_one_process_give(name: str, tmp_path: Path) -> None:
    together = orchard.run(small_experiment(method=name), small_arrays())
    consortium = Consortium(tmp_path)
    apart = consortium.run(small_plan(method=name))
    assert figures(apart) == figures(together)
    assert same_models(consortium, together)


def test_a_site_keeps_its_relationships_to_itself(tmp_path: Path) -> None:
    together = orchard.run(small_experiment(), small_arrays())
    consortium = Consortium(tmp_path)
    consortium.run(small_plan())
    relationships = together.relationships
    assert relationships is not None
    for i, site in enumerate(SITES):
        history = consortium.record(site)["history"]
        assert [entry["diagnostics"]["relationships"] for entry in history[:-1]] == relationships[1:, i].tolist()
    folder = RunFolder(tmp_path / "server" / "run")
    assert folder.result().relationships is None
    assert "relationships" not in (folder.path / "metrics.jsonl").read_text()


@pytest.mark.parametrize("stopped", [1, 2, 3])
@pytest.mark.parametrize("name", ["apple", "fedfomo", "fedavg-ft", "graft"])
def test_server_and_sites_go_on_where_they_were(name: str, stopped: int, tmp_path: Path) -> None:
    together = orchard.run(small_experiment(method=name), small_arrays())
    consortium = Consortium(tmp_path)
    consortium.run(small_plan(method=name), stop_after=stopped)
    consortium.restart_sites()
    apart = consortium.run(small_plan(method=name))
    assert figures(apart) == figures(together)
    assert same_models(consortium, together)


def test_what_a_server_has_set_for_itself_does_not_keep_a_run_from_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHARD_DATA", str(tmp_path))
    consortium = Consortium(tmp_path)
    consortium.run(small_plan(), stop_after=1)
    consortium.restart_sites()
    assert figures(consortium.run(small_plan())) == figures(orchard.run(small_experiment(), small_arrays()))
    with pytest.raises(orchard.UserError, match=r"since the run began: lr \(was 0.05, now 0.01\)"):
        consortium_begun(tmp_path / "other").run(small_plan(lr=0.01))


def consortium_begun(home: Path) -> Consortium:
    """A consortium whose run was stopped after its first round."""
    home.mkdir()
    consortium = Consortium(home)
    consortium.run(small_plan(), stop_after=1)
    return consortium


def test_a_server_that_died_within_a_round_asks_again_and_nobody_trains_twice(tmp_path: Path) -> None:
    together = orchard.run(small_experiment(), small_arrays())
    consortium = Consortium(tmp_path)

    def die_in_round_1(site: str, answer: Message) -> Message:
        if site == "west" and answer.get("round") == 1 and "failure" not in answer:
            raise ConnectionError("the server's power failed")
        return answer

    consortium.altered = die_in_round_1
    with pytest.raises(ConnectionError):
        consortium.run(small_plan())
    before = {site: consortium.record(site) for site in SITES}
    assert [before[site]["rounds"] for site in SITES] == [2, 2, 2, 2]
    times = {site: _written(consortium, site, 2) for site in SITES}

    consortium.altered = lambda site, answer: answer
    consortium.restart_sites()
    consortium.run(small_plan(), stop_after=1)
    assert {site: _written(consortium, site, 2) for site in SITES} == times
    apart = consortium.run(small_plan())
    assert figures(apart) == figures(together)
    assert same_models(consortium, together)


def _written(consortium: Consortium, site: str, rounds: int) -> int:
    return (consortium.settings[site].records / "run" / f"rounds-{rounds:05d}.json").stat().st_mtime_ns


@pytest.mark.parametrize("budget", [None, 3])
def test_a_site_that_is_away_is_missed_and_takes_part_again(budget: int | None, tmp_path: Path) -> None:
    plan = small_plan(rounds=6, method=Apple(budget=budget))
    consortium = Consortium(tmp_path)
    consortium.run(plan, stop_after=2)
    core = consortium.record("east")["client"]["core"]
    consortium.run(plan, present=["north", "south", "west"], stop_after=3)
    checkpoint, _ = RunFolder(consortium.home / "server" / "run").newest_checkpoint()
    assert torch.equal(checkpoint["server"]["cores"][2], core)  # its last core stays available
    result = consortium.run(plan)
    absent = [entry.failures for entry in result.rounds]
    reasons = [f"east, round {r}: absent" for r in range(1, 7)]
    assert absent == [{}, {}, {2: reasons[2]}, {2: reasons[3]}, {2: reasons[4]}, {}]
    assert [entry.after_training[2] is None for entry in result.rounds] == [False, False, True, True, True, False]
    summary = json.loads((tmp_path / "server" / "run" / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary["state"] == "finished"
    assert consortium.record("east")["history"][-2]["round"] == 5


def test_too_few_sites_do_not_make_a_round(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    plan = small_plan(agreement={"min_sites": 3})
    consortium.run(plan, stop_after=1)
    with pytest.raises(RunFailed, match=r"2 sites take part, 3 are needed; not there: east .absent., west .absent."):
        consortium.run(plan, present=["north", "south"])
    assert len(consortium.run(plan, present=["north", "south", "west"]).rounds) == 3


def test_a_federation_begins_with_all_of_its_sites(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"west .absent."):
        Consortium(tmp_path).run(small_plan(), present=["north", "south", "east"])


def altered_update(answer: Message, kind: str) -> Message:
    """A site's answer, falsified; all vectors but the first stay as they are."""
    (name, content), *others = answer["upload"]
    vector = np.frombuffer(content, "<f4").copy()

    def upload(content: object, name: object = name) -> dict[str, object]:
        return {"upload": [[name, content], *others]}

    changes: dict[str, dict[str, object]] = {
        "with NaN": upload(np.append(vector[1:], np.float32(np.nan)).tobytes()),
        "large": upload((vector * 1000).tobytes()),
        "long": upload(content + b"\0\0\0\0"),
        "of numbers": upload(vector.tolist()),
        "of another name": upload(content, "relationships"),
        "of a number for a name": upload(content, 0),
        "with one more": {"upload": [*answer["upload"], ["relationships", content]]},
        "twice": {"upload": [[name, content], *answer["upload"]]},
        "twice at once": {"upload": [[name, content, content], *others]},
        "without a name": {"upload": [content, *others]},
        "by name": {"upload": dict(answer["upload"])},
        "without the first": {"upload": others},
        "empty": {"upload": []},
        "of another round": {"round": 2},
        "of another site": {"site": "south"},
        "with a strange choice": {"selected": ["core 0", "core 7"]},
        "with too many choices": {"selected": ["core 0"] * 5},
        "with a figure above 1": {"after_training": {"validation": measures(1.5), "test": measures(0.5)}},
    }
    return {**answer, **changes[kind]}


@pytest.mark.parametrize(
    ("kind", "reason", "name"),
    [
        ("with NaN", "not finite", "apple"),
        ("large", "norm too large", "apple"),
        ("long", "wrong length", "apple"),
        ("of numbers", "not bytes", "apple"),
        ("of another name", "undeclared vector", "apple"),
        ("of another name", "undeclared vector", "scaffold"),
        ("of a number for a name", "undeclared vector", "apple"),
        ("with one more", "undeclared vector", "apple"),
        ("twice", "malformed", "apple"),
        ("twice at once", "malformed", "apple"),
        ("without a name", "malformed", "apple"),
        ("by name", "malformed", "apple"),
        ("without the first", "incomplete upload", "scaffold"),
        ("empty", "incomplete upload", "scaffold"),
        ("empty", "incomplete upload", "apple"),
        ("of another round", "wrong round", "apple"),
        ("of another site", "wrong sender", "apple"),
        ("with a strange choice", "undeclared vector", "apple"),
        ("with too many choices", "malformed", "apple"),
        ("with a figure above 1", "figure out of range", "apple"),
    ],
)
def test_a_bad_upload_is_rejected_and_the_others_go_on(kind: str, reason: str, name: str, tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    consortium.altered = lambda site, answer: (
        altered_update(answer, kind) if site == "east" and answer.get("upload") and answer["round"] == 1 else answer
    )
    result = consortium.run(small_plan(method=name))
    assert [entry.failures for entry in result.rounds] == [{}, {2: f"east, round 2: rejected: {reason}"}, {}]
    assert [up == 0 for up in result.rounds[1].bytes_up] == [False, False, True, False]


def test_an_upload_where_none_is_due_is_rejected(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    sent: list[object] = []

    def altered(site: str, answer: Message) -> Message:
        if site == "east" and answer.get("upload"):
            sent[:] = answer["upload"]
        return {**answer, "upload": list(sent)} if site == "east" and answer.get("round") == 3 else answer

    consortium.altered = altered
    result = consortium.run(small_plan())  # after whose three rounds there is one exchange more, to evaluate
    assert [entry.failures for entry in result.rounds] == [{}, {}, {2: "east, round 4: rejected: undeclared vector"}]


@pytest.mark.parametrize("odd", [np.array([1, 2]), 10**400, [[[]]], {"a": 1}, "text", {1, 2}, float("nan")], ids=repr)
def test_whatever_a_site_puts_into_a_field_harms_its_own_answer_alone(odd: object, tmp_path: Path) -> None:
    fields = ["site", "round", "upload", "selected", "loss", "after_training", "after_aggregation"]
    consortium = Consortium(tmp_path)

    def altered(site: str, answer: Message) -> Message:
        return {**answer, fields[answer["round"]]: odd} if site == "east" and answer.get("upload") else answer

    consortium.altered = altered
    result = consortium.run(small_plan(rounds=7))
    assert [set(entry.failures) for entry in result.rounds] == [{2}] * 7


def test_a_site_says_of_its_errors_no_more_than_a_category(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    worker = consortium.workers["east"]

    def broken(message: Message) -> Message:
        raise ValueError("patient 4711 has a secret")

    consortium.altered = lambda site, answer: answer
    worker._round = broken  # type: ignore[method-assign]
    result = consortium.run(small_plan())
    assert [entry.failures[2] for entry in result.rounds[:2]] == ["east, round 1: error", "east, round 2: error"]


def test_words_of_a_hostile_site_do_not_reach_the_metrics(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    said = {"site": "east", "failure": "<script>alert(1)</script>" * 1000}
    consortium.altered = lambda site, answer: said if site == "east" and "upload" in answer else answer
    with pytest.raises(RunFailed, match=r"east .unknown."):  # at the start already
        consortium.run(small_plan())


@pytest.fixture
def worker(tmp_path: Path) -> SiteWorker:
    """A site that has been told what the federation is."""
    consortium = Consortium(tmp_path)
    consortium.run(small_plan(), stop_after=1)
    return consortium.workers["north"]


def download(**changes: object) -> dict[str, object]:
    good = torch.zeros(6 * 200 + 200 + 200 * 3 + 3).numpy().tobytes()
    return {"what": "round", "round": 1, "vectors": [["core 1", good]], **changes}


@pytest.mark.parametrize(
    ("message", "category"),
    [
        (download(round=4), "malformed"),
        (download(round=-1), "malformed"),
        (download(round="1"), "malformed"),
        (download(vectors=[["core 4", b""]]), "undeclared vector"),
        (download(vectors=[["core 1", b""], ["core 1", b""]]), "malformed"),
        (download(vectors=[["core 1", b"1234"]]), "wrong length"),
        (download(vectors=[["core 1", np.full(2003, np.inf, "<f4").tobytes()]]), "not finite"),
        (download(vectors=[["core 1", np.full(2003, 1e30, "<f4").tobytes()]]), "norm too large"),
        (download(vectors=[["core 1", "text"]]), "not bytes"),
        (download(vectors={"core 1": b""}), "malformed"),
        ({"what": "shell"}, "unknown message"),
        ({}, "unknown message"),
        ({"what": "enrol", "plan": "{}", "orchard": orchard.__version__}, "refused by the site - its log says why"),
    ],
)
def test_a_site_rejects_what_was_not_agreed(worker: SiteWorker, message: Message, category: str) -> None:
    answer = dict(worker.handle(message))
    assert answer.pop("orchard", orchard.__version__) == orchard.__version__
    assert answer == {"site": "north", "failure": category}


def test_a_sites_log_says_in_one_line_why_it_takes_no_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    consortium = Consortium(tmp_path)
    (tmp_path / "north" / "data.npz").unlink()
    with pytest.raises(RunFailed, match=r"not there: north \(refused by the site - its log says why\)$"):
        consortium.run(small_plan())
    assert f"this site takes no part: {tmp_path / 'north' / 'data.npz'}: no such file" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_site_imports_no_network_that_it_does_not_allow(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    with pytest.raises(RunFailed, match=r"north .model not allowed here."):
        consortium.run(small_plan(model="antigravity:fly"))


def test_a_site_follows_the_plan_that_was_signed_and_no_other(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    signed = small_plan().to_json()
    consortium.workers["north"].signed = signed
    with pytest.raises(RunFailed, match=r"north .not the signed plan."):
        consortium.run(small_plan(epochs=1000))
    assert len(consortium.run(small_plan()).rounds) == 3


# --- Going on ---


def test_a_site_goes_on_with_the_data_it_began_with_and_no_other(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    consortium.run(small_plan(), stop_after=1)
    file = consortium.settings["east"].data
    arrays = dict(np.load(file))
    np.savez(file, **{**arrays, "x_train": arrays["x_train"] + 1})
    consortium.restart_sites()
    result = consortium.run(small_plan())
    assert result.rounds[1].failures == {2: "east, round 2: data changed"}


def test_budgeted_apple_on_sites(tmp_path: Path) -> None:
    budget = method("apple", budget=2)
    together = orchard.run(small_experiment(method=budget, rounds=5), small_arrays())
    consortium = Consortium(tmp_path)
    consortium.run(small_plan(method=budget, rounds=5), stop_after=2)
    consortium.restart_sites()
    assert figures(consortium.run(small_plan(method=budget, rounds=5))) == figures(together)
    assert same_models(consortium, together)
