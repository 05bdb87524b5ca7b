"""What a run is: an experiment, which decides the result, and run options, which do not (but for the last bits).

Resuming a run, reusing a finished one and planning one for sites compare experiments and ignore options.

Defaults are the paper's (12 clients, 160 rounds of 5 epochs, batch 256, learning rate 0.01), except where a
dataset is too small for them: see `orchard.data.catalogue.DEFAULTS`. The method is not the paper's: who has no other
reason starts with the one that is regretted least (docs/choosing.md).
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import BeforeValidator, Field, SerializeAsAny, field_serializer, model_validator

from orchard.data.axes import Layout
from orchard.data.catalogue import CATALOGUE, DEFAULTS, NAMES, TABLE_DEFAULTS
from orchard.data.folders import (
    first_image,
    folder_kind,
    has_masks,
    is_ordinary,
    is_table,
    own_folder,
    site_tables,
    subfolders,
)
from orchard.data.medical.scans import MedicalSettings
from orchard.data.owners import count_owners_in
from orchard.data.partitions import Partition, Practical, column_key
from orchard.data.shifts import Shift
from orchard.data.tables.settings import Scale, TableSettings
from orchard.errors import UserError
from orchard.method import MethodSettings
from orchard.privacy.settings import Privacy
from orchard.settings import LaxPath, Settings, checked, named, parsed_toml, read_toml, validated

DEFAULT_METHOD = "graft"


def _method(value: object) -> object:
    value = named(value)
    if not isinstance(value, Mapping):
        return value
    from orchard.methods.registry import method_settings  # late: methods import this module

    return checked(method_settings(str(value.get("name", DEFAULT_METHOD))), dict(value))


Method = Annotated[SerializeAsAny[MethodSettings], BeforeValidator(_method)]


class Experiment(Settings):
    """Everything that decides the result of a run."""

    dataset: str = Field(
        default="digits", description="a dataset's name, or a path: images in folders, arrays in an .npz, tables"
    )
    task: Literal["classification", "multilabel", "regression", "segmentation"] | None = Field(
        default=None, description="what is predicted; none: what the data are obviously for"
    )
    layout: Layout | None = Field(default=None, description="what the axes of arrays are; none: what is obvious")
    table: TableSettings | None = Field(default=None, description="of tables: what each column is for")
    scale: Scale | None = Field(
        default=None,
        description="mean and deviation of each number, known beforehand, e.g. `age = [54, 9]`: of a table's columns, "
        "and of what regression predicts; none: made of the data",
    )
    size: int = Field(default=28, ge=1, description="side of the images; other sizes are resized")
    images: MedicalSettings | None = Field(
        default=None, description="of DICOM and NIfTI files: window, spacing and depth; none: there are no such files"
    )
    split: Literal["merged", "official"] = Field(
        default="merged", description="of MedMNIST: all parts merged and split 80/20, or its own test set"
    )
    fraction: float = Field(default=1.0, gt=0, le=1, description="share of the training data used; tests stay whole")
    clients: int = Field(default=12, ge=1, description="how many; as many as the data name, if they name some")
    partition: Partition = Field(
        default=Practical(), description="who holds what: the name of a partition, or a table of its settings"
    )
    shift: Shift | None = Field(
        default=None, description="a difference between groups of clients: its kind, or a table of its settings"
    )
    method: Method = Field(
        default_factory=lambda: _method(DEFAULT_METHOD),
        validate_default=True,
        description="the name of a method, or a table of its parameters",
    )
    model: str | Callable[..., Any] = Field(default="cnn", description='a name, a factory, or "package.module:factory"')
    rounds: int = Field(default=160, ge=1, description="how often clients and server exchange models")
    epochs: int = Field(default=5, ge=1, description="local epochs per round")
    batch_size: int = Field(default=256, ge=1, description="samples in a training step")
    lr: float = Field(default=0.01, ge=0, allow_inf_nan=False, description="η1, the learning rate of the networks")
    lr_decay: float = Field(default=1.0, gt=0, le=1, description="factor on all learning rates after each round")
    momentum: float | None = Field(
        default=None, ge=0, lt=1, description="β of the local SGD; none: the method's own, which is 0.9 for most"
    )
    robust: bool = Field(default=False, description="withstand dishonest clients, at a price: see dishonest.md")
    seed: int = Field(default=42, ge=0, lt=2**63, description="of initial models, batch order and choices of cores")
    privacy: Privacy | None = Field(default=None, description="differential privacy for each record; none: without")

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults_of_the_dataset(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        for key in values:
            if key in RunOptions.model_fields:
                raise ValueError(f"{key}: is a run option, not part of the experiment: orchard.run(…, {key}=…)")
        if isinstance(values.get("dataset"), Path):
            values = {**values, "dataset": str(values["dataset"])}
        dataset = str(values.get("dataset", "digits"))
        volumes = _setting(values.get("images"), "depth") is not None
        defaults = {"partition": {"name": "practical"}, **_dataset_defaults(dataset, values, volumes)}
        if values.get("task", defaults.get("task")) == "segmentation":
            defaults["model"] = "unet"
        elif volumes:
            defaults["model"] = "small-cnn"
        partition = values.get("partition")
        chosen = named(partition)
        name = chosen.get("name") if isinstance(chosen, Mapping) else getattr(partition, "name", None)
        if dataset in CATALOGUE and name == CATALOGUE[dataset].natural_name:
            defaults["clients"] = CATALOGUE[dataset].natural[1]
        key = column_key(partition)
        if key and "clients" not in values and Path(dataset).suffix.lower() == ".npz":
            owners = count_owners_in(Path(dataset), key)
            defaults |= {"clients": owners} if owners else {}
        if isinstance(partition, Mapping) and "name" not in partition:
            values = {**values, "partition": {**defaults["partition"], **partition}}
        return {**defaults, **values}

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        try:
            self.method.check(self)
        except ValueError as error:
            raise ValueError(f"method.{error}") from None
        if self.scale is not None and self.table is not None and self.table.scaling == "shared":
            raise ValueError('scale: is known, and not made of the sites\' data; leave table.scaling = "shared" out')
        if self.robust and not self.method.withstands:
            able = "methods that average one model, and apple, fedfomo and graft, have one"
            raise ValueError(f"robust = true: {self.method.name} has no defence against dishonest clients; {able}")
        return self

    @field_serializer("model")
    def _name_of_the_model(self, model: str | Callable[..., Any]) -> str:
        return model if isinstance(model, str) else f"{model.__module__}:{getattr(model, '__qualname__', model)}"

    @property
    def local_momentum(self) -> float:
        """β of the local SGD."""
        return self.method.momentum if self.momentum is None else self.momentum

    @property
    def volumes(self) -> bool:
        """Whether samples are volumes."""
        return self.images is not None and self.images.depth is not None

    def batches(self, samples: int, epochs: int | None = None) -> int:
        """Return how many batches some epochs have, by default the local ones."""
        return (self.epochs if epochs is None else epochs) * -(-samples // self.batch_size)

    def learning_rate(self, round: int) -> float:
        """η1 in a round."""
        return self.lr * self.decay(round)

    def decay(self, round: int) -> float:
        """Return the factor on all learning rates in a round."""
        return self.lr_decay**round

    def located(self) -> Self:
        """Return the same experiment with an absolute path to its data."""
        found = self.dataset not in NAMES and Path(self.dataset).exists()
        return self.model_copy(update={"dataset": str(Path(self.dataset).resolve())}) if found else self

    def identity(self) -> dict[str, Any]:
        """Return the experiment as plain values, to compare with another."""
        return self.located().model_dump(mode="json")


class RunOptions(Settings):
    """What does not decide the result of a run: where things are, and how the work is shared out.

    Another device or number of threads may change the last bits; the run folder says which was used.
    """

    out: LaxPath | None = Field(default=None, description="the run's folder; none: nothing is written")
    data_dir: LaxPath | None = Field(default=None, description="where data files are; else $ORCHARD_DATA")
    engine: Literal["local", "ray"] = Field(
        default="local", description="who trains the clients: this process, or the nodes of a Ray cluster"
    )
    address: str | None = Field(
        default=None, description="of the Ray cluster; none: $RAY_ADDRESS, or else a cluster of this machine alone"
    )
    workers: int | None = Field(
        default=None, ge=1, description="clients trained at the same time, on Ray on each node; default: the cores"
    )
    threads: int = Field(default=1, ge=1, description="compute threads of each worker, and the CPUs it takes from Ray")
    device: str = Field(default="cpu", description="where networks are trained, by PyTorch's name: cpu, cuda, cuda:1")
    gpus: float = Field(
        default=1.0, gt=0, le=1, description='with device = "cuda": the share of a GPU that a client takes from Ray'
    )
    checkpoint_every: int | None = Field(
        default=None, ge=1, description="rounds between checkpoints; default: as few as cost at most 2 % of the time"
    )

    @property
    def server_device(self) -> str:
        """Where the server computes: with the clients if they are in its process."""
        return self.device if self.engine == "local" else "cpu"


def to_toml(experiment: Experiment, options: RunOptions | None = None) -> str:
    """Write an experiment and options as one flat TOML file, defaults included."""
    parts = [part.model_dump(mode="json", exclude_none=True) for part in (experiment, options) if part]
    return tomli_w.dumps({key: value for part in parts for key, value in part.items()})


def load_experiment(
    path: Path | str | None = None, *, overrides: Mapping[str, Any] | None = None, assignments: Sequence[str] = ()
) -> Experiment:
    """Read an experiment from a TOML file, then apply overrides, then ``a.b=c`` assignments."""
    return load_definition(path, overrides=overrides, assignments=assignments)[0]


def load_definition(
    path: Path | str | None = None, *, overrides: Mapping[str, Any] | None = None, assignments: Sequence[str] = ()
) -> tuple[Experiment, RunOptions]:
    """Read an experiment and run options, which share one flat TOML file; see `load_experiment`."""
    values: dict[str, Any] = read_toml(Path(path)) if path else {}
    for key, value in (overrides or {}).items():
        table = values.get(key)
        same = isinstance(table, Mapping) and table.get("name") == value  # then its parameters stay
        if value is not None and not same:
            values[key] = value
    for assignment in assignments:
        _assign(values, assignment)
    return definition_of(values)


def definition_of(values: Mapping[str, Any]) -> tuple[Experiment, RunOptions]:
    """Tell the settings of an experiment from run options, and check both."""
    options = {key: value for key, value in values.items() if key in RunOptions.model_fields}
    experiment = {key: value for key, value in values.items() if key not in options}
    return validated(Experiment, experiment), validated(RunOptions, options)


def _dataset_defaults(dataset: str, values: Mapping[str, Any], volumes: bool) -> Mapping[str, Any]:
    """Return what a dataset suggests."""
    table = values.get("table")
    folder = own_folder(dataset)  # first: it refuses a path that cannot be opened
    if table is not None or (dataset not in NAMES and is_table(Path(dataset))):
        sites = {} if dataset in NAMES else _sites(Path(dataset), table, counted="clients" in values)
        return {**DEFAULTS.get(dataset, {}), **TABLE_DEFAULTS, **sites}
    return _folder_defaults(folder, volumes) if folder else DEFAULTS.get(dataset, {})


def _folder_defaults(folder: Path, volumes: bool) -> Mapping[str, Any]:
    """Return what a folder of images tells: how many clients, which task, and whether the images are medical."""
    layout, found = folder_kind(folder, volumes), dict[str, Any]()
    homes = [folder] if layout == "whole" else subfolders(folder, volumes)
    if layout == "clients":
        found = {"clients": len(homes), "partition": {"name": "given"}}
    if any(map(has_masks, homes)):
        found["task"] = "segmentation"
    first = first_image(folder, volumes)
    if first and not is_ordinary(first):
        found["images"] = {}
    return found


def _setting(group: Any, name: str) -> Any:
    """Return a setting of a group that may not be checked yet."""
    return group.get(name) if isinstance(group, Mapping) else getattr(group, name, None)


def _sites(path: Path, table: Any, *, counted: bool) -> Mapping[str, Any]:
    """Return how many sites tables come by, unless that is known; nothing if they are to be divided, or not here."""
    names: Sequence[str] = list(site_tables(path))
    site = _setting(table, "site")
    if isinstance(site, str) and path.is_file():
        if counted:
            return {"partition": {"name": "given"}}
        from orchard.data.tables.reading import read_table  # late: pandas takes a while to import
        from orchard.data.tables.targets import rows_by_site

        names = list(rows_by_site(read_table(path, keep=True), site, str(path)))
    return {"clients": len(names), "partition": {"name": "given"}} if names else {}


def _assign(values: dict[str, Any], assignment: str) -> None:
    """Apply one ``a.b=c``; c is read as TOML, or else taken as a plain string."""
    key, equals, text = assignment.partition("=")
    if not equals or not all(key.split(".")):
        raise UserError(f"--set {assignment}: expected KEY=VALUE, e.g. --set lr=0.02")
    try:
        value = parsed_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *groups, last = key.split(".")
    for group in groups:
        table = named(values.get(group, {}))
        if not isinstance(table, dict):
            raise UserError(f"--set {assignment}: '{group}' is not a group of settings")
        values[group] = table = dict(table)
        values = table
    values[last] = value
