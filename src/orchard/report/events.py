"""Write a run for TensorBoard: each client's figures as scalars, the relationships as images."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from numpy.typing import NDArray

from orchard.errors import UserError
from orchard.runs.figures import mean_over_clients
from orchard.runs.result import Result

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"
COLOURS = "RdBu"
CELL = 16
"""The side of one matrix entry, in pixels."""


def summary_writer() -> "type[SummaryWriter]":
    """Return TensorBoard's writer; raise if it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        text = "--tensorboard: TensorBoard is not installed; install it with: pip install 'orchard[tensorboard]'"
        raise UserError(text) from None
    return SummaryWriter


class EventWriter:
    """Writes a run's rounds as they are completed."""

    def __init__(self, run: Path) -> None:
        self.folder, self.kind = run / FOLDER, summary_writer()
        self.writer: SummaryWriter | None = None  # made later: it creates a file, but a run needs an empty folder
        self.written = 0

    def __call__(self, result: Result) -> None:
        """Write the rounds that are complete and not written yet."""
        if self.writer is None:
            self.writer = self.kind(str(self.folder))
            _write_relationships(self.writer, result, 0)
        while self.written < result.complete_rounds():
            _write_round(self.writer, result, self.written)
            self.written += 1
        self.writer.flush()

    def close(self) -> None:
        """Finish the file."""
        if self.writer:
            self.writer.close()


def _write_round(writer: "SummaryWriter", result: Result, r: int) -> None:
    """Write one round; its step in TensorBoard is the number of finished rounds."""
    scores, loss = result.scores()[r], np.array(result.rounds[r].loss, dtype=np.float64)
    title = result.task.measures[result.task.score].title
    for name, values in ((f"test {title}", scores), ("training loss", loss)):
        for client, value in zip(result.distribution.clients, values, strict=True):
            if not np.isnan(value):
                writer.add_scalar(f"{name}/{client}", value, r + 1)
    mean = mean_over_clients(result.scores())[r]
    if not np.isnan(mean):
        writer.add_scalar(f"mean test {title}", mean, r + 1)
    _write_relationships(writer, result, r + 1)


def _write_relationships(writer: "SummaryWriter", result: Result, step: int) -> None:
    if result.relationships is not None:
        writer.add_image("relationships", _picture(result.relationships[step]), step, dataformats="HWC")


def _picture(matrix: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Draw a matrix in fixed colours: −1 is red, 0 is white, 1 is blue."""
    pixels = colormaps[COLOURS]((np.clip(matrix, -1, 1) + 1) / 2, bytes=True)[..., :3]
    return np.kron(pixels, np.ones((CELL, CELL, 1), dtype=np.uint8))
