"""The personalised models of the rounds worth keeping: the best, the one chosen by validation, and the last.

Staged at once, client by client, so that no round's models are held in memory; synced and renamed at the next
checkpoint. Deleted when neither of the last two checkpoints needs them, so that going back to a checkpoint finds the
models that were best by then. A finished run keeps what it and its last checkpoint need.
"""

import shutil
from collections.abc import Iterable, Set
from pathlib import Path

from orchard.core.vector import Model
from orchard.errors import UserError
from orchard.runs.files import Damaged, read_tensors, save_tensors
from orchard.whole import sync

VECTOR = "vector"


class ModelStore:
    """A folder for each round kept, in it a file for each client: its model's vector, and its buffers by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.needed_before = self.rounds()

    def rounds(self) -> set[int]:
        """Return the rounds whose models are kept."""
        return self._numbered("round-")

    def stage(self, round: int, models: Iterable[Model], keep: Set[int]) -> None:
        """Write a round's models, to be committed at the next checkpoint; discard what is not in `keep`."""
        home = self._staged(round)
        for client, (vector, buffers) in enumerate(models):
            home.mkdir(parents=True, exist_ok=True)
            tensors = {VECTOR: vector, **{f"buffers.{name}": buffer for name, buffer in buffers.items()}}
            save_tensors(home / _file(client), {name: tensor.cpu() for name, tensor in tensors.items()})
        self.discard_staged(keep)

    def commit(self, keep: Set[int]) -> None:
        """Commit the staged models of these rounds; delete rounds that neither this nor the last commit keeps."""
        self.discard_staged(keep)
        for round in self._numbered(".round-"):
            staged, home = self._staged(round), self._home(round)
            for file in staged.iterdir():
                sync(file)
            sync(staged)
            if home.exists():  # from before a crash; replaced file by file: a checkpoint may need it at any moment
                for file in staged.iterdir():
                    file.replace(home / file.name)
                sync(home)
                staged.rmdir()
            else:
                staged.replace(home)
            sync(self.folder)
        for round in self.rounds() - keep - self.needed_before:
            shutil.rmtree(self._home(round))
        self.needed_before = set(keep)

    def read(self, round: int, client: int) -> Model:
        """Return a client's model of a round."""
        try:
            tensors = read_tensors(self._home(round) / _file(client))
        except Damaged as damage:
            raise UserError(str(damage)) from None
        vector = tensors.pop(VECTOR)
        return vector, {name.removeprefix("buffers."): buffer for name, buffer in tensors.items()}

    def discard_staged(self, keep: Set[int] = frozenset()) -> None:
        """Delete what is staged and not in `keep`."""
        for round in self._numbered(".round-") - keep:
            shutil.rmtree(self._staged(round))

    def _numbered(self, prefix: str) -> set[int]:
        names = [path.name.removeprefix(prefix) for path in self.folder.glob(f"{prefix}*")]
        return {int(name) for name in names if name.isdecimal()}

    def _home(self, round: int) -> Path:
        return self.folder / f"round-{round:05d}"

    def _staged(self, round: int) -> Path:
        return self.folder / f".round-{round:05d}"


def _file(client: int) -> str:
    return f"{client}.safetensors"
