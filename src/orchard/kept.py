"""The personalised models of the rounds worth keeping: the best, the one chosen by validation, and the last.

They are written at once, client by client, so that no round's models are held in memory; with the next checkpoint
they are brought onto the disk and take their name. They are deleted when neither of the last two checkpoints needs
them, so that going back to a checkpoint finds the models that were best by then. A finished run keeps what it and its
last checkpoint need.
"""

import shutil
from collections.abc import Iterable, Set
from pathlib import Path

from orchard.checkpoints import Damaged, read_tensors, save_tensors, sync
from orchard.engines.local import Model
from orchard.errors import Refusal

VECTOR = "vector"


class KeptModels:
    """A folder for each round kept, in it a file for each client: its model's vector, and its buffers by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.needed_before = self.rounds()

    def rounds(self) -> set[int]:
        """Return the rounds that are on the disk."""
        return self._numbered("round-")

    def offer(self, round: int, models: Iterable[Model], worth: Set[int]) -> None:
        """Write a round's models, to be kept if they are still worth it at the next checkpoint."""
        home = self._waiting(round)
        home.mkdir(parents=True, exist_ok=True)
        for client, (vector, buffers) in enumerate(models):
            tensors = {VECTOR: vector, **{f"buffers.{name}": buffer for name, buffer in buffers.items()}}
            save_tensors(home / _file(client), {name: tensor.cpu() for name, tensor in tensors.items()})
        self.forget_waiting(worth)

    def save(self, worth: Set[int]) -> None:
        """Keep these rounds; delete what is no longer worth keeping and was not at the last checkpoint either."""
        self.forget_waiting(worth)
        for round in self._numbered(".round-"):
            waiting, home = self._waiting(round), self._home(round)
            for file in waiting.iterdir():
                sync(file)
            sync(waiting)
            if home.exists():  # the last round's, measured once more: what a checkpoint needs is there at any moment
                for file in waiting.iterdir():
                    file.replace(home / file.name)
                sync(home)
                waiting.rmdir()
            else:
                waiting.replace(home)
            sync(self.folder)
        for round in self.rounds() - worth - self.needed_before:
            shutil.rmtree(self._home(round))
        self.needed_before = set(worth)

    def read(self, round: int, client: int) -> Model:
        """Return a client's model of a round."""
        try:
            tensors = read_tensors(self._home(round) / _file(client))
        except Damaged as damage:
            raise Refusal(str(damage)) from None
        vector = tensors.pop(VECTOR)
        return vector, {name.removeprefix("buffers."): buffer for name, buffer in tensors.items()}

    def forget_waiting(self, worth: Set[int] = frozenset()) -> None:
        """Delete what waits for a checkpoint and is not worth it: all, where a run is taken up that was cut off."""
        for round in self._numbered(".round-") - worth:
            shutil.rmtree(self._waiting(round))

    def _numbered(self, prefix: str) -> set[int]:
        names = [path.name.removeprefix(prefix) for path in self.folder.glob(f"{prefix}*")]
        return {int(name) for name in names if name.isdecimal()}

    def _home(self, round: int) -> Path:
        return self.folder / f"round-{round:05d}"

    def _waiting(self, round: int) -> Path:
        return self.folder / f".round-{round:05d}"


def _file(client: int) -> str:
    return f"{client}.safetensors"
