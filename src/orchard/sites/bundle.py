"""A folder with all that a site without internet needs to install Orchard: wheels, their hashes, and a script."""

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchard.errors import RunFailed, UserError

WHEELS = "wheels"
SUMS = "SHA256SUMS"
SCRIPT = "install.sh"
INSTALL = """#!/bin/sh
# Install {wanted} without a network: sh install.sh [FOLDER]. For Python {python}{where}.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
to=${{1:-/opt/orchard}}
python=${{PYTHON:-python3}}
"$python" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "{python}")' || {{
    echo "needs Python {python}; try: PYTHON=python{python} sh install.sh" >&2; exit 2; }}
(cd "$here" && sha256sum --check --quiet {sums})
"$python" -m venv "$to"
"$to/bin/python" -m pip --isolated --disable-pip-version-check install --quiet --no-index \\
    --find-links "$here/{wheels}" "{wanted}"
echo "installed in $to"
"""


@dataclass(frozen=True)
class Target:
    """The machines that a bundle is for: by default those like this one."""

    platforms: Sequence[str] = ()
    python: str = f"{sys.version_info.major}.{sys.version_info.minor}"


def bundle(source: Path, out: Path, extras: Sequence[str], target: Target) -> str:
    """Fill a new folder by what pip finds; return the hash of the list of hashes."""
    if not (source / "pyproject.toml").is_file():
        raise UserError(f"{source}: is not a copy of Orchard: it has no pyproject.toml")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: is there already; give a new folder")
    wheels = out / WHEELS
    try:
        wheels.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror}") from None
    _pip("wheel", "--no-deps", "--wheel-dir", str(wheels), str(source.resolve()))
    (own,) = wheels.iterdir()
    named = f"[{','.join(extras)}]" if extras else ""
    limits = source.resolve() / "constraints.txt"
    given = [f"{own.resolve()}{named}", *(["--constraint", str(limits)] if limits.is_file() else [])]
    if target.platforms:
        platforms = [word for platform in target.platforms for word in ("--platform", platform)]
        only = ["--only-binary", ":all:", "--python-version", target.python]
        _pip("download", "--dest", str(wheels), *only, *platforms, *given)
    else:
        _pip("wheel", "--wheel-dir", str(wheels), *given)
    name, version = own.name.split("-")[:2]
    where = f" on {', '.join(target.platforms)}" if target.platforms else ", on machines like the one that made it"
    about = {"wanted": f"{name}{named}=={version}", "python": target.python, "where": where}
    (out / SCRIPT).write_text(INSTALL.format(**about, sums=SUMS, wheels=WHEELS), "utf-8")
    return _write_sums(out)


def _write_sums(out: Path) -> str:
    files = sorted(file for file in out.rglob("*") if file.is_file())
    lines = [f"{_sha256(file)}  {file.relative_to(out).as_posix()}\n" for file in files]
    (out / SUMS).write_text("".join(lines), "utf-8")
    return _sha256(out / SUMS)


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _pip(*words: str) -> None:
    """Run pip, which is configured as everywhere on this machine."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - given by people here
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it does not say why"]
        raise RunFailed(f"pip {words[0]}: {said[-1]}")
