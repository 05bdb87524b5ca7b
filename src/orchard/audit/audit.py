"""Audit a finished run: repeat it, attack what is seen, and keep what came out in the run's folder.

`audit.json` has the figures; `audit/` has pictures, and the losses of runs that are done, so that an audit that was
interrupted goes on. All need the data of all clients: an audit is for simulations.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from orchard.audit.canaries import canaries_of
from orchard.audit.capture import Losses, Recorder, Step, repeat, trained_on
from orchard.audit.findings import Audit, Image, Plan
from orchard.audit.membership import (
    Asked,
    Found,
    asked_of,
    halves,
    likelihood_attack,
    shadow_parts,
    threshold_attack,
)
from orchard.audit.pictures import picture_of
from orchard.audit.rehearsal import (
    FirstUploads,
    Recovered,
    class_frequencies,
    labels_of_single_samples,
    recovered,
)
from orchard.audit.statistics import Guesses, guess
from orchard.audit.wanted import asked_for, wanted
from orchard.core.contract import ClientUpdate, Download
from orchard.core.federation import Federation
from orchard.data.clients import FederatedData
from orchard.data.samples import Samples
from orchard.errors import RunFailed, UserError
from orchard.experiment import Experiment, RunOptions
from orchard.privacy.accounting import account_of
from orchard.randomness import derived_seed
from orchard.runs.environment import RESULTS_VERSION
from orchard.runs.files import to_json, write_tensors
from orchard.runs.folder import RunFolder
from orchard.runs.grid import method_label
from orchard.runs.loop import Stop
from orchard.runs.result import Result
from orchard.runs.run import load_data
from orchard.whole import write_durably

Say = Callable[[str], None]
"""Told what comes next."""


def audit(
    run: Path,
    plan: Plan,
    step: Step = lambda: None,
    stop: Stop | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Audit:
    """Audit a run; keep what was found in its folder."""
    folder = RunFolder(run)
    experiment, options, data = auditable(folder)
    with folder.locked():
        try:
            (folder.path / "audit").mkdir(exist_ok=True)
            found = _Work(folder, experiment, options, data, plan, step, stop, say).audit()
            write_durably(folder.path / "audit.json", to_json(asdict(found), indent=1) + "\n")
        except OSError as error:
            raise RunFailed(f"{error.filename or run}: cannot be written: {error.strerror or error}") from None
    return found


def auditable(folder: RunFolder) -> tuple[Experiment, RunOptions, FederatedData]:
    """Return a run's experiment and data; raise if it cannot be audited."""
    experiment, options = folder.definition()
    if (folder.path / "plan.json").is_file():
        raise UserError(
            f"{folder.path}: was run between sites, and an audit needs the data of all of them; rehearse with "
            "`orchard run` on data that you may have in one place, and audit that"
        )
    if experiment.dataset == "arrays":
        raise UserError(
            f"{folder.path}: its data were handed over in Python; an audit repeats the run, so it needs them as files"
        )
    if folder.state() != "finished":
        raise UserError(f"{folder.path}: is not finished; {folder.resume_hint()}")
    data = load_data(experiment, data_dir=options.data_dir)
    if folder.read("environment.json").get("data") != data.fingerprint():
        raise UserError(f"{folder.path}: the data are not those that it was run on; bring them back")
    return experiment, options, data


@dataclass
class _Work:
    """The parts of one audit."""

    folder: RunFolder
    experiment: Experiment
    options: RunOptions
    data: FederatedData
    plan: Plan
    step: Step
    stop: Stop | None
    say: Say
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def epsilon(self) -> float | None:
        """ε that the run promises, or what its noise gives the client with the most; None without privacy."""
        privacy = self.experiment.privacy
        if privacy is None or privacy.epsilon is not None:
            return privacy.epsilon if privacy else None
        return max(account_of(self.experiment, len(client.train.y)).epsilon for client in self.data.clients)

    def audit(self) -> Audit:
        """Repeat, attack, and put together."""
        asked = asked_of(self.data, self.plan.seed)
        members = asked.members()
        self.say("repeating the run")
        recorder, first, lists = Recorder(asked.records), FirstUploads(), list[list[list[int]]]()

        def watch(federation: Federation, sent: Mapping[int, Download], answers: Mapping[int, ClientUpdate]) -> None:
            recorder(federation, sent, answers)
            first(federation, sent, answers)
            if sent[0].round < self.experiment.rounds:
                lists.append([asked_for(sent[i].vectors) for i in sorted(sent)])

        result, models = repeat(self.experiment, self.data, self.options, watch, step=self.step, stop=self.stop)
        losses = recorder.losses(models)
        found = [threshold_attack(values, members, sees) for sees, values in losses.items()]
        found += self._likelihood(losses, asked)
        canaries = self._canaries()
        self.say("recovering labels and samples")
        labels = self._unless("labels", lambda: labels_of_single_samples(*self._few(), self.plan.seed))
        frequencies = self._unless("classes", lambda: class_frequencies(*self._few(), first))
        images = self._unless("samples", lambda: recovered(*self._few(), self.plan.seed))
        self._draw(images or {})
        return Audit(
            method_label(self.experiment.method),
            self.epsilon,
            self.plan,
            _same_figures(result, self.folder.result()),
            found,
            canaries,
            labels,
            frequencies,
            [Image(size, one.likeness, one.exactly) for size, one in (images or {}).items()],
            wanted(lists, result),
            self.left_out,
        )

    def _few(self) -> tuple[Experiment, FederatedData, RunOptions]:
        return self.experiment, self.data, self.options

    def _likelihood(self, losses: Losses, asked: Asked) -> list[Found]:
        shadows, members = self.plan.shadows, asked.members()
        if not shadows:
            return []
        trained, tried = halves(len(members), shadows, self.plan.seed), list[Losses]()
        for k in range(shadows):
            self.say(f"shadow {k + 1} of {shadows}")
            parts = shadow_parts(asked, trained[k])
            # A seed of its own: an attacker knows neither the order of batches nor noise.
            seed = derived_seed(self.experiment.seed, "shadow", self.plan.seed, k) >> 1
            tried.append(self._kept(f"shadow-{k + 1}", parts, Recorder(asked.records), seed))
        return [
            likelihood_attack(values, torch.stack([one[sees] for one in tried]), trained, members, sees)
            for sees, values in losses.items()
            if all(sees in one for one in tried)
        ]

    def _canaries(self) -> dict[str, Guesses]:
        if not self.plan.canaries:
            return {}
        self.say("canaries")
        delta = 0.0 if self.experiment.privacy is None else self.experiment.privacy.delta
        canaries = canaries_of(self.data, self.plan.canaries, self.plan.seed)
        parts = canaries.training_parts(self.data)
        losses = self._kept("canaries", parts, Recorder(canaries.samples, compared=True), self.experiment.seed)
        return {sees: guess(-values, canaries.coins(), delta) for sees, values in losses.items() if sees != "peers"}

    def _kept(self, name: str, parts: list[Samples], recorder: Recorder, seed: int) -> Losses:
        """Return the losses of a run with other training parts, from an earlier audit if it kept them."""
        file = self.folder.path / "audit" / f"{name}.safetensors"
        identity = {"plan": asdict(self.plan), "version": RESULTS_VERSION, "data": self.data.fingerprint()}
        about = {"of": json.dumps(identity, sort_keys=True)}
        kept = _read_losses(file, about)
        if kept is not None:
            for _ in range(self.experiment.rounds + 1):
                self.step()
            return kept
        data = trained_on(self.data, parts)
        experiment = self.experiment.model_copy(update={"seed": seed})
        _, models = repeat(experiment, data, self.options, recorder, step=self.step, stop=self.stop)
        losses = recorder.losses(models)
        write_tensors(file, losses, about)
        return losses

    def _unless(self, what: str, measure: Callable[[], Any]) -> Any:
        """Measure something, or note why it cannot be."""
        try:
            return measure()
        except (UserError, RunFailed) as reason:
            self.left_out[what] = str(reason)
            return None

    def _draw(self, images: Mapping[int, Recovered]) -> None:
        """Draw what was recovered, if it is images; a picture of an earlier audit goes."""
        file = self.folder.path / "audit" / "recovered.png"
        file.unlink(missing_ok=True)
        picture = picture_of(list(images.values()))
        if picture is not None:
            content = BytesIO()
            picture.save(content, "png")
            write_durably(file, content.getvalue())


def _read_losses(file: Path, about: Mapping[str, str]) -> Losses | None:
    try:
        with safe_open(file, "pt") as content:
            if content.metadata() != about:
                return None
            return {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118  # not a dictionary
    except (OSError, SafetensorError):
        return None


def _same_figures(repeated: Result, recorded: Result) -> bool:
    return [entry.after_training for entry in repeated.rounds] == [entry.after_training for entry in recorded.rounds]
