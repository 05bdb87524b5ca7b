"""The command that repeats an experiment."""

import shlex
from typing import Any

import tomli_w

from orchard.experiment import Experiment
from orchard.settings import Settings, flat

OPTIONS = ("dataset", "partition", "clients", "method", "rounds", "seed")
"""Settings that the command always contains, each as an option of its own."""


DEPLOYED = "orchard deploy run experiment.toml --kit KIT"
"""What repeats a run between institutions: its file has a table [deploy], which the run's folder does not keep."""


def command_of(experiment: Experiment) -> str | None:
    """Return the command with all settings that are not defaults; None if the data were passed in Python."""
    if experiment.dataset == "arrays":
        return None
    groups: dict[str, Settings] = {"partition": experiment.partition, "method": experiment.method}
    values = experiment.identity()
    defaults = Experiment(dataset=experiment.dataset, clients=experiment.clients).identity()
    words = ["orchard", "run"]
    for option in OPTIONS:
        words += [f"--{option}", str(values[option]["name"] if option in groups else values[option])]
    for group, settings in groups.items():
        usual = {name: field.default for name, field in type(settings).model_fields.items()}
        words += _assignments(f"{group}.", values[group], {**usual, "name": values[group]["name"]})
    words += _assignments("", {key: values[key] for key in values if key not in OPTIONS}, defaults)
    return shlex.join(words)


def _assignments(prefix: str, values: dict[str, Any], defaults: dict[str, Any]) -> list[str]:
    """Return a `--set` for every value that is not the default, written as TOML."""
    changed = {key: value for key, value in flat(values).items() if value is not None and value != defaults.get(key)}
    return [word for key, value in changed.items() for word in ("--set", f"{prefix}{key}={_toml(value)}")]


def _toml(value: Any) -> str:
    return tomli_w.dumps({"x": value}).strip().removeprefix("x = ")
