"""What server and sites must agree on before a run: the version of Orchard, and the plan."""

import json
from pathlib import Path

import pytest

import orchard
from orchard.engines.flare.messages import Message
from orchard.errors import RunFailed, UserError
from orchard.sites.plan import FORMAT, Plan, make_plan
from sites import SITES, Consortium, small_plan


def in_records(site: Path) -> list[str]:
    return sorted(path.name for path in (site / "records").rglob("*") if path.is_file())


# --- Versions ---


def test_a_site_that_runs_another_orchard_does_not_take_part(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)

    def another(site: str, answer: Message) -> Message:
        return {**answer, "orchard": "0.1.7"} if site == "east" and "counts" in answer else answer

    consortium.altered = another
    reason = f"runs Orchard 0.1.7, the server {orchard.__version__}: install the same everywhere"
    with pytest.raises(RunFailed) as failed:
        consortium.run(small_plan())
    assert str(failed.value) == f"3 sites take part, 4 are needed; not there: east ({reason})"
    assert in_records(tmp_path / "east") == [".sent.jsonl.lock", "sent.jsonl"]  # what it said, and no state of a round

    consortium.altered = lambda site, answer: answer
    consortium.run(small_plan(), stop_after=1)
    consortium.altered = another  # updated while the run was stopped: the others go on
    result = consortium.run(small_plan())
    assert [entry.failures for entry in result.rounds[1:2]] == [{2: f"east, round 2: {reason}"}]


@pytest.mark.parametrize("said", [None, 2, "9.9; rm -rf /", "9" * 33], ids=repr)
def test_a_site_that_does_not_say_which_orchard_it_runs_does_not_take_part(said: object, tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    consortium.altered = lambda site, answer: {**answer, "orchard": said} if site == "east" else answer
    with pytest.raises(RunFailed, match=r"east \(runs Orchard of unknown version, the server .*\)$"):
        consortium.run(small_plan())


def test_sites_do_not_follow_a_server_that_runs_another_orchard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("orchard.engines.flare.engine.__version__", "0.9.0")
    own = orchard.__version__
    with pytest.raises(RunFailed) as failed:
        Consortium(tmp_path).run(small_plan())
    for site in SITES:
        assert f"{site} (runs Orchard {own}, the server 0.9.0: install the same everywhere)" in str(failed.value)
    assert f"the server runs Orchard 0.9.0, this site {own}" in caplog.text
    assert in_records(tmp_path / "east") == [".sent.jsonl.lock", "sent.jsonl"]  # what it said, and no state of a round


def test_a_server_names_the_orchard_of_a_site_that_does_not_follow_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchard.sites.worker.__version__", "0.9.0")
    reason = f"runs Orchard 0.9.0, the server {orchard.__version__}: install the same everywhere"
    with pytest.raises(RunFailed, match=f"north .{reason}., south"):
        Consortium(tmp_path).run(small_plan())


# --- Plans ---


def test_a_plan_names_no_path(tmp_path: Path) -> None:
    text = small_plan().to_json().replace('"arrays"', json.dumps(str(tmp_path)))
    with pytest.raises(UserError, match="a name for people, not a path"):
        Plan.from_json(text)


@pytest.mark.parametrize(
    ("format", "found", "advice"),
    [
        (None, 1, "use the Orchard that wrote it, or start again"),
        (1, 1, "use the Orchard that wrote it, or start again"),
        (FORMAT + 1, FORMAT + 1, "update Orchard"),
    ],
)
def test_a_plan_of_another_format_is_refused_in_one_sentence(format: int | None, found: int, advice: str) -> None:
    values = json.loads(small_plan().to_json())
    assert values.pop("format") == FORMAT
    values["experiment"]["of another time"] = 1  # whatever else has changed, this is said
    text = json.dumps(values if format is None else {**values, "format": format})
    with pytest.raises(UserError) as refused:
        Plan.from_json(text)
    reads = f"Orchard {orchard.__version__} reads format {FORMAT}"
    assert str(refused.value) == f"run: is a plan of format {found}, but {reads}; {advice}"


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", '{"format": 2}', '{"format": "2"}', "[" * 100_000])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="plan"):
        Plan.from_json(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[deploy]\nclasses = ['a']", "deploy.classes: at least two, the first being 0"),
        ("[deploy]\nclasses = ['a', 'b']\nmin_sites = 7", "deploy.min_sites = 7: there are 4 sites"),
        (
            "method.name = 'apple'\nmethod.mux = 3\n[deploy]\nclasses = ['a', 'b']\nround_seconds = 'x'",
            "method.mux: unknown key of apple; did you mean 'mu'?\n"
            "deploy.round_seconds = 'x': input should be a valid integer",
        ),
    ],
)
def test_settings_are_named_as_the_coordinator_writes_them(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(text)
    with pytest.raises(UserError) as refused:
        make_plan(file, "run", SITES)
    assert str(refused.value) == f"{file}: {said}"
