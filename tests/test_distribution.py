"""Who holds what, as people see it: any name, any number of clients, any width of terminal."""

import contextlib
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.cells import cell_len
from rich.console import Console

import orchard
from helpers import small_arrays, small_experiment
from orchard.cli.data_tables import class_legend, distribution_tables
from orchard.cli.display import print_result
from orchard.cli.tables import gains_table, rich_table
from orchard.data.client_arrays import ClientArrays, from_arrays
from orchard.data.clients import DataDistribution
from orchard.experiment import Experiment
from orchard.report.distribution import draw_distribution
from orchard.runs.comparison import Comparison, Row, Spread
from orchard.tasks.classification import Classification
from processes import orchard_command

ACCURACY = Classification.measures["accuracy"]
ODD_NAMES = [":smile:", "[red]x", "[/]", "$a_b$", "日本医院"]


def federation(names: Sequence[str], classes: int) -> DataDistribution:
    """Each client holds some of every class, class k + 1 times."""
    y = np.concatenate([np.full(20 * (k + 1), k) for k in range(classes)])
    arrays = [ClientArrays(np.zeros((len(y), 2)), y, np.zeros((len(y), 2)), y, name=name) for name in names]
    return from_arrays(arrays, Experiment(dataset="arrays", clients=len(names))).distribution()


def printed(*things: object, width: int = 400) -> str:
    console = Console(file=StringIO(), width=width)
    for thing in things:
        console.print(thing)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_names_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    spread = Spread(0.5, None)
    rows = [
        Row(label, spread, spread, spread, spread, None, 0, 0, 0, [0.5] * len(ODD_NAMES))
        for label in ("alone", *ODD_NAMES)
    ]
    given = zip(small_arrays(len(ODD_NAMES)), ODD_NAMES, strict=True)
    arrays = [replace(client, name=name) for client, name in given]
    print_result(orchard.run(small_experiment(clients=len(ODD_NAMES), rounds=1), arrays), None)
    for text in (
        capsys.readouterr().out,
        printed(*distribution_tables(federation(ODD_NAMES, 3), 400)),
        printed(rich_table(Comparison(rows, ODD_NAMES, rows[0], ACCURACY))),
        printed(gains_table(Comparison(rows, ODD_NAMES, rows[0], ACCURACY), rows[0])),
    ):
        first_words = [line.split()[0] for line in text.splitlines()]
        for name in ODD_NAMES:
            assert name in first_words
    assert all(text.splitlines()[0].count(name) for name in ODD_NAMES)  # the methods' names above the gains


@pytest.mark.parametrize("width", [40, 80, 400])
def test_a_table_that_is_too_wide_goes_on_below(width: int) -> None:
    data = federation(["north", "a hospital whose name is longer than any table can bear"], 30)
    tables = distribution_tables(data, width)
    lines = printed(*tables, width=width).splitlines()
    assert len(lines) == 3 * len(tables)
    assert max(map(cell_len, lines)) <= width
    assert "…" not in " ".join(line for line in lines if not line.startswith("a hospital"))
    headings = [word for line in lines[::3] for word in line.split()[1:]]
    assert headings == [*map(str, range(30)), "all", "train", "validation", "test"]
    numbers = [int(word) for line in lines[1::3] for word in line.split()[1:]]
    assert numbers[:30] == [40 * (k + 1) for k in range(30)]
    assert numbers[30] == sum(numbers[:30]) == sum(numbers[31:])


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (12, 11), (100, 10), (1000, 10), (2, 300)])
def test_a_figure_stays_within_a_page(tmp_path: Path, clients: int, classes: int) -> None:
    file = tmp_path / "who.png"
    draw_distribution(federation([f"client {i}" for i in range(clients)], classes), "all of them", file)
    with Image.open(file) as drawn:
        inches = [side / 160 for side in drawn.size]
    natural = 3.4 + 0.42 * (clients + classes), 2 + 0.34 * max(clients, classes)
    assert inches == pytest.approx([min(natural[0], inches[0]), min(natural[1], 18)], abs=0.01)
    assert inches[0] <= 3.4 + 2 * 16


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_any_name_can_be_drawn_without_a_word_on_stderr(tmp_path: Path, suffix: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_distribution(federation(ODD_NAMES, 3), "日本 $x_", tmp_path / f"who.{suffix}")
    assert (tmp_path / f"who.{suffix}").stat().st_size > 1000


def test_folders_whose_names_are_not_text_are_shown(tmp_path: Path) -> None:
    clients = (b"north \xff", b"so\x1b[31muth", ":smile: 医院".encode())
    for client in clients:
        for name in (b"benign\n", b"\xe4rg"):
            folder = os.fsencode(tmp_path / "hospitals") + b"/" + client + b"/" + name
            os.makedirs(folder)  # noqa: PTH103 (a Path would have to be text)
            for k in range(10):
                Image.fromarray(np.full((28, 28), 20 * k, np.uint8)).save(os.fsdecode(folder) + f"/{k}.png")
    shown = orchard_command("data", "show", "hospitals", cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    for text in (r"north \udcff", r"so\x1b[31muth", ":smile: 医院", r"benign\n", r"\udce4rg"):
        assert text in shown.stdout
    assert "\x1b" not in shown.stdout
    assert (tmp_path / "hospitals-given.png").exists()


def test_a_legend_says_what_the_numbers_stand_for() -> None:
    assert class_legend(federation(["north"], 3)) == "classes: 0, 1, 2"


@pytest.mark.parametrize("arguments", ["list", "show digits --partition practical --clients 3"])
def test_eighty_columns_are_enough(tmp_path: Path, arguments: str) -> None:
    terminal, end = os.openpty()
    command = [sys.executable, "-c", "from orchard.cli import main; main()", "data", *arguments.split()]
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=end)
    os.close(end)
    shown = b""
    with contextlib.suppress(OSError):  # Linux's way to say that a terminal was closed
        while piece := os.read(terminal, 4096):
            shown += piece
    os.close(terminal)
    assert process.wait() == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).splitlines()
    table = lines[next(k for k, line in enumerate(lines) if line.startswith(("name  ", "client  "))) :]
    assert max(map(cell_len, table)) <= 80
    assert "…" not in " ".join(table)
