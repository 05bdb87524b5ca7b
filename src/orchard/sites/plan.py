"""The plan of a run, on which all sites agree; a job carries nothing else.

It leaves out what each site decides for itself: the path of its data, its device, what it allows. See `settings.py`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from orchard.data.known_scale import at_scale, misnamed
from orchard.errors import UserError
from orchard.experiment import Experiment, RunOptions
from orchard.privacy.accounting import check_installed
from orchard.runs.files import check_format
from orchard.settings import Settings, read_toml, validated
from orchard.tasks.registry import task_named
from orchard.tasks.task import Task

RUN = r"[a-z0-9][a-z0-9-]{0,63}"
"""A run's name becomes a folder's name at every party, so it must not be a path."""
NAME = r"[A-Za-z0-9][A-Za-z0-9-]{0,62}"
LABEL = r"[\w][\w .-]{0,59}"
FORMAT = 3
FILE = "plan.json"
"""The plan's file in a job and in the coordinator's run folder."""
TABLE = "deploy"
"""The table of an experiment's file that holds the `Agreement`."""


class Agreement(Settings):
    """The table `[deploy]` of an experiment's file."""

    classes: list[str] = Field(
        min_length=1, description="names in the order of the labels 0, 1, ...; of the findings, or of the numbers"
    )
    min_sites: int | None = Field(default=None, ge=1, description="fewer do not make a round; default: more than half")
    round_seconds: int = Field(default=3600, ge=1, description="how long a site may take over a round")
    patience_seconds: int = Field(default=600, ge=0, description="how long to wait for absent sites before a start")
    norm_bound: float = Field(default=100.0, gt=1, description="a model's norm, in those of an initial core")
    scale_bound: float = Field(
        default=10.0, gt=1, description="an upload's length, and its step, in medians of all sites' in the last rounds"
    )
    samples: dict[str, Annotated[int, Field(ge=1)]] | None = Field(
        default=None, description="each site's training samples, if they are agreed; needed if one has more than half"
    )

    @field_validator("classes")
    @classmethod
    def _check_unique(cls, classes: list[str]) -> list[str]:
        if len(set(classes)) < len(classes):
            raise ValueError("classes: two have the same name")
        return classes


class Plan(Settings):
    """A run of a federation on separate machines."""

    format: int = FORMAT
    run: str = Field(pattern=f"^{RUN}$")
    sites: list[str] = Field(min_length=1)
    experiment: Experiment
    agreement: Agreement
    purpose: Literal["training", "statistics"] = "training"
    """What sites are asked for; a site does nothing else with this plan."""

    @model_validator(mode="before")
    @classmethod
    def _check_dataset_is_no_path(cls, values: Any) -> Any:
        """Raise if the dataset is a path, before anything is read: the plan may come from another machine."""
        experiment = values.get("experiment") if isinstance(values, Mapping) else None
        dataset = experiment.get("dataset") if isinstance(experiment, Mapping) else None
        if dataset is not None and not (isinstance(dataset, str) and re.fullmatch(LABEL, dataset)):
            raise ValueError(f"experiment.dataset = {dataset!r}: here it is a name for people, not a path")
        return values

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        experiment, minimum = self.experiment, self.agreement.min_sites
        for site in self.sites:
            if not re.fullmatch(NAME, site):
                raise ValueError(f"sites: {site!r}: letters, digits and hyphens make a name")
        if experiment.clients != len(self.sites) or experiment.partition.name != "given":
            raise ValueError("experiment: clients are the sites, and their data are given")
        if experiment.scale is not None and (reason := misnamed(experiment.scale, self.numbers)):
            raise ValueError(f"experiment.{reason}")
        if len(self.agreement.classes) < 2 and self.task.name in ("classification", "segmentation"):
            raise ValueError("agreement.classes: at least two, the first being 0")
        if experiment.table is not None and experiment.table.columns is None:
            raise ValueError(
                "experiment.table.columns: all sites need the same features, so name each column's kind; "
                "orchard data show FILE prints them"
            )
        if experiment.shift is not None:
            raise ValueError("experiment.shift: the sites' data are as they are")
        if not isinstance(experiment.model, str):
            raise ValueError("experiment.model: must be named, since code does not travel")
        if experiment.privacy is not None:
            if self.purpose == "statistics":
                raise ValueError("experiment.privacy: statistics have no noise; ask for them without, or not at all")
            _check_private(experiment, self.numbers)
        agreed = self.agreement.samples
        if agreed is not None and agreed.keys() != set(self.sites):
            raise ValueError(f"agreement.samples: must name every site once: {', '.join(self.sites)}")
        if minimum is not None and minimum > len(self.sites):
            raise ValueError(f"agreement.min_sites = {minimum}: there are {len(self.sites)} sites")
        return self

    @property
    def task(self) -> Task:
        """What is predicted: classification, unless the experiment says otherwise."""
        scale = ((), ()) if self.experiment.task == "regression" else None
        task = task_named(self.experiment.task or "classification", self.agreement.classes, scale)
        return task if self.experiment.scale is None else at_scale(task, self.experiment.scale)

    @property
    def shared_numbers(self) -> int:
        """How many columns of a table sites standardise together."""
        table = self.experiment.table
        return len(_columns_of_numbers(self.experiment)) if table is not None and table.scaling == "shared" else 0

    @property
    def numbers(self) -> list[str]:
        """What is standardised: columns of numbers, and what regression predicts."""
        predicted = self.agreement.classes if self.experiment.task == "regression" else []
        return [*_columns_of_numbers(self.experiment), *predicted]

    @property
    def min_sites(self) -> int:
        """How many sites must answer for a round to count."""
        return self.agreement.min_sites or len(self.sites) // 2 + 1

    def to_json(self) -> str:
        """Return the plan as JSON."""
        return self.model_dump_json(indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a plan from JSON; raise if it is not valid."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"the plan of the run is not valid: {error}") from None
        if isinstance(values, dict):
            check_format(values.get("format"), FORMAT, "plan", values.get("run", "the run"))
        try:
            return cls.model_validate_json(text)
        except (UserError, ValueError, RecursionError) as error:
            raise UserError(f"the plan of the run is not valid: {error}") from None


def _columns_of_numbers(experiment: Experiment) -> list[str]:
    columns = (experiment.table and experiment.table.columns) or {}
    return [name for name, kind in columns.items() if kind == "number"]


def _check_private(experiment: Experiment, numbers: Sequence[str]) -> None:
    """Raise if anything would be made of the data that is on no account, or if accounts cannot be kept here."""
    check_installed()
    if experiment.fraction < 1:
        raise ValueError(
            f"experiment.fraction = {experiment.fraction:g}: is taken of every class, by the labels, which have no "
            "noise; leave it out"
        )
    if numbers and experiment.scale is None:
        raise ValueError(
            f"experiment.privacy: {numbers[0]!r} would be standardised by an exact mean, which has no noise; say what "
            f"is known of all such numbers without these data: [scale] {json.dumps(numbers[0])} = [MEAN, DEVIATION]"
        )


def make_plan(file: Path, run: str, sites: list[str], purpose: str = "training") -> Plan:
    """Make a plan from an experiment's file with a table `[deploy]`; run options are left to the sites."""
    values: dict[str, Any] = read_toml(file)
    if TABLE not in values:
        raise UserError(f'{file}: has no table [{TABLE}]; it needs one with at least: classes = ["first", "second"]')
    agreement = values.pop(TABLE)
    if values.get("engine", "local") != "local":
        raise UserError(f"{file}: engine = {values['engine']!r}: sites train on their own machines; leave it out")
    values = {key: value for key, value in values.items() if key not in RunOptions.model_fields}
    values |= {"clients": len(sites), "partition": {"name": "given"}}
    values.setdefault("dataset", "sites")
    plan = {"run": run, "sites": sites, "experiment": values, "agreement": agreement, "purpose": purpose}
    try:
        return validated(Plan, plan)
    except UserError as error:
        raise UserError(f"{file}: {as_written(str(error))}") from None


def as_written(explained: str) -> str:
    """Return messages about a plan with the settings named as in an experiment's file."""
    return re.sub("^experiment[.]", "", re.sub("^agreement[.]", f"{TABLE}.", explained, flags=re.M), flags=re.M)
