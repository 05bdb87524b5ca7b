"""Which client is on which node: hosts on the nodes, calls to them, and what happens when one is lost."""

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchard.core.contract import Diagnostics
from orchard.core.federation import Federation
from orchard.data.clients import FederatedData
from orchard.engines.engine import Selections
from orchard.engines.machine import processor
from orchard.engines.ray.cluster import PATIENCE, Slot, slots
from orchard.engines.ray.host import Host, software
from orchard.engines.ray.packing import pack_data, pack_state
from orchard.errors import ClusterWarning, RunFailed, UserError
from orchard.experiment import RunOptions

LOSSES = 5
"""How often in a row nodes may be lost, without a round that is finished in between."""

States = Mapping[int, Mapping[str, Any]]
"""By client, what it remembers, and its buffers."""


@dataclass(eq=False)
class Placed:
    """An actor on a node, and the clients that it has."""

    slot: Slot
    actor: Any
    clients: list[int] = field(default_factory=list)


class Placement:
    """The hosts of a run. The clients' data are in the object store, for whichever node needs them."""

    def __init__(self, data: FederatedData, options: RunOptions) -> None:
        import ray

        self.options = options
        self.names = [client.name for client in data.clients]
        self.samples = [len(client.train.y) for client in data.clients]
        self.data = [ray.put(pack_data(client)) for client in data.clients]
        self.hosts: list[Placed] = []
        self.losses = 0
        self._died: Counter[str] = Counter()
        self._renewed: set[int] = set()

    def close(self) -> None:
        """End all actors."""
        import ray

        if ray.is_initialized() and self.hosts:
            calls = [host.actor.close.remote() for host in self.hosts]
            ray.wait(calls, num_returns=len(calls), timeout=5)
            for host in self.hosts:
                ray.kill(host.actor)
        self.hosts.clear()

    def start(self, federation: Federation) -> tuple[Selections, dict[int, Diagnostics]]:
        """Place all clients; return what they select for the first round, and their figures."""
        self.federation = federation
        return self._place(range(len(self.data)), {})

    def having(self, clients: Iterable[int]) -> list[Placed]:
        """Return the hosts that have some of these clients."""
        wanted = set(clients)
        return [host for host in self.hosts if not wanted.isdisjoint(host.clients)]

    def call(
        self, call: Callable[[Placed], Any], hosts: Sequence[Placed]
    ) -> tuple[dict[Placed, Any], dict[Placed, str]]:
        """Call hosts, all at once; return their answers, and which are lost and why."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        calls = {host: call(host) for host in hosts}
        found, lost = dict[Placed, Any](), dict[Placed, str]()
        for host, answer in calls.items():
            try:
                found[host] = ray.get(answer)
            except RayError as error:
                cause = error.cause if isinstance(error, RayTaskError) else error
                if isinstance(cause, Exception) and not isinstance(cause, RayError):
                    cause.add_note(f"On the node {host.slot.address}:\n{error}")
                    raise cause from None
                lost[host] = _reason(error)
        return found, lost

    def replace(self, lost: Mapping[Placed, str], states: States, when: str) -> set[int]:
        """Say what is lost, and make its clients elsewhere, in the given states; return which were made again."""
        import ray

        gone = [i for host in lost for i in host.clients]
        for host, reason in lost.items():
            self.hosts.remove(host)
            ray.kill(host.actor)
            self._died[host.slot.node] += 1
            names = ", ".join(self.names[i] for i in sorted(host.clients))
            what = f"{when}: a process on the node {host.slot.address} is lost with {len(host.clients)} clients"
            text = f"{what}: {reason}\nThey go on elsewhere, from before the round: {names}"
            warnings.warn(text, ClusterWarning, stacklevel=2)
        if self.losses == LOSSES:
            raise RunFailed(f"{when}: nodes were lost {LOSSES + 1} times; what was saved is safe")
        time.sleep(2**self.losses - 1)  # a node that has just died may still seem to be there
        self.losses += 1
        self._renewed |= set(gone)
        self._place(gone, states)  # which may lose others
        again, self._renewed = self._renewed, set()
        return again

    def _place(self, clients: Sequence[int], states: States) -> tuple[Selections, dict[int, Diagnostics]]:
        """Spread clients over the nodes, by their samples."""
        self._open_hosts()
        new: dict[Placed, list[int]] = {host: [] for host in self.hosts}
        for i in sorted(clients, key=lambda i: -self.samples[i]):
            host = min(self.hosts, key=lambda host: self._load(host, i))
            host.clients.append(i)
            new[host].append(i)

        def admit(host: Placed) -> Any:
            packed = {i: pack_state(states[i], {}) for i in new[host] if i in states}
            return host.actor.admit.remote({i: self.data[i] for i in new[host]}, packed)

        found, lost = self.call(admit, [host for host, theirs in new.items() if theirs])
        if lost:
            if not states:
                reasons = "; ".join(f"{host.slot.address}: {reason}" for host, reason in lost.items())
                raise RunFailed(f"before the first round: nodes were lost: {reasons}")
            self._renewed |= self.replace(lost, states, "while clients were placed")
        selected = {i: names for theirs, _ in found.values() for i, names in theirs.items()}
        diagnostics = {i: figures for _, theirs in found.values() for i, figures in theirs.items()}
        return {i: selected[i] for i in sorted(selected)}, diagnostics

    def _load(self, host: Placed, newcomer: int) -> float:
        return sum(self.samples[i] for i in (*host.clients, newcomer)) / host.slot.workers

    def _open_hosts(self) -> None:
        """Start a host on every node, or on every GPU, that has none; not more than there are clients."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = Counter(host.slot.node for host in self.hosts)
        opened: list[Placed] = []
        for slot in slots(self.options):
            if there[slot.node]:
                there[slot.node] -= 1
            elif len(self.hosts) + len(opened) < len(self.data):
                where = NodeAffinitySchedulingStrategy(slot.node, soft=False)
                actor = ray.remote(Host).options(num_cpus=slot.cpus, num_gpus=slot.gpus, scheduling_strategy=where)
                workers = max(1, slot.workers >> self._died[slot.node])  # it may have been short of memory
                opened.append(Placed(replace(slot, workers=workers), actor.remote()))
        f = self.federation
        about = f.experiment, f.samples, f.shape, f.task, f.moments
        calls = {
            host: host.actor.start.remote(self.options.changed(out=None, workers=host.slot.workers), about)
            for host in opened
        }
        if calls and len(ray.wait(list(calls.values()), num_returns=len(calls), timeout=PATIENCE)[0]) < len(calls):
            text = "still waiting for CPUs or GPUs of some nodes: other work on the cluster has them"
            warnings.warn(text, ClusterWarning, stacklevel=2)
        found, _ = self.call(lambda host: calls[host], opened)
        self.hosts += found
        if not self.hosts:
            raise RunFailed("engine = 'ray': no node of the cluster could be used")
        _check_same(found)


def _check_same(found: Mapping[Placed, tuple[dict[str, str], str]]) -> None:
    """Raise if a node has other software than this machine; warn if it has another processor."""
    for host, (theirs, its_processor) in found.items():
        for what, version in software().items():
            if theirs[what] != version:
                node = f"the node {host.slot.address} has {what} {theirs[what]}, this machine {version}"
                raise UserError(f"engine = 'ray': {node}; install the same everywhere")
        if its_processor != processor():
            text = f"the node {host.slot.address} has another processor ({its_processor}) than this machine"
            warnings.warn(f"{text} ({processor()}): last bits of the result may differ", ClusterWarning, stacklevel=2)


def _reason(error: Exception) -> str:
    """Return the line of Ray's long message that says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "because" in line or "memory" in line.lower()), lines[0] if lines else "")
