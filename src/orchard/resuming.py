"""Whether a run can go on: from which checkpoint, and whether all is still what it was."""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from orchard.environment import LIBRARIES, environment
from orchard.errors import NothingToGoOnFrom, Refusal, ResumeWarning
from orchard.experiment import Experiment
from orchard.folder import RunFolder

CODE = ("orchard", "code", "python", *LIBRARIES)
"""What of the environment decides a result's last bits."""


def usable_checkpoint(folder: RunFolder) -> Any:
    """Return the newest checkpoint that is whole, saying so if it is not the newest; None if there never was one."""
    checkpoint, problems = folder.newest_checkpoint()
    if checkpoint is None and not problems and folder.has_come_further_than_a_checkpoint():
        raise NothingToGoOnFrom(f"{folder.path}: cannot go on, since its checkpoints are gone; start a new run instead")
    if checkpoint is None and problems:
        listed = "\n".join(problems)
        raise NothingToGoOnFrom(
            f"{folder.path}: cannot go on, since no checkpoint is whole:\n{listed}\nstart a new run instead"
        )
    for problem in problems:
        after = f"going on from the checkpoint after {checkpoint['rounds']} rounds"
        warnings.warn(f"{problem}; {after}", ResumeWarning, stacklevel=3)
    return checkpoint


def refuse_changed_experiment(folder: RunFolder, experiment: Experiment, checkpoint: Mapping[str, Any]) -> None:
    """Refuse an experiment that is no longer the one a checkpoint was written by; only its length may grow."""
    changed = list(_differences(checkpoint["experiment"], deciding(experiment)))
    if changed:
        listed = ", ".join(changed)
        file = folder.path / "experiment.toml"
        raise Refusal(f"{file}: was changed since the run began: {listed}; change it back, or start a new run")
    if experiment.rounds < checkpoint["rounds"]:
        raise Refusal(f"{folder.path}: has {checkpoint['rounds']} rounds already, not {experiment.rounds}")


def deciding(experiment: Experiment) -> dict[str, Any]:
    """Return what of an experiment decides how a run goes on. What the data are does, and where they are does not."""
    return {key: value for key, value in experiment.identity().items() if key not in ("dataset", "rounds")}


def _differences(then: Mapping[str, Any], now: Mapping[str, Any], place: str = "") -> Iterator[str]:
    """Yield what has changed; a setting that is new has its default, and is a matter of the code."""
    for key in then.keys() & now.keys():
        if isinstance(then[key], Mapping) and isinstance(now[key], Mapping):
            yield from _differences(then[key], now[key], f"{place}{key}.")
        elif then[key] != now[key]:
            yield f"{place}{key} (was {then[key]!r}, now {now[key]!r})"


def compared_environment(folder: RunFolder, experiment: Experiment, fingerprint: str) -> dict[str, Any]:
    """Refuse to go on with other data; warn of other code; return the record, and that the run goes on here."""
    then, now = folder.read("environment.json"), environment(experiment)
    if not then:
        text = f"{folder.path / 'environment.json'}: is missing, so whether data and code are the same is not known"
        warnings.warn(text, ResumeWarning, stacklevel=3)
        return {**now, "data": fingerprint}
    if then.get("data") != fingerprint:
        raise Refusal(f"{folder.path}: the data are not those the run began with; bring them back, or start a new run")
    changed = [f"{what} ({then.get(what)}, now {now[what]})" for what in CODE if then.get(what) != now[what]]
    if changed:
        text = f"since the run began there have changed: {', '.join(changed)}; its result may not be the same"
        warnings.warn(text, ResumeWarning, stacklevel=3)
    return {**then, "resumed": [*then.get("resumed", []), now]}
