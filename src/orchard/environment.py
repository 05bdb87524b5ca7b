"""Where a run was made: versions, machine, code. What is needed to tell why two runs differ."""

import hashlib
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from orchard.experiment import Experiment
from orchard.models import find_factory

LIBRARIES = ("torch", "numpy", "safetensors")
DECISIVE = (
    "contract.py",
    "engines/local.py",
    "engines/turn.py",
    "experiment.py",
    "measures.py",
    "methods/*.py",
    "models.py",
    "randomness.py",
    "rounds.py",
    "settings.py",
    "shelf.py",
    "training.py",
    "vector.py",
)
"""The files that decide a result. The data have a fingerprint of their own; the rest only keeps and shows it."""


def environment(experiment: Experiment) -> dict[str, Any]:
    """Return what is known of this machine and this code."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "orchard": version("orchard"),
        "code": code_fingerprint(experiment),
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        **{library: version(library) for library in LIBRARIES},
        "system": platform.platform(),
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "device": experiment.device,
        "rounds": experiment.rounds,
    }


def code_fingerprint(experiment: Experiment) -> str:
    """Return a hash of the code that decides a result: Orchard's, the method's and the model's."""
    files = {file for pattern in DECISIVE for file in Path(__file__).parent.glob(pattern)}
    homes = [_home(thing) for thing in (type(experiment.method), find_factory(experiment.model))]
    digest = hashlib.sha256()
    for file in sorted(files.union(home for home in homes if home)):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _home(thing: Any) -> Path | None:
    """Return the file that something is defined in; what was typed at a prompt or in a notebook is in none."""
    file = getattr(sys.modules.get(getattr(thing, "__module__", "")), "__file__", None)
    return Path(file) if file and Path(file).is_file() else None


def _git_commit() -> str | None:
    """Return the commit of the repository that Orchard's code is in, if it is in one."""
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        tracked = ["git", "-C", str(here), "ls-files", "--error-unmatch", __file__]
        subprocess.run(tracked, capture_output=True, check=True, timeout=10)  # noqa: S603
        found = subprocess.run(command, capture_output=True, check=True, timeout=10, text=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
