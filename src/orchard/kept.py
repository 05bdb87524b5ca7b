"""The personalised models of the rounds worth keeping: the best, the one chosen by validation, and the last.

They are written with checkpoints, and deleted when neither of the last two checkpoints needs them, so that going back
to a checkpoint finds the models that were best by then. A finished run keeps what it and its last checkpoint need.
"""

import shutil
from collections.abc import Sequence, Set
from pathlib import Path

from orchard.checkpoints import Damaged, read_tensors, write_tensors
from orchard.engines.local import Model
from orchard.errors import Refusal

VECTOR = "vector"


class KeptModels:
    """A folder for each round kept, in it a file for each client: its model's vector, and its buffers by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.waiting: dict[int, Sequence[Model]] = {}
        self.needed_before = self.rounds()

    def rounds(self) -> set[int]:
        """Return the rounds that are on the disk."""
        names = [path.name.removeprefix("round-") for path in self.folder.glob("round-*")]
        return {int(name) for name in names if name.isdecimal()}

    def offer(self, round: int, models: Sequence[Model], worth: Set[int]) -> None:
        """Hold a round's models until the next checkpoint if they are worth it."""
        self.waiting[round] = models
        self.waiting = {r: held for r, held in self.waiting.items() if r in worth}

    def save(self, worth: Set[int]) -> None:
        """Write these rounds; delete what is no longer worth keeping and was not at the last checkpoint either."""
        for round in worth & self.waiting.keys():
            models = self.waiting.pop(round)
            home = self._home(round)
            home.mkdir(parents=True, exist_ok=True)
            for client, (vector, buffers) in enumerate(models):
                tensors = {VECTOR: vector, **{f"buffers.{name}": buffer for name, buffer in buffers.items()}}
                write_tensors(home / f"{client}.safetensors", {name: t.cpu() for name, t in tensors.items()})
        for round in self.rounds() - worth - self.needed_before:
            shutil.rmtree(self._home(round))
        self.needed_before = set(worth)

    def read(self, round: int, client: int) -> Model:
        """Return a client's model of a round."""
        try:
            tensors = read_tensors(self._home(round) / f"{client}.safetensors")
        except Damaged as damage:
            raise Refusal(str(damage)) from None
        vector = tensors.pop(VECTOR)
        return vector, {name.removeprefix("buffers."): buffer for name, buffer in tensors.items()}

    def _home(self, round: int) -> Path:
        return self.folder / f"round-{round:05d}"
