"""The paper's protocol: which runs make up a table, and at which scale.

The paper leaves some choices open. They are made here:

- A folder of images may be said to be a copy of one of the paper's datasets, e.g. CIFAR-10 as JPEGs: it takes its
  parameters, and is laid beside its published values.
- Another dataset that the paper does not use takes the APPLE parameters of one that it does: MedMNIST's colour datasets
  those of PathMNIST, its grey ones those of OrganMNIST (axial), all others those of MNIST.
- The paper does not publish the other methods' parameters. They are Orchard's defaults; each method's file
  explains them.
- The paper gives a learning rate for APPLE only, 10^-2, and no decay. All methods use 10^-2 without decay, unless they
  are tuned.
- "apple" is APPLE with the proximal term (μ ≠ 0). Table 2 is about μ = 0, as its caption says.
- The partition's seed is always 42, also with other training seeds.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from orchard.data.catalogue import CATALOGUE
from orchard.data.folders import own_folder
from orchard.errors import UserError
from orchard.experiment import Experiment, load_experiment
from orchard.methods.registry import method_settings
from orchard.runs.grid import Contender
from orchard.text import nearest

Scale = Literal["smoke", "desk", "paper"]
Table = Literal["table1", "table2"]
SplitName = Literal["pathological", "practical"]

SCALES: Mapping[Scale, Mapping[str, Any]] = {
    "smoke": {"fraction": 0.1, "rounds": 4, "epochs": 1},
    "desk": {"fraction": 0.2, "rounds": 100},
    "paper": {},
}
EMBEDDED: Mapping[str, Any] = {"fraction": 1.0, "clients": 4, "batch_size": 16}
"""There are too few embedded digits for twelve clients, large batches or a fraction below 1."""

WITHOUT_PENALTY = "apple (μ = 0)"
ROWS = ("separate", "fedavg", "fedavg-local", "fedavg-ft", "fedprox-ft", "apfl", "heurfedamp", "fedfomo")
OWN = ("graft",)
"""Orchard's own methods, which are measured beside the paper's."""
BUDGETS = (11, 7, 5, 2, 1)


def base_experiment(dataset: str, partition: SplitName, scale: Scale, **settings: Any) -> Experiment:
    """Return what all runs of a table share."""
    if dataset not in CATALOGUE and own_folder(dataset) is None:
        raise UserError(f"dataset = {dataset!r}: unknown; {nearest(dataset, list(CATALOGUE))}")
    own = EMBEDDED if dataset in CATALOGUE and not CATALOGUE[dataset].files else {}
    paper = {"clients": 12, "rounds": 160, "epochs": 5, "batch_size": 256, "lr": 0.01}
    values = {**paper, **SCALES[scale], **own, "dataset": dataset, "partition": partition, **settings}
    return load_experiment(overrides=values)


def contenders(table: Table, base: Experiment, copy_of: str | None = None) -> list[Contender]:
    """Return the rows of a table, in its order."""
    apple = method_settings("apple").model_validate(apple_parameters(copy_of or base.dataset, base.partition.name))
    plain = apple.model_copy(update={"mu": 0.0})
    if table == "table1":
        return [
            *map(_by_default, ROWS),
            Contender(WITHOUT_PENALTY, plain),
            Contender("apple", apple),
            *map(_by_default, OWN),
        ]
    fedfomo = method_settings("fedfomo").model_validate({"name": "fedfomo"})
    return [
        Contender(f"{settings.name}-{budget}", settings.model_copy(update={"budget": limit}))
        for budget, limit in budgets(base.clients).items()
        for settings in (fedfomo, plain)
    ]


def _by_default(method: str) -> Contender:
    return Contender(method, method_settings(method).model_validate({"name": method}))


def row_labels(table: Table, clients: int) -> list[str]:
    """Return the labels of a table's rows, in its order."""
    if table == "table1":
        return [*ROWS, WITHOUT_PENALTY, "apple", *OWN]
    return [f"{name}-{budget}" for budget in budgets(clients) for name in ("fedfomo", "apple")]


def budgets(clients: int) -> dict[int, int | None]:
    """Return Table 2's budgets M for so many clients; None means no limit, for M = all other clients."""
    limits = [budget for budget in BUDGETS if budget < clients - 1]
    return {clients - 1: None, **{budget: budget for budget in limits}}


def apple_parameters(dataset: str, partition: str) -> dict[str, Any]:
    """Return the paper's parameters of APPLE for a dataset, or those of the dataset that stands in for it."""
    entry = CATALOGUE.get(dataset)
    medical = entry is not None and entry.format == "medmnist"
    stand_in = ("pathmnist" if entry.channels == 3 else "organamnist") if entry and medical else "mnist"
    cells = _published_tables()["apple"][partition]
    return dict(cells.get(dataset, cells[stand_in]))


def published(table: Table, dataset: str, partition: str) -> dict[str, float]:
    """Return the paper's BMCTA by row, as shares; empty for a dataset that the paper does not use."""
    cells = _published_tables()[table][partition].get(dataset, {})
    return {label: round(value / 100, 4) for label, value in cells.items()}


def check_copy(dataset: str, original: str) -> None:
    """Raise unless a dataset is a folder, and what it is said to be a copy of is the paper's."""
    papers = list(_published_tables()["table1"]["practical"])
    if original not in papers:
        raise UserError(f"--copy-of: the paper does not use {original!r}; {nearest(original, papers)}")
    if dataset in CATALOGUE:
        raise UserError(f"--copy-of: is for a folder of images; {dataset!r} is a dataset by itself, so leave it out")


@cache
def _published_tables() -> dict[str, Any]:
    return tomllib.loads(files("orchard.paper").joinpath("published.toml").read_text("utf-8"))
