"""The unit files and the container file, checked as far as that is possible without systemd and Podman running."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from orchard.cli import app

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
VOLUME = "/var/lib/orchard"


def entries(unit: Path) -> dict[str, str]:
    """Return what a unit sets; the last of several."""
    lines = [line for line in unit.read_text().splitlines() if "=" in line and not line.startswith("#")]
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


def is_command(words: list[str]) -> bool:
    """Tell whether Orchard has a command of this name."""
    group, name = words
    commands = getattr(typer.main.get_command(app), "commands", {})
    return group in commands and name in commands[group].commands


@pytest.mark.parametrize("kind", ["server", "site"])
def test_a_unit_starts_a_command_that_there_is_and_lets_it_write_one_folder(kind: str) -> None:
    unit = entries(DEPLOY / f"orchard-{kind}.service")
    program, *words, kit = unit["ExecStart"].split()
    assert (program, words, kit) == ("/opt/orchard/bin/orchard", [kind, "start"], "/etc/orchard/kit")
    assert is_command(words)
    assert (unit["ProtectSystem"], unit["StateDirectory"], unit["WorkingDirectory"]) == ("strict", "orchard", VOLUME)
    assert not {"ReadWritePaths", "ReadWriteDirectories"} & unit.keys()
    assert (unit["User"], unit["NoNewPrivileges"], unit["CapabilityBoundingSet"]) == ("orchard", "yes", "")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["server", "site"])
def test_systemd_understands_a_unit(kind: str, tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze")
    unit = tmp_path / f"orchard-{kind}.service"
    text = (DEPLOY / unit.name).read_text()
    unit.write_text(text.replace("/opt/orchard/bin/orchard", shutil.which("true") or "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_image_has_an_ordinary_user_one_volume_and_commands_that_there_are() -> None:
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Containerfile").read_text())
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    last = {word: rest for word, rest in lines}  # noqa: C416
    assert last["USER"].split(":")[0].isdecimal()
    assert last["USER"] != "0"
    assert last["VOLUME"] == VOLUME
    assert json.loads(last["ENTRYPOINT"]) == ["orchard"]
    assert is_command(json.loads(last["CMD"])[:2])
    asked = re.findall(r"orchard (\w+) (\w+) /kit", last["HEALTHCHECK"])
    assert asked == [("server", "health"), ("site", "health")]
    assert all(is_command(list(words)) for words in asked)


@pytest.mark.slow
def test_orchard_is_built_from_what_the_image_is_given(tmp_path: Path) -> None:
    given = [line[1:] for line in (ROOT / ".containerignore").read_text().split() if line.startswith("!")]
    for name in given:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        copy(ROOT / name, tmp_path / name)
    assert "constraints.txt" in given
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "dist").glob("orchard-*.whl"))
