"""What a newcomer needs of a finished run: the experiment, what its clients brought, and the server's last state.

It holds no client's data, relationships or personalised model. On disk it is a folder with one checkpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from orchard.core.federation import Federation
from orchard.data.tables.encoding import Schema
from orchard.data.tables.scaling import Moments, Scaling
from orchard.errors import UserError
from orchard.experiment import Experiment
from orchard.runs.checkpoints import read_newest, write_checkpoint
from orchard.runs.folder import RunFolder
from orchard.settings import validated
from orchard.tasks.registry import task_named
from orchard.tasks.task import Task


@dataclass(frozen=True)
class Offer:
    """What a run offers to a newcomer."""

    experiment: Experiment
    clients: list[str]
    samples: list[int]
    """The training samples of each client."""
    shape: list[int]
    task: Task
    server: Mapping[str, Any]
    """The server's state after the last round."""
    table: Schema | None = None
    """How rows of a table become numbers, if the data are one and were in one place."""
    scaling: Scaling | None = None
    """How these are standardised, if all clients share that."""
    moments: Moments | None = None
    """The same, if the clients were on separate machines."""

    @classmethod
    def of(cls, folder: RunFolder) -> Self:
        """Return what a finished run offers, of clients in one process or, at their server, on separate machines."""
        result = folder.header()
        held, experiment = result.distribution, result.experiment
        checkpoint, problems = folder.newest_checkpoint()
        if checkpoint is None:
            elsewhere = "that of a run between sites is at their server: orchard offer STORAGE/runs/RUN --to FOLDER"
            raise UserError("\n".join([*problems, f"{folder.path}: has no checkpoint; {elsewhere}"]))
        if checkpoint["rounds"] < experiment.rounds:
            raise UserError("\n".join([*problems, f"{folder.path}: the run is not finished"]))
        shared = experiment.table is not None and experiment.table.scaling == "shared"
        prepared = held.preparations[0] if held.preparations else None
        return cls(
            experiment.model_copy(update={"dataset": Path(experiment.dataset).name}),
            held.clients,
            held.samples["train"],
            held.shape,
            result.task,
            checkpoint["server"],
            validated(Schema, prepared["table"]) if prepared else None,
            validated(Scaling, prepared["scaling"]) if prepared and shared else None,
            result.federation.moments,
        )

    def federation(self) -> Federation:
        """Return the federation as it was, without the newcomer."""
        return Federation(self.experiment, tuple(self.samples), tuple(self.shape), self.task)

    def shared_moments(self) -> Moments:
        """Return the moments by which separate machines standardise."""
        if self.moments is None:
            raise UserError("the run has not kept how its tables were standardised")
        return self.moments

    def write(self, folder: Path) -> None:
        """Write the offer into a new folder."""
        try:
            folder.mkdir(parents=True, exist_ok=False)
        except OSError as error:
            raise UserError(f"{folder}: cannot be made: {error.strerror or error}") from None
        content = {
            "experiment": self.experiment.model_dump(mode="json"),
            "clients": self.clients,
            "samples": self.samples,
            "shape": self.shape,
            "task": [self.task.name, list(self.task.classes), self.task.scale()],
            "server": dict(self.server),
            "table": self.table and self.table.model_dump(mode="json"),
            "scaling": self.scaling and self.scaling.model_dump(mode="json"),
            "moments": self.moments and self.moments.model_dump(mode="json"),
        }
        write_checkpoint(folder, self.experiment.rounds, content)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read an offer, or make that of a run, from its folder."""
        if (folder / "experiment.toml").exists():
            return cls.of(RunFolder(folder))
        content, problems = read_newest(folder)
        if content is None:
            raise UserError("\n".join(problems) or f"{folder}: is neither a run's folder nor an offer's")
        try:
            return cls(
                validated(Experiment, content["experiment"]),
                **{name: content[name] for name in ("clients", "samples", "shape", "server")},
                task=task_named(*content["task"]),
                table=content["table"] and validated(Schema, content["table"]),
                scaling=content["scaling"] and validated(Scaling, content["scaling"]),
                moments=content["moments"] and validated(Moments, content["moments"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{folder}: is not an offer: {error!r}") from None
