"""Methods, one file each, and everything that a method of your own needs.

    from orchard.methods import Client, Download, Federation, MethodSettings, Traffic, local_sgd, ...

May import: core, and the files at the top. Methods know nothing of engines.
"""

from typing import TYPE_CHECKING, Any

from orchard.lazy import attribute

if TYPE_CHECKING:
    from orchard.core.contract import Client, Diagnostics, Download, Server, Vectors
    from orchard.core.evaluation import Scores, mean_loss, outputs_of
    from orchard.core.federation import Federation
    from orchard.core.training import (
        ClientContext,
        Correction,
        MomentumSGD,
        check_finite,
        fixed,
        gradient,
        local_sgd,
        pull,
        run_epochs,
    )
    from orchard.core.vector import Layout, Network, Part
    from orchard.errors import UserError
    from orchard.experiment import Experiment
    from orchard.method import MethodSettings, Moment, Queries, Traffic
    from orchard.methods.fedavg import Averaging, AveragingServer, FedAvgClient, average_of, weighted_mean
    from orchard.methods.fedper import Partial, PartialClient
    from orchard.methods.limits import check_budget, check_convergence
    from orchard.methods.registry import all_methods, method_settings
    from orchard.randomness import generator

__all__ = [
    "Averaging",
    "AveragingServer",
    "Client",
    "ClientContext",
    "Correction",
    "Diagnostics",
    "Download",
    "Experiment",
    "FedAvgClient",
    "Federation",
    "Layout",
    "MethodSettings",
    "Moment",
    "MomentumSGD",
    "Network",
    "Part",
    "Partial",
    "PartialClient",
    "Queries",
    "Scores",
    "Server",
    "Traffic",
    "UserError",
    "Vectors",
    "all_methods",
    "average_of",
    "check_budget",
    "check_convergence",
    "check_finite",
    "fixed",
    "generator",
    "gradient",
    "local_sgd",
    "mean_loss",
    "method_settings",
    "outputs_of",
    "pull",
    "run_epochs",
    "weighted_mean",
]

_HOMES = {
    "orchard.core.contract": ("Client", "Diagnostics", "Download", "Server", "Vectors"),
    "orchard.core.evaluation": ("Scores", "mean_loss", "outputs_of"),
    "orchard.core.federation": ("Federation",),
    "orchard.core.training": (
        "ClientContext",
        "Correction",
        "MomentumSGD",
        "check_finite",
        "fixed",
        "gradient",
        "local_sgd",
        "pull",
        "run_epochs",
    ),
    "orchard.core.vector": ("Layout", "Network", "Part"),
    "orchard.errors": ("UserError",),
    "orchard.experiment": ("Experiment",),
    "orchard.method": ("MethodSettings", "Moment", "Queries", "Traffic"),
    "orchard.methods.fedavg": ("Averaging", "AveragingServer", "FedAvgClient", "average_of", "weighted_mean"),
    "orchard.methods.fedper": ("Partial", "PartialClient"),
    "orchard.methods.limits": ("check_budget", "check_convergence"),
    "orchard.methods.registry": ("all_methods", "method_settings"),
    "orchard.randomness": ("generator",),
}


def __getattr__(name: str) -> Any:
    return attribute(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
