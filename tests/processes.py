"""Processes of their own that start at once: forked from one that has imported everything."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

# What commands import on their way, imported here so that the processes forked from this one need not.
import orchard.cli
import orchard.cli.display
import orchard.export.export
import orchard.export.predict
import orchard.report.distribution
import orchard.report.figures
import orchard.report.page
import orchard.runs.run


def started(target: Callable[..., None], **arguments: Any) -> BaseProcess:
    """Start a function in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    here = [str(Path(__file__).parent), str(Path(orchard.cli.__file__).parents[2])]
    os.environ["PYTHONPATH"] = os.pathsep.join(here)  # else the preload does not find this file, or finds other code
    process = context.Process(target=target, kwargs=arguments, daemon=True)
    process.start()
    return process


def orchard_command(
    *arguments: str, cwd: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    with tempfile.TemporaryDirectory() as home:
        said = [Path(home) / name for name in ("stdout", "stderr")]
        surroundings = {**os.environ, **(environment or {})}
        process = started(_command, arguments=arguments, cwd=cwd, environment=surroundings, said=said)
        process.join()
        assert process.exitcode is not None
        return subprocess.CompletedProcess(arguments, process.exitcode, *(file.read_text("utf-8") for file in said))


def _command(arguments: Sequence[str], cwd: Path, environment: Mapping[str, str], said: Sequence[Path]) -> None:
    for descriptor, file in enumerate(said, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)  # as a Python that starts would
    os.chdir(cwd)
    multiprocessing.process.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    sys.argv = ["orchard", *arguments]
    orchard.cli.main()
