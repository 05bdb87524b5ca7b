"""Orchard: personalised federated learning for silos.

Importing this package is quick: PyTorch is loaded when something that needs it is first used.
"""

from typing import TYPE_CHECKING, Any

from orchard.lazy import attribute

if TYPE_CHECKING:
    from orchard.data.client_arrays import ClientArrays
    from orchard.errors import RunFailed, Stopped, UserError
    from orchard.experiment import Experiment, RunOptions, load_experiment
    from orchard.report.page import write_report
    from orchard.runs.checks import check
    from orchard.runs.compared import Compared, compare
    from orchard.runs.joining import Joined, join
    from orchard.runs.result import Result
    from orchard.runs.run import load, resume, run

__version__ = "0.2.0"
__all__ = [
    "ClientArrays",
    "Compared",
    "Experiment",
    "Joined",
    "Result",
    "RunFailed",
    "RunOptions",
    "Stopped",
    "UserError",
    "check",
    "compare",
    "join",
    "load",
    "load_experiment",
    "resume",
    "run",
    "write_report",
]

_HOMES = {
    "orchard.data.client_arrays": ("ClientArrays",),
    "orchard.errors": ("RunFailed", "Stopped", "UserError"),
    "orchard.experiment": ("Experiment", "RunOptions", "load_experiment"),
    "orchard.report.page": ("write_report",),
    "orchard.runs.checks": ("check",),
    "orchard.runs.compared": ("Compared", "compare"),
    "orchard.runs.joining": ("Joined", "join"),
    "orchard.runs.result": ("Result",),
    "orchard.runs.run": ("load", "resume", "run"),
}


def __getattr__(name: str) -> Any:
    return attribute(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
