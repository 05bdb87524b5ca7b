"""A result as people look at it in Python."""

import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

import orchard
from helpers import method, small_arrays, small_run
from orchard.runs.figures import strongest_helpers
from orchard.runs.result import Result

mpl.use("agg")


@pytest.fixture(scope="module")
def result() -> Result:
    return small_run(method=method("apple", initial="shared"))


def test_a_data_frame_has_a_row_for_every_round_client_and_moment(result: Result) -> None:
    frame = result.to_pandas()
    assert list(frame.columns[:4]) == ["round", "client", "moment", "loss"]
    assert list(frame.columns[4:]) == [
        *(f"validation {name}" for name in result.task.measures),
        *(f"test {name}" for name in result.task.measures),
    ]
    assert len(frame) == 3 * 4 * 2
    trained = frame[frame.moment == "after_training"].pivot(index="round", columns="client", values="test accuracy")
    np.testing.assert_array_equal(trained.to_numpy(dtype=float), result.scores())


def test_clients_that_were_absent_have_empty_cells() -> None:
    result = small_run(method="fedavg")
    result.rounds[1].after_training[2] = None
    row = result.to_pandas().query("round == 1 and client == 'client 2' and moment == 'after_training'")
    assert math.isnan(float(row["test accuracy"].iloc[0]))


def test_a_plot_has_a_line_for_each_client_and_one_for_the_mean(result: Result) -> None:
    axes = result.plot()
    *clients, mean = axes.get_lines()
    assert np.allclose(np.array([line.get_ydata() for line in clients], dtype=float), 100 * result.scores().T)
    np.testing.assert_allclose(np.asarray(mean.get_ydata()), 100 * result.scores().mean(axis=1))
    assert axes.get_ylabel() == "test accuracy in %"
    assert all(tick == round(tick) for tick in axes.get_xticks()), "there are no half rounds"
    assert result.plot(axes) is axes


def test_a_notebook_shows_clients_lines_and_relationships(result: Result) -> None:
    page = result._repr_html_()
    assert "method apple" in page
    assert page.count("<polyline") == 4
    assert page.count("background:rgba") == 16
    assert f'title="client 1 from client 3: {result.relationships[-1, 1, 3]:.2f}"' in page  # type: ignore[index]
    assert len(page) < 10_000


def test_who_helps_most_is_named_only_if_it_is_one(result: Result) -> None:
    matrix = np.array([[0.6, 0.2, 0.199, 0.001], [0.1, 0.5, 0.4, 0.0], [0.0, 0.0, 1.0, 0.0], [-0.2, -0.1, 0.0, 1.3]])
    helpers = strongest_helpers(matrix, ["a", "b", "c", "d"])
    assert helpers == [["b", "c"], ["c"], [], []]
    clients = [replace(client, strongest_helpers=names) for client, names in zip(result.clients, helpers, strict=True)]
    assert [client.helped_by for client in clients] == ["2 alike", "c", "nobody", "nobody"]


def test_names_of_sites_cannot_change_the_page() -> None:
    names = ["<script>", 'a"b', "c&d", "e"]
    arrays = dict(zip(names, small_arrays(), strict=True))
    page = orchard.run(data=arrays, model="mlp", rounds=1, batch_size=8, method="graft")._repr_html_()
    assert "<script>" not in page
    assert 'title="a"b' not in page
    assert "&lt;script&gt;" in page


def test_a_method_without_relationships_shows_none() -> None:
    page = small_run(method="separate")._repr_html_()
    assert "background:rgba" not in page
    assert "helped most by" not in page


def test_a_terminal_shows_a_bar_and_a_file_nothing(tmp_path: Path) -> None:
    code = "import orchard; orchard.run(dataset='digits', method='separate', model='mlp', rounds=2, epochs=1)"
    quiet = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert quiet.stdout + quiet.stderr == ""
    terminal = f"import pty, sys; sys.exit(pty.spawn([sys.executable, '-c', {code!r}]))"
    shown = subprocess.run([sys.executable, "-c", terminal], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert re.search(r"separate .*2/2 rounds {2}mean [\d.]+ % {2}worst [\d.]+ % \(client \d\)", shown.stdout)
