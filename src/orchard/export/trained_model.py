"""A client's trained model with its metadata, from a run folder or from a site's record."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from orchard import __version__
from orchard.core.evaluation import Scores
from orchard.core.federation import Federation
from orchard.core.vector import Model
from orchard.data.samples import Samples
from orchard.experiment import Experiment
from orchard.runs.result import module_of
from orchard.tasks.task import Task

FORMAT = 2
"""The format of an exported file's metadata."""
Choice = Literal["best", "last", "validation", "own-validation", "joined"]
"""Which round's model: the best by mean test score, the last, the best by mean validation score, or the best by the
client's own validation score, of a site or of a newcomer to a finished run."""


@dataclass(frozen=True)
class TrainedModel:
    """A client's model, with all that goes into its file and its card."""

    federation: Federation
    client: str
    clients: int
    """How many clients trained together."""
    sizes: Mapping[str, int]
    """The client's number of samples, by part: train, validation, test."""
    counts: Mapping[str, Sequence[int]]
    """How many of them hold each class, by part."""
    scores: Scores
    round: int
    choice: Choice
    model: Model
    preparation: Mapping[str, Any] | None = None
    """How rows of a table become samples, if the data are one."""
    test: Samples | None = None
    """The client's test samples, if they are at hand and the card needs them."""

    told: bool = True
    """Whether the card may hold exact figures of the client's data: its classes, how well the model does on them."""

    @property
    def task(self) -> Task:
        """What the model predicts."""
        return self.federation.task

    @property
    def experiment(self) -> Experiment:
        """The experiment that was run."""
        return self.federation.experiment

    def module(self) -> nn.Module:
        """Return the model as an ordinary module."""
        return module_of(self.federation, self.model).cpu()

    def about(self) -> dict[str, Any]:
        """Return the metadata to store in the model's file."""
        experiment = self.experiment
        return {
            "format": FORMAT,
            "orchard": __version__,
            "model": experiment.model_dump(mode="json")["model"],
            "dtype": str(self.model[0].dtype).removeprefix("torch."),
            "shape": list(self.federation.shape),
            "layout": experiment.layout,
            "task": self.task.name,
            "classes": list(self.task.classes),
            "scale": self.task.scale(),
            "preparation": self.preparation,
            "images": experiment.images and experiment.images.model_dump(mode="json"),
            "client": self.client,
            "method": experiment.method.name,
            "dataset": Path(experiment.dataset).name,
            "round": self.round,
            "chosen": self.choice,
        }
