"""The command, as people use it: real processes, their output and exit codes."""

import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from helpers import small_run
from orchard.cli import app, display
from orchard.cli.reference import commands_in
from processes import orchard_command


def modules_after(code: str) -> set[str]:
    lister = f"{code}\nimport sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", lister], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_importing_orchard_is_light() -> None:
    loaded = modules_after("import orchard")
    assert not loaded & {"torch", "numpy", "pydantic", "sklearn"}


def test_help_does_not_import_torch(tmp_path: Path) -> None:
    loaded = modules_after(
        "import sys; sys.argv = ['orchard', '--help']\n"
        "from orchard.cli import main\n"
        "try: main()\nexcept SystemExit: pass"
    )
    assert "orchard.cli" in loaded
    assert not loaded & {"torch", "sklearn", "pydantic"}
    assert "run" in orchard_command("--help", cwd=tmp_path).stdout


def test_a_run_shows_progress_and_a_table_and_keeps_a_folder(tmp_path: Path) -> None:
    run = orchard_command("run", "--rounds", "2", "--set", "epochs=1", "--set", "model=mlp", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    advice, *lines = run.stderr.splitlines()
    assert advice == (
        "orchard: fewer than 20 test samples at 1 of 8 clients (client 0 has 12): their own figures are coarse; "
        "trust means over clients and seeds"
    )
    assert [line.split("  ")[0] for line in lines] == ["round 1/2", "round 2/2"]
    assert all("mean" in line and "worst" in line and "s left" in line for line in lines)
    assert "\x1b" not in run.stdout + run.stderr
    for word in ("client 7", "holds", "samples", "accuracy", "self-", "relationship", "most by", "BMCTA"):
        assert word in run.stdout
    assert (tmp_path / "runs/digits-dirichlet-graft-seed42/summary.json").exists()


def test_runs_are_listed_extended_and_read_back(tmp_path: Path) -> None:
    options = ["--set", "epochs=1", "--set", "model=mlp", "--quiet"]
    orchard_command("run", "--rounds", "2", *options, cwd=tmp_path)
    orchard_command("run", "--rounds", "1", "--method", "fedavg", "--set", "lr=1e30", *options, cwd=tmp_path)
    (tmp_path / "runs/something else").mkdir()
    listed = orchard_command("runs", cwd=tmp_path).stdout.splitlines()
    assert listed[0].split() == ["run", "state", "method", "data", "rounds", "best", "age"]
    assert re.fullmatch(
        r"digits-dirichlet-graft-seed42 +finished +graft +digits, dirichlet +2/2 +\d+\.\d\d % +\d+ (s|min) *", listed[1]
    )
    assert re.fullmatch(
        r"digits-dirichlet-fedavg-seed42 +failed +fedavg +digits, dirichlet +1/1 +- +\d+ (s|min)\s*", listed[2]
    )
    assert len(listed) == 3
    shutil.copytree(tmp_path / "runs/digits-dirichlet-graft-seed42", tmp_path / "runs/[odd] one")
    (tmp_path / "runs/[odd] one/metrics.jsonl").write_text("{}\n")
    odd = orchard_command("runs", cwd=tmp_path)
    assert len(odd.stdout.splitlines()) == 3
    assert odd.stderr == "runs/[odd] one/metrics.jsonl: line 1 is damaged\n"
    more = orchard_command("resume", "runs/digits-dirichlet-graft-seed42", "--rounds", "3", "--json", cwd=tmp_path)
    assert [line.split("  ")[0] for line in more.stderr.splitlines()] == ["round 2/3", "round 3/3"]  # from where it was
    assert json.loads(more.stdout)["rounds"] == 3
    again = orchard_command("resume", "runs/digits-dirichlet-graft-seed42", "--json", cwd=tmp_path)
    assert again.stderr == ""
    assert json.loads(again.stdout) == json.loads(more.stdout)
    assert orchard_command("runs", "[/no]where", cwd=tmp_path).stdout == "no runs in [/no]where\n"


def test_a_list_of_runs_says_what_tells_them_apart(tmp_path: Path) -> None:
    options = ["--method", "ditto", "--rounds", "1", "--set", "epochs=1", "--set", "model=mlp", "--quiet"]
    for settings in ([], ["method.lam=1"], ["method.lam=1", "partition.alpha=0.1", "seed=7"]):
        orchard_command("run", *options, *(f"--set={one}" for one in settings), cwd=tmp_path)
    listed = orchard_command("runs", cwd=tmp_path).stdout.splitlines()[1:]
    assert [re.split("  +", line)[2] for line in listed] == [
        "ditto",
        "ditto:lam=1.0, seed=42, partition.alpha=0.5",
        "ditto:lam=1.0, seed=7, partition.alpha=0.1",
    ]


def test_json_and_quiet(tmp_path: Path) -> None:
    options = ["--rounds", "1", "--set", "epochs=1", "--set", "model=mlp", "--seed", "3", "--quiet"]
    quiet = orchard_command("run", *options, "--out", "first", cwd=tmp_path)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    as_json = orchard_command("run", *options, "--json", "--out", "second", cwd=tmp_path)
    summary = json.loads(as_json.stdout)
    kept = json.loads((tmp_path / "second/summary.json").read_text())
    assert summary["folder"] == "second"
    assert summary["bmcta"] == kept["bmcta"] == json.loads((tmp_path / "first/summary.json").read_text())["bmcta"]
    refused = orchard_command("run", *options, "--out", "first", cwd=tmp_path)
    assert (refused.returncode, refused.stderr) == (
        2,
        "orchard: out = 'first': holds something already; name a new folder\n",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--clients", "0"], "clients = 0: input should be greater than or equal to 1"),
        (
            ["--method", "apple", "--set", "method.budget=8"],
            "method.budget = 8: at most clients − 1 = 7 others to download",
        ),
        (
            ["--method", "apple", "--set", "method.mu=1e6"],
            "method.mu = 1e+06: relationship_lr × mu = 1000, but SGD diverges",
        ),
        (["--set", "speed=9"], "speed: unknown key; did you mean 'seed'?"),
        (["--method", "aple"], "unknown method; did you mean 'apple'?"),
        (["--dataset", "mnits"], "dataset = 'mnits': no such path, nor a known dataset; did you mean 'mnist'?"),
        (["--dataset", "mine.csv"], "dataset = 'mine.csv': there is no such file"),
        (["--method", "ditto:lam=1"], "here: --method ditto --set method.lam=1"),
        (["--model", "mlp"], "--model: is no option, but a setting: --set model=…"),
        (["--partition", "practical", "--clients", "40"], "partition: leaves client"),
        (["missing.toml"], "missing.toml: cannot be read: No such file or directory"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    run = orchard_command("run", *arguments, cwd=tmp_path)
    assert run.returncode == 2
    assert run.stderr.startswith("orchard: ")
    assert message in run.stderr
    assert "Traceback" not in run.stderr
    assert not list(tmp_path.iterdir())


def test_a_run_that_diverges_ends_with_exit_code_1(tmp_path: Path) -> None:
    run = orchard_command(
        "run", "--set", "lr=1e20", "--set", "epochs=1", "--set", "model=mlp", "--rounds", "2", cwd=tmp_path
    )
    assert run.returncode == 1
    assert re.search(
        r"^orchard: client 0, round 1 \(.*\): the loss or a gradient is not finite at step", run.stderr, re.MULTILINE
    )
    assert "Traceback" not in run.stderr


def test_the_same_experiment_from_its_own_file(tmp_path: Path) -> None:
    options = ["--quiet", "--json", "--set", "model=mlp"]
    first = orchard_command("run", "--rounds", "1", "--set", "epochs=1", "--out", "a", *options, cwd=tmp_path)
    again = orchard_command("run", "a/experiment.toml", *options, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert json.loads(first.stdout)["bmcta"] == json.loads(again.stdout)["bmcta"]


def test_the_catalogue_and_an_entry_of_it(tmp_path: Path) -> None:
    listed = orchard_command("data", "list", "--data-dir", str(tmp_path), cwd=tmp_path)
    names = [line.split()[0] for line in listed.stdout.splitlines() if line[0] != " "]
    assert names[:4] == ["name", "digits", "mnist", "fashion-mnist"]
    assert len(names) == 19
    shown = orchard_command("data", "show", "pathmnist", cwd=tmp_path)
    for words in ("colorectal adenocarcinoma epithelium", "CC BY 4.0", "MedMNIST v2", "pathmnist_64.npz"):
        assert words in shown.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_who_holds_what_is_printed_and_drawn(tmp_path: Path, suffix: str, magic: bytes) -> None:
    shown = orchard_command("data", "show", "digits", "--partition", "dirichlet", "-o", f"who.{suffix}", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    rows = [line.split() for line in shown.stdout.splitlines() if re.match(r"client \d", line)]
    held = [sum(int(n) for n in row[2:12] if n != "·") for row in rows]
    assert held == [int(row[12]) for row in rows]  # the classes add up to all
    assert sum(held) > 1700
    assert (tmp_path / f"who.{suffix}").read_bytes().startswith(magic)


def test_a_figure_of_another_kind_is_refused(tmp_path: Path) -> None:
    refused = orchard_command("data", "show", "digits", "-o", "who.bmp", cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr == "orchard: who.bmp: figures are written as .png, .svg, .pdf\n"


def test_a_warning_about_data_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "pathmnist.npz").write_bytes(b"something else")
    run = orchard_command("run", "--dataset", "pathmnist", "--data-dir", ".", cwd=tmp_path)
    assert run.returncode == 2
    warning, refusal = run.stderr.splitlines()
    assert warning.startswith("orchard: pathmnist.npz is not the published file: its MD5 is ")
    assert refusal.startswith("orchard: pathmnist.npz: is damaged or not an .npz")


def test_progress_and_summary_speak_of_the_same_moment(tmp_path: Path) -> None:
    quick = ["--set", "epochs=1", "--set", "model=mlp", "--rounds", "3"]
    run = orchard_command("run", "--method", "fedavg-ft", *quick, cwd=tmp_path)
    lines = [line for line in run.stderr.splitlines() if line.startswith("round ")]
    assert [line.split("  ")[0] for line in lines] == ["round 1/3", "round 2/3", "round 3/3"]
    last = re.search(r"last round ([\d.]+) %", run.stdout)
    shown = re.search(r"mean ([\d.]+) %", lines[-1])
    assert last is not None
    assert shown is not None
    assert abs(float(last[1]) - float(shown[1])) <= 0.051  # rounded to one digit and to two


def test_a_file_is_replaced_only_if_one_says_so(tmp_path: Path) -> None:
    orchard_command(
        "run", "--rounds", "1", "--set", "epochs=1", "--set", "model=mlp", "--out", "run", "--quiet", cwd=tmp_path
    )
    model = tmp_path / "model.safetensors"
    model.write_text("mine")
    export = ["export", "run", "--client", "0", "--to", model.name]
    refused = orchard_command(*export, cwd=tmp_path)
    assert (refused.returncode, refused.stderr) == (2, "orchard: model.safetensors: exists; --force replaces it\n")
    assert model.read_text() == "mine"
    assert orchard_command(*export, "--force", cwd=tmp_path).returncode == 0
    assert model.read_bytes() != b"mine"


def test_a_data_folder_that_is_not_there_is_refused_and_not_made(tmp_path: Path) -> None:
    sentence = "orchard: data_dir = 'nowhere': is no folder; make it first, or leave it out to use the cache\n"
    for dataset in ("mnist", "digits"):  # the second needs none
        run = orchard_command("run", "--dataset", dataset, "--data-dir", "nowhere", cwd=tmp_path)
        assert (run.returncode, run.stderr) == (2, sentence)
    assert not (tmp_path / "nowhere").exists()


def test_help_has_a_short_form(tmp_path: Path) -> None:
    for command in ([], ["run"], ["deploy", "run"], ["site", "check"]):
        short, long = (orchard_command(*command, flag, cwd=tmp_path) for flag in ("-h", "--help"))
        assert (short.returncode, short.stdout) == (0, long.stdout)


def test_help_is_a_word_too_and_flags_take_no_value() -> None:
    by_word, by_flag = (CliRunner().invoke(app, [word]).stdout.partition("silos")[2] for word in ("help", "-h"))
    assert by_word == by_flag != ""
    flags = CliRunner().invoke(app, ["run", "-h"]).stdout.splitlines()
    for flag in ("--quiet", "--json", "--open", "--tensorboard"):
        (line,) = [line for line in flags if flag in line]
        assert "<bool>" not in line


def test_help_is_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich takes words in square brackets for markup, unless they are escaped."""
    monkeypatch.setenv("COLUMNS", "250")
    top = typer.Context(typer.main.get_command(app), info_name="orchard")
    for context in {one for _, leaf in commands_in(top.command, top) for one in (leaf, leaf.parent or top)}:
        shown = CliRunner().invoke(app, [*context.command_path.split()[1:], "-h"]).stdout
        words = " ".join(re.sub("[│╭╮╰╯─]", " ", shown).split())
        for text in filter(None, [context.command.help, *(getattr(one, "help", "") for one in context.command.params)]):
            assert " ".join(text.replace("\\[", "[").split()) in words, context.command_path


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_terminal_keeps_the_accuracies(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    monkeypatch.setattr(display, "output", lambda: console)
    result = small_run(rounds=1, method="apple")
    display.print_result(result, None)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    for client in result.clients:
        (line,) = [line for line in lines if line.startswith(client.name)]
        assert f" {client.samples} " in line
        assert f"{100 * client.score:.1f} %" in line
    assert ("self-" in "".join(lines[:2])) == (width >= 60)
