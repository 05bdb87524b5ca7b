"""The command `report`, and the command that a report gives to repeat a run."""

import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from helpers import ROOT
from orchard.cli import app
from orchard.errors import UserError
from orchard.experiment import load_experiment
from orchard.report.command import command_of
from synthetic import SyntheticRun


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    return [SyntheticRun(root / method, method).finish() for method in ("apple", "fedavg-ft", "separate")]


@pytest.mark.parametrize(
    "assignments",
    [
        [],
        [
            "dataset=mnist",
            "partition.name=practical",
            "rounds=160",
            "method=apple",
            "method.mu=0.25",
            "method.budget=3",
        ],
        ["dataset=my file's.npz", "partition.name=column", "partition.key=the hospital", "clients=3", "lr=0.5"],
        ["method.name=fedprox-ft", "partition.alpha=0.1", "partition.seed=7", "batch_size=8", "data_dir=/a b"],
        ["workers=2", "checkpoint_every=3", "out=somewhere"],
    ],
)
def test_the_command_repeats_the_experiment(assignments: list[str]) -> None:
    experiment = load_experiment(assignments=assignments)
    command = command_of(experiment)
    assert command is not None
    words = shlex.split(command)
    assert words[:2] == ["orchard", "run"]
    options = dict(zip(words[2::2], words[3::2], strict=True))
    plain = {key.removeprefix("--"): value for key, value in options.items() if key != "--set"}
    numbers = {key: int(plain.pop(key)) for key in ("clients", "rounds", "seed")}
    settings = [value for key, value in zip(words[2::2], words[3::2], strict=True) if key == "--set"]
    assert load_experiment(overrides={**plain, **numbers}, assignments=settings).identity() == experiment.identity()


def test_only_what_is_not_a_default_is_in_the_command() -> None:
    assert command_of(load_experiment(assignments=["method=apple", "method.mu=0.25"])) == (
        "orchard run --dataset digits --partition dirichlet --clients 8 --method apple --rounds 25 --seed 42 "
        "--set method.mu=0.25"
    )
    assert command_of(load_experiment(overrides={"dataset": "arrays"})) is None


# --- On the command line ---


def test_a_report_of_several_runs_is_one_file(compared: list[Path], tmp_path: Path) -> None:
    file = tmp_path / "all.html"
    made = CliRunner().invoke(app, ["report", *map(str, compared), "-o", str(file)], catch_exceptions=False)
    assert (made.exit_code, made.stdout, made.stderr) == (0, f"written to {file}\n", "")
    text = file.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert not re.findall(r"""(?:src|href)=["'](?!data:,|#)""", text.split("<script")[0])
    assert list(tmp_path.iterdir()) == [file]


def refusal(*arguments: str) -> str:
    with pytest.raises(UserError) as caught:
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    return str(caught.value)


def test_what_cannot_be_shown_is_refused(compared: list[Path], tmp_path: Path) -> None:
    other = SyntheticRun(tmp_path / "other", names=["up", "down"]).finish()
    apple = str(compared[0])
    (tmp_path / "empty").mkdir()
    assert refusal("report", str(tmp_path / "empty")) == (
        f"{tmp_path / 'empty'}: is neither the folder of a run (it has no experiment.toml) nor a folder of runs; "
        "name a run, several, or the folder that they are in"
    )
    assert refusal("watch", str(tmp_path)) == f"{tmp_path}: is not the folder of a run: it has no experiment.toml"
    nowhere = str(tmp_path / "missing" / "report.html")
    assert refusal("report", apple, "-o", nowhere) == f"{nowhere}: cannot be written: No such file or directory"
    assert refusal("figures", apple, "-o", f"{other}/summary.json").endswith("cannot be written: File exists")


def test_the_pages_files_are_in_the_wheel(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    here = {file.name for file in (ROOT / "src/orchard/report").iterdir() if file.suffix in (".html", ".css", ".js")}
    assert {Path(name).name for name in names if name.startswith("orchard/report/")} >= here
    assert len(here) == 11
    modules = {str(file.relative_to(ROOT / "src")) for file in (ROOT / "src/orchard").rglob("*.py")}
    assert modules <= set(names), "a module that the wheel lacks: does .gitignore name it?"
