"""The machine and the code of a run, recorded to explain why two runs differ."""

import ast
import hashlib
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import orchard
from orchard.core.models import find_factory
from orchard.engines.machine import processor
from orchard.experiment import Experiment, RunOptions

LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "NPY_DISABLE_CPU_FEATURES")
"""Variables that keep libraries from some of them."""
RESULTS_VERSION = 2
"""Increase this by hand with every change that gives an experiment another result; the golden tests guard it.
Only the version that began a run reuses it, or resumes it without a warning."""
LIBRARIES = ("torch", "numpy", "safetensors")
DECISIVE = ("orchard", "results_version", "own_code", "python", *LIBRARIES, "cpu", "instructions", "device", "threads")
"""The entries that can change a result, if only its last bits."""
LATER = ("instructions",)
"""Those that folders of older runs may lack."""


def environment(experiment: Experiment, options: RunOptions) -> dict[str, Any]:
    """Return a description of this machine and this code."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "orchard": orchard.__version__,
        "results_version": RESULTS_VERSION,
        "own_code": own_code(experiment),
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        **{library: version(library) for library in LIBRARIES},
        "system": platform.platform(),
        "cpu": processor(),
        "instructions": _instructions(),
        "cores": os.cpu_count(),
        "engine": options.engine,
        "device": options.device,
        "threads": options.threads,
        "rounds": experiment.rounds,
    }


def own_code(experiment: Experiment) -> str | None:
    """Return a hash of the user's own method and model files, without comments; None if there are none."""
    homes = {_home(thing) for thing in (type(experiment.method), find_factory(experiment.model))}
    inside = Path(orchard.__file__).parent
    files = sorted(home for home in homes if home and not home.is_relative_to(inside))
    if not files:
        return None
    digest = hashlib.sha256()
    for file in files:
        digest.update(_without_comments(file.read_text("utf-8")).encode())
    return digest.hexdigest()[:16]


def _without_comments(source: str) -> str:
    """Return a program's syntax tree as text, without comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [statement for statement in body if not _is_text(statement)]
    return ast.dump(tree)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _home(thing: Any) -> Path | None:
    """Return the file that defines something; None if it was defined at a prompt or in a notebook."""
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


def _instructions() -> str:
    """Return which instructions of the processor are used: others give other last bits."""
    limits = (f"{name}={os.environ[name]}" for name in LIMITS if name in os.environ)
    return " ".join([torch.backends.cpu.get_cpu_capability(), *limits])
