"""Checks that a party keeps to the contract: what changes is declared, and nothing is modified in place."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from orchard.core.contract import Client, Party


class StateGuard:
    """Watches a party, and what it received, through a round."""

    def __init__(self, party: Party, received: Mapping[str, Any] | None = None) -> None:
        self.party = party
        self.before = dict(vars(party))
        self.watched = {**self.before, **{f"the received {name!r}": value for name, value in (received or {}).items()}}
        self.marks = {name: _mark(value) for name, value in self.watched.items()}

    def check(self) -> None:
        """Raise if an undeclared attribute was changed, or anything was modified in place."""
        kind = type(self.party).__name__
        for name, value in self.watched.items():
            if _mark(value) != self.marks[name]:
                advice = "replace it, e.g. self.x = self.x + y instead of self.x += y"
                raise TypeError(f"{kind} modifies {name} in place: {advice}")
        changed = {name for name, value in vars(self.party).items() if value is not self.before.get(name, self)}
        if forgotten := sorted(changed - {*self.party.state_keys, *round_keys(self.party)}):
            names = ", ".join(forgotten)
            advice = f"name it in {kind}.state_keys, so that a run can resume"
            raise TypeError(f"{kind} changes {names}: {advice}, or in round_keys, if it lasts for one round")

    def end_round(self) -> None:
        """Reset what lasts for one round only."""
        vars(self.party).update({name: self.before[name] for name in round_keys(self.party)})


def check_keys(party: Party) -> None:
    """Raise if a party's state cannot be saved and restored by name."""
    kind = type(party).__name__
    for which, keys in (("state_keys", party.state_keys), ("round_keys", round_keys(party))):
        if not isinstance(keys, tuple):
            raise TypeError(f"{kind}.{which} must be a tuple of names, e.g. ('model',), not {keys!r}")
        if missing := [name for name in keys if not hasattr(party, name)]:
            raise TypeError(f"{kind}.{which} names {missing[0]!r}, which __init__ does not set")


def round_keys(party: Party) -> tuple[str, ...]:
    """Return the attributes that last for one round; a server has none."""
    return party.round_keys if isinstance(party, Client) else ()


def _mark(value: Any) -> Any:
    """Return what changes if a value is modified in place; of other objects than data only their identity."""
    if isinstance(value, Tensor):
        return id(value), None if value.is_inference() else value._version
    if isinstance(value, np.ndarray):
        return id(value), hash(value.tobytes())
    if isinstance(value, list | tuple):
        return tuple(map(_mark, value))
    if isinstance(value, Mapping):
        return tuple((key, _mark(item)) for key, item in value.items())
    if isinstance(value, set):
        return frozenset(value)
    return id(value)


def tensors_in(state: Any) -> list[Tensor]:
    """Return the tensors of a state."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(state, note)
    return found


def map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return a state with a function applied to each of its tensors."""
    if isinstance(value, Tensor):
        return function(value)
    if type(value) in (list, tuple):
        return type(value)(map_tensors(item, function) for item in value)
    if type(value) is dict:
        return {key: map_tensors(item, function) for key, item in value.items()}
    return value
