"""A run for TensorBoard: each client's figures as scalars, the relationships as pictures."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from numpy.typing import NDArray

from orchard.errors import Refusal
from orchard.folder import RunFolder
from orchard.results import Result
from orchard.rounds import Exchange

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"
COLOURS = "RdBu"
CELL = 16
"""Pixels of a relationship's side."""


class EventWriter:
    """Follows a run and writes what is new in its folder after every exchange."""

    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            text = "--tensorboard: TensorBoard is not installed; install it with: pip install 'orchard[tensorboard]'"
            raise Refusal(text) from None
        self.folder, self.kind = RunFolder(run), SummaryWriter
        self.writer: SummaryWriter | None = None  # it writes a file at once, and a run begins in an empty folder
        self.written = 0

    def __call__(self, exchange: Exchange) -> None:
        """Write the rounds that the folder has and the events lack."""
        result = self.folder.result()
        if self.writer is None:
            self.writer = self.kind(str(self.folder.path / FOLDER))
            _write_relationships(self.writer, result, 0)
        for r in range(self.written, len(result.rounds)):
            _write_round(self.writer, result, r)
        self.written = len(result.rounds)
        self.writer.flush()

    def close(self) -> None:
        """Finish the file."""
        if self.writer:
            self.writer.close()


def _write_round(writer: "SummaryWriter", result: Result, r: int) -> None:
    """Write one round as steps of TensorBoard, which count finished rounds."""
    accuracy, loss = result.accuracy()[r], np.array(result.rounds[r].loss, dtype=np.float64)
    for name, values in (("test accuracy", accuracy), ("training loss", loss)):
        for client, value in zip(result.holdings.clients, values, strict=True):
            if not np.isnan(value):
                writer.add_scalar(f"{name}/{client}", value, r + 1)
    if not np.isnan(accuracy).any():
        writer.add_scalar("mean test accuracy", accuracy.mean(), r + 1)
    _write_relationships(writer, result, r + 1)


def _write_relationships(writer: "SummaryWriter", result: Result, step: int) -> None:
    if result.relationships is not None:
        writer.add_image("relationships", _picture(result.relationships[step]), step, dataformats="HWC")


def _picture(matrix: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Draw a matrix, −1 to 1 from red over white to blue; the same colours in every round."""
    pixels = colormaps[COLOURS]((np.clip(matrix, -1, 1) + 1) / 2, bytes=True)[..., :3]
    return np.kron(pixels, np.ones((CELL, CELL, 1), dtype=np.uint8))
