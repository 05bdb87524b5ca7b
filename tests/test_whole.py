"""Outputs are whole or not there: where a disk ends, a process dies, or a name means something to another program."""

import csv
import io
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from helpers import small_arrays, small_experiment, small_run
from orchard import run
from orchard.errors import UserError
from orchard.export import export
from orchard.export.by_class import cell
from orchard.export.export import export_model
from orchard.export.predict import Batch, Predictor, predict
from orchard.runs.folder import RunFolder, new_folder
from orchard.runs.result import Result
from orchard.runs.run import make_run_folder
from orchard.tasks.registry import task_named
from orchard.text import no_formula
from orchard.whole import write_durably, write_output
from synthetic import SyntheticRun

MAIN = "from orchard.cli import main; main()"


def test_an_output_is_whole_or_as_it_was(tmp_path: Path) -> None:
    """Real processes that may not write files of more than some kilobytes, as on a disk that is full."""
    SyntheticRun(tmp_path / "run").finish()
    for command, output in (
        ("report run -o out.html", "out.html"),
        ("data show digits --partition iid -o out.png", "out.png"),
    ):
        (tmp_path / output).write_text("good")
        limited = f"ulimit -f 8; exec {sys.executable} -c '{MAIN}' {command}"
        ended = subprocess.run(["/bin/sh", "-c", limited], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ended.returncode == 2, ended.stderr
        assert f"{output}: cannot be written: File too large" in ended.stderr
        assert (tmp_path / output).read_text() == "good"
        assert not list(tmp_path.glob(".*"))


def test_outputs_go_through_links_and_into_devices(tmp_path: Path) -> None:
    (tmp_path / "real.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to("real.csv")
    write_output(tmp_path / "link.csv", "new")
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text() == "new"
    (tmp_path / "real.csv").chmod(0o600)
    write_output(tmp_path / "real.csv", "new")
    assert stat.S_IMODE((tmp_path / "real.csv").stat().st_mode) == 0o600
    write_output(Path(os.devnull), "nothing")
    with pytest.raises(UserError, match=r"nowhere/x: cannot be written: No such file"):
        write_output(tmp_path / "nowhere/x", "")
    write_durably(tmp_path / "link.csv", "mine")  # in a run's own folder, a link is replaced
    assert not (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text() == "new"


def test_there_is_never_a_new_model_beside_an_old_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_run(out=tmp_path / "run", rounds=1)
    model, card = tmp_path / "a.safetensors", tmp_path / "a.safetensors.md"
    export_model(tmp_path / "run", "0", model)
    before = model.read_bytes()

    def full(*arguments: object) -> str:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(export, "model_card", full)
        with pytest.raises(UserError, match="No space left"):
            export_model(tmp_path / "run", "1", model)
    assert model.read_bytes() == before  # both are as they were
    assert card.exists()

    renamed: list[str] = []
    rename = Path.replace

    def noted(self: Path, to: Path) -> Path:
        renamed.append(f"{to.name} {card.exists()}")
        return rename(self, to)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", noted)
        export_model(tmp_path / "run", "1", model)
    assert renamed == ["a.safetensors False", "a.safetensors.md False"]  # killed in between, there is a model alone


def test_run_folders_are_private_and_what_is_there_stays_as_it_is(tmp_path: Path) -> None:
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    with new_folder(tmp_path / "runs", small_experiment()) as made:
        assert mode(made) == 0o700
    make_run_folder(tmp_path / "deep/named")
    assert mode(tmp_path / "deep/named") == 0o700
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine").chmod(0o750)  # somebody wants it so
    make_run_folder(tmp_path / "mine")
    assert mode(tmp_path / "mine") == 0o750


def test_a_backup_of_links_does_not_change_when_its_run_goes_on(tmp_path: Path) -> None:
    small_run(out=tmp_path / "run", rounds=2)
    subprocess.run(["cp", "-al", tmp_path / "run", tmp_path / "backup"], check=True)
    before = {file: file.read_bytes() for file in (tmp_path / "backup").rglob("*") if file.is_file()}
    from orchard import resume

    resume(tmp_path / "run", small_arrays(), rounds=3)
    assert {file: file.read_bytes() for file in before} == before
    assert len(RunFolder(tmp_path / "run").rounds()) == 3


# --- Names ---


@pytest.mark.parametrize("text", ["=1+1", "+x", "-x", "@SUM(A1)", "\t=1", "-2+3"])
def test_a_name_is_no_formula(text: str) -> None:
    assert no_formula(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "benign", "-0.25", "+1e-05", "a=b", "-inf"])
def test_numbers_and_plain_names_stay(text: str) -> None:
    assert no_formula(text) == text


def test_predictions_hold_no_formula() -> None:
    task = task_named("classification", ['=HYPERLINK("http://x")', "b"])
    predictor = Predictor(task, (1,), lambda x: torch.cat([x, -x], dim=1))
    table = io.StringIO()
    predict(predictor, iter([Batch(["@x.png", "-y.png"], torch.tensor([[1.0], [-1.0]]))]), table)
    cells = [cell for row in csv.reader(table.getvalue().splitlines()) for cell in row]
    assert "'@x.png" in cells
    assert "'-y.png" in cells
    assert all(cell[:1] not in "=+-@" for cell in cells if cell)


def test_a_name_in_a_card_is_text() -> None:
    assert cell("<img src=x onerror=alert(1)>") == "&lt;img src=x onerror=alert(1)&gt;"
    assert cell("![a](http://x) `b` | c\nd") == "!\\[a\\](http://x) \\`b\\` \\| c d"
    assert cell("R and D, 5 %") == "R and D, 5 %"


# --- A client that never trained ---


def test_who_never_trained_is_in_no_mean_and_is_named(tmp_path: Path) -> None:
    whole = SyntheticRun(tmp_path / "run", "fedavg", rounds=3).finish()
    result = RunFolder(whole).result()
    others = result.scores()[:, [0, 2, 3]]
    for entry in result.rounds:  # absent from all rounds; in the end, it only evaluated what others made
        entry.loss[1] = entry.after_training[1] = None
        if entry.round < 2:
            entry.after_aggregation[1] = None
    assert result.never_trained() == ["south"]
    assert result.bmcta == pytest.approx(others.mean(axis=1).max())
    assert result.figures().best.round == others.mean(axis=1).argmax()
    assert "south" not in str(result.undefined_measures())


def test_everybody_trained_in_an_ordinary_run(tmp_path: Path) -> None:
    result: Result = run(small_experiment(rounds=1), small_arrays())
    assert result.never_trained() == []
    assert result.summary()["never_trained"] == []
