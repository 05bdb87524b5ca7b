"""What the sites of a federation on separate machines have agreed upon; what a job carries, and all that it carries.

What belongs to a site alone is not in it: where its data are, its device, what it allows. See `orchard.site`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from orchard.errors import Refusal
from orchard.experiment import Experiment
from orchard.settings import Settings, explain, read_toml

RUN = r"[a-z0-9][a-z0-9-]{0,63}"
"""A run's name becomes a folder's name at every party, so it must not be a path."""
NAME = r"[A-Za-z0-9][A-Za-z0-9-]{0,62}"
LABEL = r"[\w][\w .-]{0,59}"
FILE = "plan.json"
"""The file of a job, and of a coordinator's run folder, with what is planned."""
TABLE = "deploy"
"""The table of an experiment's file with what is agreed upon beside the experiment."""


class Agreement(Settings):
    """The table `[deploy]` of an experiment's file."""

    classes: list[str] = Field(min_length=2, description="names in the order of the labels 0, 1, ...")
    min_sites: int | None = Field(default=None, ge=1, description="fewer do not make a round; default: more than half")
    round_seconds: int = Field(default=3600, ge=1, description="how long a site may take over a round")
    patience_seconds: int = Field(default=600, ge=0, description="how long to wait for absent sites before a start")
    norm_bound: float = Field(default=100.0, gt=1, description="a model's norm, in those of an initial core")

    @field_validator("classes")
    @classmethod
    def _refuse_twins(cls, classes: list[str]) -> list[str]:
        if len(set(classes)) < len(classes):
            raise ValueError("classes: two have the same name")
        return classes


class Plan(Settings):
    """A run of a federation on separate machines."""

    run: str = Field(pattern=f"^{RUN}$")
    sites: list[str] = Field(min_length=1)
    experiment: Experiment
    agreement: Agreement

    @model_validator(mode="before")
    @classmethod
    def _refuse_a_path(cls, values: Any) -> Any:
        """Before anything is looked up on the disk: a plan may come from afar."""
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
        if not isinstance(experiment.model, str):
            raise ValueError("experiment.model: must be named, since code does not travel")
        if minimum is not None and minimum > len(self.sites):
            raise ValueError(f"agreement.min_sites = {minimum}: there are {len(self.sites)} sites")
        return self

    @property
    def min_sites(self) -> int:
        """How many sites make a round."""
        return self.agreement.min_sites or len(self.sites) // 2 + 1

    def to_json(self) -> str:
        """Write it down for a job."""
        return self.model_dump_json(indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read it from a job; whatever does not fit is refused."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise Refusal(f"the plan of the run is not valid: {explain(error)}") from None


def make_plan(file: Path, run: str, sites: list[str]) -> Plan:
    """Read an experiment's file with its table `[deploy]`; what a site decides for itself is left out."""
    values: dict[str, Any] = read_toml(file)
    if TABLE not in values:
        raise Refusal(f'{file}: has no table [{TABLE}]; it needs one with at least: classes = ["first", "second"]')
    agreement = values.pop(TABLE)
    for key in ("data_dir", "device", "workers", "out", "checkpoint_every"):
        values.pop(key, None)
    values |= {"clients": len(sites), "partition": {"name": "given"}, "checkpoint_every": 1}
    values.setdefault("dataset", "sites")
    try:
        return Plan.model_validate({"run": run, "sites": sites, "experiment": values, "agreement": agreement})
    except ValidationError as error:
        raise Refusal(f"{file}: {explain(error)}") from None
