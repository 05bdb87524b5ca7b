"""What a run is: one validated definition, read from and written to TOML.

Defaults are the paper's (12 clients, 160 rounds of 5 epochs, batch 256, learning rate 0.01), except where a
dataset is too small for them: see `DATASET_DEFAULTS`.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import tomli_w
from pydantic import (
    BeforeValidator,
    Field,
    SerializeAsAny,
    ValidationError,
    field_serializer,
    model_validator,
)

from orchard.catalogue import CATALOGUE
from orchard.errors import Refusal
from orchard.layout import folder_layout, shortened, subfolders
from orchard.settings import LaxPath, Settings, explain, nearest, read_toml

if TYPE_CHECKING:
    from orchard.contract import Client, Federation, Server

MOMENTUM = 0.9
"""β of every optimiser, as in the paper."""

Moment = Literal["trained", "exchanged", "tuned"]
"""When a model is measured: right after local training; after the round's uploads have reached everyone; after
that and a fine-tuning on local data."""

DATASET_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "arrays": {"partition": {"name": "given"}},
    "digits": {
        "clients": 8,
        "partition": {"name": "dirichlet", "alpha": 0.5},
        "batch_size": 16,
        "rounds": 25,
    },
}


NAMES = frozenset({*CATALOGUE, "arrays"})
"""What a dataset may be called; anything else is a path."""


class Ownership(Settings):
    """What all partitions share: the seed of who holds what, which training seeds leave alone."""

    seed: int = Field(default=42, ge=0, lt=2**32)


class Pathological(Ownership):
    """Two classes a client."""

    name: Literal["pathological"] = "pathological"
    strict: bool = Field(default=False, description="redraw until no client gets the same class twice")


class Practical(Ownership):
    """Every client holds every class; of each class one client holds 80 %, one 10 %, the others 1 %."""

    name: Literal["practical"] = "practical"


class Dirichlet(Ownership):
    """The shares of each class are drawn from a symmetric Dirichlet distribution."""

    name: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(default=0.5, gt=0, allow_inf_nan=False)


class IID(Ownership):
    """Every client holds the same share of every class."""

    name: Literal["iid"] = "iid"


class Column(Ownership):
    """A column of the data, ``<key>_train`` and so on in an `.npz`, says whose each sample is."""

    name: Literal["column"] = "column"
    key: str

    @model_validator(mode="before")
    @classmethod
    def _ask_for_the_key(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and "key" not in values:
            raise ValueError("key: is missing; name the column of owners, e.g. --set partition.key=hospital")
        return values


class Given(Ownership):
    """The data come client by client; there is nothing to deal out."""

    name: Literal["given"] = "given"


class MethodSettings(Settings):
    """A method: its parameters, and the two halves made from them."""

    moment: ClassVar[Moment] = "trained"
    """When its accuracy counts."""

    gives: ClassVar[Mapping[str, Moment]] = {}
    """Other methods whose figures a run of this one gives too, and at which moment."""

    name: str

    def check(self, experiment: "Experiment") -> None:
        """Raise ValueError where a parameter does not fit the rest of the experiment."""

    def client(self, index: int, federation: "Federation") -> "Client":
        """Make the half that lives at client `index`."""
        raise NotImplementedError

    def server(self, federation: "Federation") -> "Server":
        """Make the half that lives at the server."""
        raise NotImplementedError


def _named(value: object) -> object:
    """Let ``"apple"`` stand for ``{"name": "apple"}``."""
    return {"name": value} if isinstance(value, str) else value


def _method(value: object) -> object:
    value = _named(value)
    if not isinstance(value, Mapping):
        return value
    # A late import: an experiment names a method, and the method's file may stand anywhere.
    from orchard.methods import method_settings

    return method_settings(str(value.get("name", "apple"))).model_validate(dict(value))


PartitionSettings = Pathological | Practical | Dirichlet | IID | Column | Given
PARTITIONS: Mapping[str, type[PartitionSettings]] = {
    kind.model_fields["name"].default: kind for kind in (Pathological, Practical, Dirichlet, IID, Column, Given)
}


def _partition(value: object) -> object:
    value = _named(value)
    if isinstance(value, PartitionSettings):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"name = {value!r}: expected the name of a partition, or a table of its settings")
    name = str(value.get("name", ""))
    if name not in PARTITIONS:
        raise ValueError(f"name = {name!r}: unknown; {nearest(name, list(PARTITIONS))}")
    return PARTITIONS[name].model_validate(dict(value))


Partition = Annotated[PartitionSettings, BeforeValidator(_partition)]
Method = Annotated[SerializeAsAny[MethodSettings], BeforeValidator(_method)]


class Experiment(Settings):
    """Everything that defines a run."""

    dataset: str = Field(default="digits", description="a dataset's name, an .npz, or a folder of images")
    size: int = Field(default=28, ge=1, description="side of the images; other sizes are resized")
    split: Literal["merged", "official"] = Field(
        default="merged", description="of MedMNIST: all parts merged and split 80/20, or its own test set"
    )
    data_dir: LaxPath | None = Field(default=None, description="where data files are; else $ORCHARD_DATA")
    fraction: float = Field(default=1.0, gt=0, le=1, description="share of the training data used; tests stay whole")
    clients: int = Field(default=12, ge=1)
    partition: Partition = Practical()
    method: Method = Field(default_factory=lambda: _method("apple"), validate_default=True)
    model: str | Callable[..., Any] = Field(default="cnn", description='a name, a factory, or "package.module:factory"')
    rounds: int = Field(default=160, ge=1)
    epochs: int = Field(default=5, ge=1, description="local epochs a round")
    batch_size: int = Field(default=256, ge=1)
    lr: float = Field(default=0.01, ge=0, allow_inf_nan=False, description="η1, the networks' learning rate")
    lr_decay: float = Field(default=1.0, gt=0, le=1, description="both learning rates shrink by this factor a round")
    seed: int = Field(default=42, ge=0, lt=2**63, description="of initial models, batch order and choices of cores")
    workers: int | None = Field(default=None, ge=1, description="clients trained at the same time; default: the cores")
    threads: int = Field(default=1, ge=1, description="compute threads a worker")
    device: str = "cpu"
    checkpoint_every: int | None = Field(
        default=None, ge=1, description="rounds between checkpoints; default: as few as cost at most 2 % of the time"
    )
    out: LaxPath | None = Field(default=None, description="the run's folder; none: nothing is written")

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults_of_the_dataset(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        defaults = {"partition": {"name": "practical"}, **_dataset_defaults(str(values.get("dataset", "digits")))}
        partition = values.get("partition")
        if isinstance(partition, Mapping) and "name" not in partition:
            values = {**values, "partition": {**defaults["partition"], **partition}}
        return {**defaults, **values}

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        try:
            self.method.check(self)
        except ValueError as error:
            raise ValueError(f"method.{error}") from None
        return self

    @field_serializer("model")
    def _name_of_the_model(self, model: str | Callable[..., Any]) -> str:
        return model if isinstance(model, str) else f"{model.__module__}:{getattr(model, '__qualname__', model)}"

    def learning_rate(self, round: int) -> float:
        """η1 in a round."""
        return self.lr * self.decay(round)

    def decay(self, round: int) -> float:
        """Return the factor on all learning rates in a round."""
        return self.lr_decay**round

    def located(self) -> Self:
        """Return the same experiment with absolute paths, so that it means the same wherever it is read."""
        found = self.dataset not in NAMES and Path(self.dataset).exists()
        dataset = str(Path(self.dataset).resolve()) if found else self.dataset
        return self.model_copy(update={"dataset": dataset, "data_dir": self.data_dir and self.data_dir.resolve()})

    def identity(self) -> dict[str, Any]:
        """Return what decides the result: all but where things are kept and how many workers share the work."""
        elsewhere = {"out", "data_dir", "workers", "checkpoint_every"}
        return self.located().model_dump(mode="json", exclude=elsewhere)

    def to_toml(self) -> str:
        """Write the whole experiment, defaults included, as TOML."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


def comes_by_client(dataset: str) -> bool:
    """Tell whether a dataset is a folder with one folder for each client."""
    try:
        dataset.encode()
        is_folder = dataset not in NAMES and Path(dataset).is_dir()
    except UnicodeEncodeError:
        raise Refusal(f"dataset = {dataset!r}: a path that is not UTF-8 cannot be written down; rename it") from None
    except OSError as error:  # a name that the file system cannot take, or a place that it does not show
        raise Refusal(f"dataset = {shortened(dataset, 60)!r}: cannot be looked up: {error.strerror}") from None
    return is_folder and folder_layout(Path(dataset)) == "clients"


def _dataset_defaults(dataset: str) -> Mapping[str, Any]:
    """Return what a dataset suggests; a folder of clients brings its own number of them."""
    if comes_by_client(dataset):
        return {"clients": len(subfolders(Path(dataset))), "partition": {"name": "given"}}
    return DATASET_DEFAULTS.get(dataset, {})


def load_experiment(
    path: Path | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    assignments: Sequence[str] = (),
) -> Experiment:
    """Read an experiment from a TOML file, then apply overrides, then ``a.b=c`` assignments."""
    values: dict[str, Any] = read_toml(path) if path else {}
    for key, value in (overrides or {}).items():
        table = values.get(key)
        same = isinstance(table, Mapping) and table.get("name") == value  # then its parameters stay
        if value is not None and not same:
            values[key] = value
    for assignment in assignments:
        _assign(values, assignment)
    try:
        return Experiment.model_validate(values)
    except ValidationError as error:
        raise Refusal(explain(error)) from None


def _assign(values: dict[str, Any], assignment: str) -> None:
    """Apply one ``a.b=c``; c is read as TOML, or else taken as a plain string."""
    key, equals, text = assignment.partition("=")
    if not equals or not all(key.split(".")):
        raise Refusal(f"--set {assignment}: expected KEY=VALUE, e.g. --set method.mu=0.1")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *groups, last = key.split(".")
    for group in groups:
        table = _named(values.get(group, {}))
        if not isinstance(table, dict):
            raise Refusal(f"--set {assignment}: '{group}' is not a group of settings")
        values[group] = table = dict(table)
        values = table
    values[last] = value
