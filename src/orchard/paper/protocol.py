"""The paper's protocol: which runs make up a table, and at which scale.

What the paper leaves open, and is chosen here once for all:

- Datasets that the paper does not use take the APPLE parameters of one that it does: MedMNIST's sets in colour those
  of PathMNIST, the grey ones those of OrganMNIST(axial), all others those of MNIST.
- The other methods' own parameters are not published: they are Orchard's defaults, which each method's file explains.
- Learning rate and its decay are published for APPLE only (10^-2; no decay is named). All methods take 10^-2 without
  decay, unless they are tuned.
- "APPLE" without more is the one with the proximal term (μ ≠ 0); Table 2 is about μ = 0, as its caption says.
- The seed of the partition is 42, whatever the seeds of training are.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from orchard.catalogue import CATALOGUE
from orchard.errors import Refusal
from orchard.experiment import Experiment, load_experiment
from orchard.grid import Contender
from orchard.methods import method_settings
from orchard.settings import nearest

Scale = Literal["smoke", "desk", "paper"]
Table = Literal["table1", "table2"]
SplitName = Literal["pathological", "practical"]

SCALES: Mapping[Scale, Mapping[str, Any]] = {
    "smoke": {"fraction": 0.1, "rounds": 4, "epochs": 1},
    "desk": {"fraction": 0.2, "rounds": 100},
    "paper": {},
}
EMBEDDED: Mapping[str, Any] = {"fraction": 1.0, "clients": 4, "batch_size": 16}
"""The embedded digits are too few for twelve clients, for large batches, or for a part of them."""

WITHOUT_PENALTY = "apple (μ = 0)"
ROWS = ("separate", "fedavg", "fedavg-local", "fedavg-ft", "fedprox-ft", "apfl", "heurfedamp", "fedfomo")
BUDGETS = (11, 7, 5, 2, 1)


def base_experiment(dataset: str, partition: SplitName, scale: Scale, **settings: Any) -> Experiment:
    """Return what all runs of a table share."""
    if dataset not in CATALOGUE:
        raise Refusal(f"dataset = {dataset!r}: no known dataset; {nearest(dataset, list(CATALOGUE))}")
    own = {} if CATALOGUE[dataset].files else EMBEDDED
    paper = {"clients": 12, "rounds": 160, "epochs": 5, "batch_size": 256, "lr": 0.01}
    values = {**paper, **SCALES[scale], **own, "dataset": dataset, "partition": partition, **settings}
    return load_experiment(overrides=values)


def contenders(table: Table, base: Experiment) -> list[Contender]:
    """Return the rows of a table, in its order."""
    apple = method_settings("apple").model_validate(apple_parameters(base.dataset, base.partition.name))
    plain = apple.model_copy(update={"mu": 0.0})
    if table == "table1":
        others = [Contender(name, method_settings(name).model_validate({"name": name})) for name in ROWS]
        return [*others, Contender(WITHOUT_PENALTY, plain), Contender("apple", apple)]
    fedfomo = method_settings("fedfomo").model_validate({"name": "fedfomo"})
    return [
        Contender(f"{settings.name}-{budget}", settings.model_copy(update={"budget": limit}))
        for budget, limit in budgets(base.clients).items()
        for settings in (fedfomo, plain)
    ]


def budgets(clients: int) -> dict[int, int | None]:
    """Return the budgets M of Table 2 that so many clients allow; downloading from all others is no limit."""
    limits = [budget for budget in BUDGETS if budget < clients - 1]
    return {clients - 1: None, **{budget: budget for budget in limits}}


def apple_parameters(dataset: str, partition: str) -> dict[str, Any]:
    """Return the paper's parameters of APPLE for a dataset, or for the one that stands for it."""
    entry = CATALOGUE.get(dataset)
    medical = entry is not None and entry.format == "medmnist"
    stand_in = ("pathmnist" if entry.channels == 3 else "organamnist") if entry and medical else "mnist"
    cells = _published_tables()["apple"][partition]
    return dict(cells.get(dataset, cells[stand_in]))


def published(table: Table, dataset: str, partition: str) -> dict[str, float]:
    """Return the paper's BMCTA by row, as shares; nothing for a dataset that it does not use."""
    cells = _published_tables()[table][partition].get(dataset, {})
    return {label: round(value / 100, 4) for label, value in cells.items()}


@cache
def _published_tables() -> dict[str, Any]:
    return tomllib.loads(files("orchard.paper").joinpath("published.toml").read_text("utf-8"))
