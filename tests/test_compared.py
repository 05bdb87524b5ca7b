"""Methods compared from Python, and the pages that results write."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import matplotlib as mpl
import numpy as np
import pytest

import orchard
from helpers import SMALL, small_arrays, small_run
from orchard.cli.tables import relationship_table
from orchard.methods.apple import Apple
from orchard.methods.separate import Separate
from orchard.runs.listing import found_runs

mpl.use("agg")
QUICK = {key: value for key, value in SMALL.items() if key != "dataset"}


@pytest.fixture(scope="module")
def compared() -> orchard.Compared:
    return orchard.compare(["separate", "fedavg-ft", "fedavg-local"], small_arrays(), seeds=[1, 2], **QUICK)


def test_it_is_said_in_a_line_and_in_a_notebook_as_a_table(compared: orchard.Compared) -> None:
    best = compared.best
    said = f"<Compared: 3 methods, 2 seeds, 4 clients, best {best.label}, accuracy {best.bmcta} %>"
    assert repr(compared) == said
    page = compared._repr_html_()
    assert page.count("<tr>") == 4
    assert str(best.bmcta) in page
    assert len(page) < 5_000


def test_it_has_the_figures_of_single_runs(compared: orchard.Compared) -> None:
    alone = [small_run(method="separate", seed=seed) for seed in (1, 2)]
    assert compared.rows[0].bmcta.mean == np.mean([result.bmcta for result in alone])
    frame = compared.to_pandas()
    assert list(frame.columns[:4]) == ["method", "seed", "round", "client"]
    assert len(frame) == 3 * 2 * 3 * 4
    second = frame[(frame.method == "separate") & (frame.seed == 2)].pivot(
        index="round", columns="client", values="test accuracy"
    )
    np.testing.assert_array_equal(second.to_numpy(dtype=float), alone[1].scores())


def test_a_method_that_anothers_run_reports_is_shown_at_its_own_moment(compared: orchard.Compared) -> None:
    frame = compared.to_pandas()
    local = frame[(frame.method == "fedavg-local") & (frame.seed == 1)]["test accuracy"].to_numpy(dtype=float)
    host = compared.result("fedavg-ft", seed=1)
    np.testing.assert_array_equal(local.reshape(3, 4), host.scores(moment="after_training"))


def test_a_plot_has_a_line_and_a_band_for_each_method(compared: orchard.Compared) -> None:
    axes = compared.plot()
    assert [line.get_label() for line in axes.get_lines()] == compared.methods
    expected = np.mean([compared.measured["separate", seed].curve for seed in (1, 2)], axis=0)
    np.testing.assert_allclose(np.asarray(axes.get_lines()[0].get_ydata()), 100 * expected)
    assert len(axes.collections) == 3


def test_its_models_are_at_hand_as_long_as_it_is(compared: orchard.Compared) -> None:
    result = compared.result("separate")
    expected = small_run(method="separate", seed=1)
    for i in range(4):
        mine, theirs = result.personalised(i).state_dict(), expected.personalised(i).state_dict()
        assert all(mine[name].equal(theirs[name]) for name in theirs)


def test_what_was_not_compared_is_said(compared: orchard.Compared) -> None:
    with pytest.raises(orchard.UserError, match=r"^graft, seed 1: was not compared; there are separate, fedavg-ft"):
        compared.result("graft")
    with pytest.raises(orchard.UserError, match=r"^methods = 'graft': expected a list"):
        orchard.compare("graft")
    with pytest.raises(orchard.UserError, match=r"^method\.name = 'grafd': unknown method; did you mean 'graft'\?$"):
        orchard.compare(["grafd"])
    with pytest.raises(orchard.UserError, match=r"^apple:mu: expected NAME:PARAMETER=VALUE, e\.g\. apple:mu=0$"):
        orchard.compare(["apple:mu"])


@pytest.mark.filterwarnings("ignore:method.name = 'homemade':orchard.errors.ResumeWarning")
def test_a_method_of_ones_own_is_found_again_in_the_same_process() -> None:
    class Own(Separate):
        name: Literal["homemade"] = "homemade"  # type: ignore[assignment]

    compared = orchard.compare([Own(), "separate"], small_arrays(), **QUICK)
    assert compared.result("homemade").bmcta == compared.result("separate").bmcta
    assert orchard.Experiment.model_validate({"method": "homemade"}).method == Own()


def test_clients_with_names_of_their_own_are_numbered_as_the_columns_are(compared: orchard.Compared) -> None:
    named = replace(compared.comparison, clients=["client 0", "north", "south", "client 3"])
    labels = list(map(str, relationship_table(named, np.eye(4).tolist()).columns[0].cells))
    assert labels == ["client 0", "1: north", "2: south", "client 3"]


def test_runs_in_a_folder_are_reused(tmp_path: Path) -> None:
    first = orchard.compare([Apple(mu=0.5)], small_arrays(), out=tmp_path, **QUICK)
    assert first.methods == ["apple:mu=0.5"]
    (run,) = found_runs([tmp_path])
    before = (run / "metrics.jsonl").stat().st_mtime_ns
    again = orchard.compare(["apple:mu=0.5"], small_arrays(), out=str(tmp_path), **QUICK)
    assert found_runs([tmp_path]) == [run]
    assert (run / "metrics.jsonl").stat().st_mtime_ns == before
    assert again.best.bmcta == first.best.bmcta


# --- Pages ---


def test_a_comparison_writes_its_page(compared: orchard.Compared, tmp_path: Path) -> None:
    assert compared.report(tmp_path / "page.html") == tmp_path / "page.html"
    text = (tmp_path / "page.html").read_text("utf-8")
    assert "Of the 4 methods compared here" in text  # fedavg is in the run of fedavg-ft, too
    assert '"by_class":[[' in text


def test_a_run_that_is_kept_writes_the_page_of_its_folder(tmp_path: Path) -> None:
    small_run(out=tmp_path / "run").report(tmp_path / "a.html")
    orchard.load(str(tmp_path / "run")).report(str(tmp_path / "b.html"))
    orchard.write_report([str(tmp_path / "run")], tmp_path / "c.html")
    a, b, c = ((tmp_path / f"{name}.html").read_bytes() for name in "abc")
    assert a == b == c


def test_a_run_that_is_kept_nowhere_writes_its_page_too(tmp_path: Path) -> None:
    result = small_run()
    result.report(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text("utf-8")
    assert f"{100 * result.bmcta:.1f} %" in text
    assert '"folders":[]' in text


# --- What is wrong is said in Orchard's words ---


def test_a_client_has_a_number_or_a_name(tmp_path: Path) -> None:
    result = small_run(rounds=1, out=tmp_path / "run")
    one, other = (result.personalised(client).state_dict() for client in (2, "client 2"))
    assert all(one[name].equal(other[name]) for name in one)
    for wrong in (4, -1, "north"):
        with pytest.raises(
            orchard.UserError, match=rf"^client = {wrong!r}: no such client; there are 0 to 3: client 0, "
        ):
            result.personalised(wrong)
    result.models = ()
    with pytest.raises(orchard.UserError, match=r"orchard\.load"):
        result.personalised(0)


def test_an_unknown_part_moment_or_measure_is_named() -> None:
    result = small_run(rounds=1)
    with pytest.raises(orchard.UserError, match=r"^measure = 'auc': is none; did you mean 'auroc'"):
        result.scores(measure="auc")
    with pytest.raises(orchard.UserError, match=r"^part = 'tests': is none; did you mean 'test'"):
        result.scores("tests")  # type: ignore[arg-type]
    with pytest.raises(orchard.UserError, match=r"^moment = 'trained': is none; "):
        result.scores(moment="trained")  # type: ignore[arg-type]


def test_settings_say_how_they_are_changed() -> None:
    with pytest.raises(orchard.UserError, match=r"^rounds: cannot be changed in place; make a copy: "):
        orchard.Experiment().rounds = 3
    with pytest.raises(orchard.UserError, match=r"^experiment: expected an Experiment, not str; orchard\.load"):
        orchard.run("my.toml")  # type: ignore[arg-type]


def test_a_dataset_may_be_a_path(tmp_path: Path) -> None:
    with pytest.raises(orchard.UserError, match=r"nowhere\.npz: no such file"):
        orchard.run(dataset=tmp_path / "nowhere.npz")
