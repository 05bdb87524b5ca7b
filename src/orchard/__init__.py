"""Orchard: personalised federated learning for silos.

Importing this package is quick: PyTorch is loaded when something that needs it is first used.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchard.data import ClientArrays
    from orchard.errors import Refusal, RunFailed, Stopped
    from orchard.experiment import Experiment, load_experiment
    from orchard.results import Result
    from orchard.runs import resume, run

# PyTorch asks for the memory of large tensors in pages of 2 MB where the system has them. A step frees and asks for its
# activations again and again; in pages of 4 KB, each zeroed first, that takes up to a fifth of its time. PyTorch looks
# at this once, when it first makes a tensor.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

__version__ = "0.1.0"
__all__ = [
    "ClientArrays",
    "Experiment",
    "Refusal",
    "Result",
    "RunFailed",
    "Stopped",
    "load_experiment",
    "resume",
    "run",
]

_HOMES = {
    "ClientArrays": "orchard.data",
    "Experiment": "orchard.experiment",
    "Refusal": "orchard.errors",
    "Result": "orchard.results",
    "RunFailed": "orchard.errors",
    "Stopped": "orchard.errors",
    "load_experiment": "orchard.experiment",
    "resume": "orchard.runs",
    "run": "orchard.runs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'orchard' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
