"""Wheels for sites without internet: collected, hashed, and installed without an index."""

import subprocess
import sys
from pathlib import Path

import pytest

from orchard.errors import RunFailed, UserError
from orchard.sites.bundle import SCRIPT, SUMS, WHEELS, Target, bundle

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "kernel"
version = "1.5"
dependencies = ["tomli-w"]

[project.optional-dependencies]
locks = ["filelock"]
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small package in place of Orchard, whose wheels are large."""
    folder = tmp_path / "source"
    (folder / "kernel").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "kernel" / "__init__.py").write_text("")
    return folder


def test_a_bundle_is_of_a_copy_and_in_a_new_folder(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"it has no pyproject\.toml"):
        bundle(tmp_path, tmp_path / "out", [], Target())
    with pytest.raises(UserError, match="give a new folder"):
        bundle(source, source, [], Target())


@pytest.mark.slow
@pytest.mark.parametrize("platforms", [(), ("any",)])
def test_a_bundle_installs_without_an_index(platforms: tuple[str, ...], source: Path, tmp_path: Path) -> None:
    out, to = tmp_path / "out", tmp_path / "environment"
    try:
        digest = bundle(source, out, ["locks"], Target(platforms))
    except RunFailed as failure:
        pytest.skip(f"needs packages: {failure}")
    names = sorted(file.name.split("-")[0] for file in (out / WHEELS).iterdir())
    assert names == ["filelock", "kernel", "tomli_w"]
    assert (out / SUMS).read_text().splitlines()[0].split()[1] == SCRIPT
    told = subprocess.run(["sha256sum", SUMS], cwd=out, capture_output=True, text=True, check=True).stdout
    assert told == f"{digest}  {SUMS}\n"
    command = ["sh", str(out / SCRIPT), str(to)]
    alone = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable}
    subprocess.run(command, env=alone, cwd=tmp_path, check=True, capture_output=True)
    subprocess.run([str(to / "bin" / "python"), "-c", "import kernel, filelock, tomli_w"], check=True)
    wheel = next((out / WHEELS).glob("tomli_w*"))
    wheel.write_bytes(wheel.read_bytes()[:-1] + b"x")
    changed = subprocess.run([*command[:2], str(tmp_path / "other")], env=alone, capture_output=True, text=True)
    assert changed.returncode
    assert "tomli_w" in changed.stdout + changed.stderr
    assert not (tmp_path / "other").exists()
