"""The Ray cluster: joined or started, its nodes, and what is lost with them."""

import os
import signal
import socket
import threading
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from orchard.errors import RunFailed, UserError
from orchard.experiment import RunOptions

ANSWER = 30.0
"""Seconds to wait for a cluster that does not answer."""
PATIENCE = 300.0
"""Seconds in which a node should have started its process, before it is said that other work keeps its processors."""


@dataclass(frozen=True)
class Slot:
    """What one host takes of a node: all its CPUs, or one of its GPUs with a share of them."""

    node: str
    address: str
    cpus: float
    gpus: float
    workers: int
    """Clients trained there at the same time."""


def check_ray() -> None:
    """Raise if Ray is not installed, before data are loaded."""
    if find_spec("ray") is None:
        raise UserError("engine = 'ray': Ray is not installed; pip install 'orchard[ray]' brings it")


def join(address: str | None) -> None:
    """Join the cluster at an address, or at $RAY_ADDRESS; without one, start a cluster of this machine.

    This process stays in it until it ends, as with all programs that use Ray. Ray's usage statistics are off.
    """
    check_ray()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the default of later versions, which warn
    import ray

    if ray.is_initialized():
        return
    where = address or os.environ.get("RAY_ADDRESS") or "local"
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if where == "local":
        quiet["include_dashboard"] = False
    handler = signal.getsignal(signal.SIGTERM)
    try:
        _check_reachable(where)
        ray.init(where, **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(f"address = {where!r}: no Ray cluster can be joined there: {reason}") from None
    if callable(handler) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # which stops after a round; Ray's own would end the process


def _check_reachable(where: str) -> None:
    """Raise if nobody listens at an address; Ray would wait for minutes."""
    host, _, port = where.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER).close()


def slots(options: RunOptions) -> list[Slot]:
    """Return what the nodes that are alive have to offer, the largest first; raise if none can train a client."""
    found = [slot for node in _alive() for slot in _of(node, options)]
    if not found:
        what = "GPU" if on_gpu(options) else f"{options.threads} CPUs"
        raise RunFailed(f"engine = 'ray': no node of the cluster has {what} for a client")
    return sorted(found, key=lambda slot: (-slot.workers, slot.node))


def on_gpu(options: RunOptions) -> bool:
    """Tell whether clients take GPUs from Ray."""
    return options.device.startswith("cuda")


def _alive() -> list[dict[str, Any]]:
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def _of(node: dict[str, Any], options: RunOptions) -> list[Slot]:
    cpus, gpus = (int(node["Resources"].get(kind, 0)) for kind in ("CPU", "GPU"))
    name = node["NodeID"], node["NodeManagerAddress"]
    if on_gpu(options):
        workers = min(options.workers or cpus, int(1 / options.gpus))
        return [Slot(*name, min(workers * options.threads, cpus // gpus), 1, workers) for _ in range(gpus)]
    workers = min(options.workers or cpus, cpus // options.threads)
    return [Slot(*name, workers * options.threads, 0, workers)] if workers else []
