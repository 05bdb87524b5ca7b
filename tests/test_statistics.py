"""Statistics before training: what a site tells, what it withholds, and what does not fit together."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from helpers import classes
from orchard.data.client_arrays import ClientArrays
from orchard.data.statistics import Numbers, Statistics, column_told, in_tens, numbers_told, statistics
from orchard.errors import RunFailed
from orchard.experiment import load_experiment
from orchard.sites.coordinator import engine_for
from orchard.sites.plan import Plan
from orchard.sites.statistics import comparison, misfits, read_told, rehearsed
from orchard.sites.trail import Trail
from orchard.tasks.regression import Regression
from processes import orchard_command
from sites import SITES, Consortium, kit_of_north, small_plan, write_npz

pd = pytest.importorskip("pandas")

TABLE = {"target": "outcome", "columns": {"age": "number", "sex": ["f", "m"], "dose": "number"}}


def patients(count: int = 60) -> Any:
    """Ages 20 to 79; every third is a man; seven died; no dose but for five."""
    age = 20.0 + np.arange(count)
    return pd.DataFrame(
        {
            "age": np.where(np.arange(count) < 15, np.nan, age),
            "sex": np.where(np.arange(count) % 3 == 0, "m", "f"),
            "dose": np.where(np.arange(count) < 5, 100.0, 0.0),
            "outcome": np.where(np.arange(count) < 7, "died", "lived"),
        }
    )


def told_of(frame: Any, home: Path, **table: object) -> Statistics:
    file = home / "patients.csv"
    frame.to_csv(file, index=False)
    experiment = load_experiment(overrides={"dataset": "x", "table": {**TABLE, **table}, "model": "mlp"})
    return statistics(file, "north", classes(2).__class__(("lived", "died")), experiment)


# --- What a site tells ---


@pytest.mark.parametrize(("count", "told"), [(0, 0), (1, 0), (9, 0), (10, 10), (19, 10), (20, 20), (1234, 1230)])
def test_counts_are_told_in_tens(count: int, told: int) -> None:
    assert in_tens(count) == told


def test_a_table_is_told_by_its_columns(tmp_path: Path) -> None:
    told = told_of(patients(), tmp_path)
    assert told.samples == 60
    assert told.classes == {"lived": 50, "died": 0}  # 53 and 7
    age, sex, dose = told.columns
    assert age.missing == 10  # 15
    assert age.numbers == Numbers(count=40, mean=57.0, deviation=13.0)  # 35 to 79: mean 57, √((45² − 1)/12) = 12.99
    assert sex.levels == {"f": 40, "m": 20}
    assert dose.numbers == Numbers(count=60, mean=None, deviation=None)  # five patients have got any


def test_means_that_tell_of_few_rows_are_withheld() -> None:
    def mean(*values: float) -> float | None:
        return numbers_told(np.array(values, float)).mean

    assert mean(*range(9)) is None
    assert mean(*range(10)) is None  # nine differ from the commonest, whichever that is
    assert mean(*range(11)) == 5
    assert mean(*[3.0] * 50) is None  # every one's value
    assert mean(*[0.0] * 91, *[1.0] * 9) is None  # of two values, the mean tells how many have each
    assert mean(*[0.0] * 90, *[1.0] * 10) == 0.1
    assert mean(*[0.0] * 80, *[1.0] * 11, *[2.0] * 9) is None  # of three, mean and deviation do
    assert mean(*[0.0] * 80, *[1.0] * 10, *[2.0] * 10) == 0.3
    assert mean(*[np.nan] * 100, *range(9)) is None


def test_figures_have_three_digits_of_the_deviation() -> None:
    numbers = numbers_told(np.array([1000.12345 + k for k in range(11)]))
    assert numbers == Numbers(count=10, mean=1005.12, deviation=3.16)  # √10
    assert numbers_told(np.linspace(0, 1e6, 11)).deviation == 316000


def test_values_that_are_not_as_agreed_are_counted_not_shown(tmp_path: Path) -> None:
    frame = patients()
    frame["sex"] = frame["sex"].replace({"m": "male"})
    frame["age"] = frame["age"].astype(object)
    frame.loc[:11, "age"] = "old"
    told = told_of(frame.drop(columns="dose"), tmp_path, columns={**TABLE["columns"], "when": "number"})  # type: ignore[dict-item]
    age, sex, dose, _ = told.columns
    assert (age.others, age.missing) == (10, 0)  # 12 are no numbers, 3 are missing
    assert (sex.others, sex.levels) == (20, {"f": 40, "m": 0})
    assert dose.problem == "absent"
    assert "male" not in told.model_dump_json()
    dates = column_told("when", pd.Series(pd.date_range("2026-01-01", periods=60)), "number")
    assert dates.problem == "other type"


def test_other_classes_are_counted(tmp_path: Path) -> None:
    frame = patients()
    frame.loc[20:, "outcome"] = "moved"
    told = told_of(frame, tmp_path)
    assert (told.classes, told.others) == ({"lived": 10, "died": 0}, 40)  # 13, 7, 40


def test_no_question_chooses_rows(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((200, 3), np.float32), y=np.arange(200) % 4)
    answers = [
        statistics(
            tmp_path / "data.npz",
            "north",
            classes(4),
            load_experiment(
                overrides={
                    "dataset": "x",
                    "model": "mlp",
                    "fraction": share,
                    "partition": {"name": "iid", "seed": seed},
                }
            ),
        )
        for share, seed in ((1.0, 0), (0.5, 0), (0.5, 1))
    ]
    assert answers[0].classes == {str(k): 50 for k in range(4)}
    assert answers[0].shape == (3,)
    assert answers[0] == answers[1] == answers[2]


def test_numbers_to_predict_are_told_as_mean_and_deviation(tmp_path: Path) -> None:
    y = np.arange(60, dtype=np.float32)
    np.savez(tmp_path / "data.npz", x=np.zeros((60, 3), np.float32), y=y)
    task = Regression(("stay",), (0.0,), (1.0,))
    experiment = load_experiment(overrides={"dataset": "x", "model": "mlp", "task": "regression"})
    told = statistics(tmp_path / "data.npz", "north", task, experiment)
    assert told.targets == {"stay": Numbers(count=60, mean=29.5, deviation=17.3)}
    assert told.classes == {}


# --- A site and its server ---


def asked(federation: Consortium, plan: Plan) -> tuple[dict[str, Statistics], dict[str, str]]:
    engine = engine_for(plan, SITES, federation.carry)
    told = engine.statistics()
    return told, engine.reasons


def stats_plan(**changes: object) -> Plan:
    plan = small_plan("stats")
    return Plan.model_validate({**plan.model_dump(), "purpose": "statistics", **changes})


def many(count: int = 100) -> list[ClientArrays]:
    draw = np.random.default_rng(0)
    return [
        ClientArrays(draw.normal(size=(count, 6)).astype(np.float32), np.arange(count) % 3) for _ in range(len(SITES))
    ]


def allowed(home: Path, *sites: str) -> Consortium:
    federation = Consortium(home, many())
    for site in sites:
        federation.settings[site] = federation.settings[site].changed(statistics=True)
    return federation


def test_a_site_tells_only_if_it_allows_that(tmp_path: Path) -> None:
    federation = allowed(tmp_path, "north", "east")
    told, reasons = asked(federation, stats_plan())
    assert {site: one.classes for site, one in told.items()} == {
        site: {"a": 30, "b": 30, "c": 30} for site in ("north", "east")
    }
    assert reasons == dict.fromkeys(("south", "west"), "statistics not allowed here")
    entries = [entry for _, entry in Trail(federation.settings["north"].records).entries()]
    assert entries[-1] is not None
    assert (entries[-1]["run"], entries[-1]["what"]) == ("stats", "statistics")
    assert entries[-1]["message"]["statistics"]["classes"] == {"a": 30, "b": 30, "c": 30}


def test_the_same_data_give_the_same_answer_and_changed_data_none(tmp_path: Path) -> None:
    federation = allowed(tmp_path, *SITES)
    first, _ = asked(federation, stats_plan())
    again, _ = asked(federation, stats_plan())
    assert first == again
    write_npz(federation.settings["north"].data, many(101)[0])
    told, reasons = asked(federation, stats_plan())
    assert (set(told), reasons) == (set(SITES[1:]), {"north": "data changed since statistics"})
    (federation.settings["north"].records / "statistics.json").unlink()  # somebody at the site has decided
    assert set(asked(federation, stats_plan())[0]) == set(SITES)


def test_what_cannot_be_told_does_not_bind_the_site(tmp_path: Path) -> None:
    federation = allowed(tmp_path, "north")
    held = federation.settings["north"].data.read_bytes()
    federation.settings["north"].data.write_bytes(b"no array")
    assert asked(federation, stats_plan())[1]["north"] == "refused by the site - its log says why"
    federation.settings["north"].data.write_bytes(held)
    assert set(asked(federation, stats_plan())[0]) == {"north"}


def test_a_plan_is_for_one_purpose(tmp_path: Path) -> None:
    federation = allowed(tmp_path, *SITES)
    assert set(asked(federation, small_plan())[1].values()) == {"not what the plan is for"}
    with pytest.raises(RunFailed, match=r"north \(not what the plan is for\)"):
        federation.run(stats_plan())


@pytest.mark.parametrize(
    "change",
    [
        {"samples": 61},
        {"samples": -10},
        {"classes": {"a": 30, "b": 30}},
        {"classes": {"a": 30, "b": 30, "d": 30}},
        {"note": "patient 4711"},
        {"columns": [{"name": "age", "problem": "patient 4711"}]},
    ],
)
def test_the_server_takes_nothing_but_figures(change: Mapping[str, object], tmp_path: Path) -> None:
    federation = allowed(tmp_path, *SITES)

    def altered(site: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**answer, "statistics": {**answer["statistics"], **change}} if site == "north" else answer

    federation.altered = altered
    told, reasons = asked(federation, stats_plan())
    assert set(told) == set(SITES[1:])
    assert reasons["north"] in ("malformed", "wrong classes")


# --- What does not fit ---


def one(**changes: Any) -> Statistics:
    values = {"samples": 100, "classes": {"a": 60, "b": 40}, **changes}
    return Statistics.model_validate(values)


def column(name: str, mean: float, deviation: float, **changes: Any) -> dict[str, Any]:
    return {"name": name, "numbers": {"count": 100, "mean": mean, "deviation": deviation}, **changes}


def test_data_that_fit_together_give_no_words() -> None:
    same = one(columns=[column("age", 50.0, 10.0)])
    assert not list(misfits({"north": same, "south": same}))
    said = list(comparison({"north": same, "south": same}, {}))
    assert said[1].split() == ["site", "samples", "a", "b"]
    assert said[2].split() == ["north", "100", "60", "40"]
    assert said[-1] == "Nothing was found that does not fit."


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"classes": {"a": 100, "b": 0}}, "south: holds fewer than 10 of, or none: b"),
        ({"others": 30}, "south: 30 targets are not as agreed, e.g. other names of classes"),
        ({"columns": [{"name": "age", "problem": "absent"}]}, "south: column 'age' is absent"),
        ({"columns": [column("age", 50.0, 10.0, others=20)]}, "south: 20 values of 'age' are not as agreed"),
        ({"columns": [column("age", 50.0, 10.0, missing=60)]}, "south: 'age' is missing in most rows"),
    ],
)
def test_what_does_not_fit_is_named(other: Mapping[str, Any], said: str) -> None:
    fits = {"columns": [column("age", 50.0, 10.0)]}
    assert said in list(misfits({"north": one(**fits), "south": one(**{**fits, **other})}))


def test_another_unit_is_noticed() -> None:
    metres, centimetres = (one(columns=[column("height", *f)]) for f in ((1.7, 0.1), (170.0, 10.0)))
    (said,) = misfits({"north": centimetres, "south": metres, "east": centimetres})
    assert said == "south: 'height' has mean 1.7 and deviation 0.1, elsewhere about 170 and 10: another unit?"


def test_samples_of_other_shapes_are_noticed() -> None:
    (said,) = misfits({"north": one(shape=[1, 28, 28]), "south": one(shape=[3, 28, 28])})
    assert said == "samples differ in shape: north 1×28×28, south 3×28×28"


def test_what_the_coordinator_reads_is_checked() -> None:
    plan = stats_plan()
    fine = {"samples": 100, "classes": {"a": 50, "b": 40, "c": 0}}
    others = {"samples": 100, "classes": {"a": 50, "b": 40, "x": 0}}
    text = json.dumps({"sites": {"north": fine, "south": others, "mars": fine}, "reasons": {"west": "ab\x1b[2Jsent"}})
    told, reasons = read_told(text, plan)
    assert list(told) == ["north"]
    assert reasons == {"south": "malformed", "east": "malformed", "west": "ab [2Jsent"}
    with pytest.raises(RunFailed, match="make no sense"):
        read_told('{"sites": {"north": {"samples": "many"}}, "reasons": {}}', plan)


# --- The site's rehearsal ---


def test_a_site_sees_before_what_it_would_tell(tmp_path: Path) -> None:
    Consortium(tmp_path, many())
    kit, experiment = kit_of_north(tmp_path / "kit"), tmp_path / "experiment.toml"
    experiment.write_text(tomli_w.dumps({"model": "mlp", "deploy": {"classes": ["a", "b", "c"]}}))
    done = orchard_command("site", "stats", str(kit), str(experiment), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "This site would tell, of all its data, counts in tens (rounded down):",
        "  samples: 100",
        "  shape of a sample: 6",
        "  class a: 30",
        "  class b: 30",
        "  class c: 30",
        "It tells nothing of this unless its site.toml says: statistics = true",
    ]
    assert not (tmp_path / "north" / "records").exists()
    (kit / "local" / "site.toml").write_text(
        'data = "../north/data.npz"\nrecords = "../north/records"\nstatistics = true\n'
    )
    assert len(list(rehearsed(kit, experiment))) == 6
    (tmp_path / "north" / "records" / "statistics.json").write_text('{"data": "of last year"}')
    assert "its data have changed since it told" in list(rehearsed(kit, experiment))[-1]
