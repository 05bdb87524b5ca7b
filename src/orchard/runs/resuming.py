"""Check whether a run can resume: from which checkpoint, and with the same experiment, data and code."""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from orchard.data.clients import FINGERPRINT
from orchard.errors import NoUsableCheckpoint, ResumeWarning, UserError
from orchard.experiment import Experiment, RunOptions
from orchard.runs.environment import DECISIVE, LATER, environment
from orchard.runs.folder import FORMAT, RunFolder


def usable_checkpoint(folder: RunFolder) -> Any:
    """Return the newest undamaged checkpoint, or None if there never was one; warn about damaged newer ones."""
    checkpoint, problems = folder.newest_checkpoint()
    if checkpoint is None and not problems and folder.must_have_checkpoint():
        raise NoUsableCheckpoint(f"{folder.path}: cannot go on: its checkpoints are gone; start a new run instead")
    if checkpoint is None and problems:
        listed = "\n".join(problems)
        raise NoUsableCheckpoint(
            f"{folder.path}: cannot go on: no checkpoint is whole:\n{listed}\nstart a new run instead"
        )
    for problem in problems:
        after = f"going on from the checkpoint after {checkpoint['rounds']} rounds"
        warnings.warn(f"{problem}; {after}", ResumeWarning, stacklevel=3)
    return checkpoint


def check_same_experiment(folder: RunFolder, experiment: Experiment, checkpoint: Mapping[str, Any]) -> None:
    """Raise if the experiment differs from that of the checkpoint; only its number of rounds may grow."""
    changed = list(_differences(checkpoint["experiment"], resume_identity(experiment)))
    if changed:
        listed = ", ".join(changed)
        what = f"the experiment was changed since the run began: {listed}"
        raise UserError(f"{folder.path}: {what}; change it back, or start a new run")
    if experiment.rounds < checkpoint["rounds"]:
        raise UserError(f"{folder.path}: has {checkpoint['rounds']} rounds already, not {experiment.rounds}")


def check_same_data(folder: RunFolder, checkpoint: Mapping[str, Any], fingerprint: str) -> None:
    """Raise if a checkpoint is of a run with other data, e.g. one that was copied here from another folder."""
    if checkpoint.get("data", fingerprint) != fingerprint:
        place = folder.path / "checkpoints"
        raise UserError(
            f"{place}: holds the checkpoints of a run with other data; bring its own back, or start a new run"
        )


def resume_identity(experiment: Experiment) -> dict[str, Any]:
    """Return the settings that must match on resume. The data's content must match too; its path need not."""
    return {key: value for key, value in experiment.identity().items() if key not in ("dataset", "rounds")}


def _differences(then: Mapping[str, Any], now: Mapping[str, Any], place: str = "") -> Iterator[str]:
    """Yield the settings that changed; skip a setting that one side lacks, since it has its default there."""
    for key in then.keys() & now.keys():
        if isinstance(then[key], Mapping) and isinstance(now[key], Mapping):
            yield from _differences(then[key], now[key], f"{place}{key}.")
        elif then[key] != now[key]:
            yield f"{place}{key} (was {then[key]!r}, now {now[key]!r})"


def check_environment(
    folder: RunFolder, experiment: Experiment, options: RunOptions, fingerprint: str
) -> dict[str, Any]:
    """Raise if the data changed, warn if the code did; return the recorded environment with the present one added."""
    then, now = folder.read("environment.json"), environment(experiment, options)
    if not then:
        text = f"{folder.path / 'environment.json'}: is missing, so it is not known whether data and code are the same"
        warnings.warn(text, ResumeWarning, stacklevel=3)
        return {"format": FORMAT, **now, "data": fingerprint}
    if not str(then.get("data", "")).startswith(FINGERPRINT):
        raise UserError(
            f"{folder.path}: was begun by an Orchard that knew data by another fingerprint; start a new run"
        )
    if then["data"] != fingerprint:
        raise UserError(
            f"{folder.path}: the data are not those the run began with; bring them back, or start a new run"
        )
    known = [what for what in DECISIVE if what in then or what not in LATER]
    changed = [f"{what} ({then.get(what)}, now {now[what]})" for what in known if then.get(what) != now[what]]
    if changed:
        text = f"changed since the run began: {', '.join(changed)}; its result may differ, at least in its last bits"
        warnings.warn(text, ResumeWarning, stacklevel=3)
    return {**then, "resumed": [*then.get("resumed", []), now]}
