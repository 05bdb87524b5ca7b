"""Uploads against the scale of the federation: no member sends vectors of another size, or leaps.

Of every vector that travels both ways count its length ‖w‖ and its step ‖w − before‖: from what the server has just
sent the client under that name, or from the client's last upload, or in the first round from an initial model. Both
are compared with the median of all clients' in this round and the last ones. Refused uploads count there too: a
minority cannot move the median, and honest clients whose steps all grow are not refused for long.
"""

from collections.abc import Mapping, Sequence
from statistics import median_high
from typing import Any

import torch
from torch import Tensor

from orchard.core.contract import ClientUpdate, Failure, Vectors
from orchard.core.federation import Federation

LAST_ROUNDS = 3
SHORTEST = 0.1
"""The median step counts as this share of the median length at least: some clients hardly move at first, others do."""
FEWEST = 3
"""With fewer clients there is no majority to compare with."""


class Scale:
    """The lengths and steps of the last rounds' uploads, and by which factor one may exceed their median."""

    def __init__(self, federation: Federation, factor: float, names: Sequence[str]) -> None:
        self.federation, self.factor, self.names = federation, factor, names
        lengths = set(federation.traffic.down.values())
        self.compared = [name for name, length in federation.traffic.up.items() if length in lengths]
        self.last: dict[int, Vectors] = {}
        """Each client's last good upload."""
        self.rounds: list[dict[str, list[list[float]]]] = []
        """Of each round, by name: length and step of every upload."""

    def checked(
        self, round: int, sent: Mapping[int, Vectors], updates: Mapping[int, ClientUpdate | Failure]
    ) -> dict[int, ClientUpdate | Failure]:
        """Return the updates of a round; one that is out of scale becomes a failure."""
        uploads = {i: u.upload for i, u in updates.items() if isinstance(u, ClientUpdate) and u.upload}
        if not uploads:
            return dict(updates)
        sizes = {
            i: {name: self._size(i, name, upload, sent) for name in self.compared} for i, upload in uploads.items()
        }
        now = {name: [mine[name] for mine in sizes.values()] for name in self.compared}
        self.rounds = [*self.rounds, now][-LAST_ROUNDS - 1 :]
        refused = {i: why for i in uploads if (why := self._beyond(i, sizes[i], uploads[i], sent.get(i, {})))}
        self.last = {**self.last, **{i: upload for i, upload in uploads.items() if i not in refused}}
        failures = {i: Failure(self.names[i], round, f"rejected: {why}") for i, why in refused.items()}
        return {**updates, **failures}

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {"last": {i: dict(upload) for i, upload in self.last.items()}, "rounds": self.rounds}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self.last, self.rounds = state["last"], state["rounds"]

    def _size(self, client: int, name: str, upload: Vectors, sent: Mapping[int, Vectors]) -> list[float]:
        """Return length and step of a vector."""
        vector, received = upload[name], sent.get(client, {})
        if name in received:
            before = [received[name]]
        elif client in self.last:
            before = [self.last[client][name]]
        else:
            before = self._initial(client, len(vector))
        return [_norm(vector), _nearest(vector, before)]

    def _initial(self, client: int, length: int) -> list[Tensor]:
        """Return the vectors that a client may have started from."""
        models = [self.federation.initial_model(), self.federation.initial_core(client)]
        return [model for model in models if len(model) == length]

    def _beyond(self, client: int, sizes: Mapping[str, Sequence[float]], upload: Vectors, sent: Vectors) -> str:
        """Return what is out of scale; an empty string if nothing is."""
        for name, (length, step) in sizes.items():
            if len(self.rounds[-1][name]) < FEWEST:
                continue
            seen = [size for round in self.rounds for size in round[name]]
            usual, usual_step = (median_high(column) for column in zip(*seen, strict=True))
            if length > self.factor * usual:
                return f"the length of {name!r} is {length / usual:.0f} times the median"
            least = max(usual_step, SHORTEST * usual)
            anew = name not in sent and self._begins_anew(client, upload[name], usual_step)
            if step <= self.factor * least or anew:
                continue
            # A client that was away goes on from what it has just received.
            alike = [other for other in sent.values() if other.shape == upload[name].shape]
            if not alike or _nearest(upload[name], alike) > self.factor * least:
                return f"the step of {name!r} is {step / least:.0f} times the median"
        return ""

    def _begins_anew(self, client: int, vector: Tensor, usual_step: float) -> bool:
        """Tell whether a vector is a step from an initial model, as that of a site which has lost its records."""
        return any(
            _nearest(vector, [model]) <= self.factor * max(usual_step, SHORTEST * _norm(model))
            for model in self._initial(client, len(vector))
        )


def _nearest(vector: Tensor, others: Sequence[Tensor]) -> float:
    """Return the distance from the nearest of some vectors; from 0, if there are none."""
    return min((_norm(vector - other.to(vector)) for other in others), default=_norm(vector))


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))
