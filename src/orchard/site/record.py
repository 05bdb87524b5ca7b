"""A site's durable record of a run: all it remembers, and its last answer, on the disk before that answer leaves.

The record of a run is a folder of checkpoints, each with the state of the client half, the answer of the round, the
figures of all rounds so far with the site's directed relationships, and two personalised models: the last, and the
one that the site's own validation data choose. It exists here and nowhere else.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import Tensor

from orchard.checkpoints import read_newest, rounds_written, write_checkpoint
from orchard.contract import Answer, Notes, Upload
from orchard.engines.flare.messages import FIGURES, Refused
from orchard.experiment import Moment
from orchard.measures import Measures
from orchard.training import Scores

log = logging.getLogger(__name__)

Model = tuple[Tensor, dict[str, Tensor]]


@dataclass(frozen=True)
class Turn:
    """What a turn leaves at its site."""

    round: int
    answer: Answer
    half: Mapping[str, Any]
    buffers: Mapping[str, Tensor]
    notes: Notes
    moment: Moment
    """When this method's accuracy counts."""
    model: Model | None
    """The model that was measured then."""


class SiteRecord:
    """The record of one run at one site; `about` is what must be the same whenever the run goes on."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder, self.about = folder, dict(about)
        self.written: dict[str, Any] | None = None
        """What was written last by this process, which need not be read again."""

    @contextmanager
    def held(self, seconds: float) -> Iterator[None]:
        """Let no other process of this site at the record meanwhile, e.g. one that outlived its job."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)  # it is nobody else's matter on this machine either
        try:
            with FileLock(self.folder.with_name(f".{self.folder.name}.lock"), timeout=seconds):
                yield
        except Timeout:
            raise Refused("record in use") from None

    def newest(self) -> dict[str, Any] | None:
        """Return the newest record that is whole, or None."""
        return self._own(read_newest(self.folder)[0])

    def for_round(self, round: int) -> dict[str, Any] | None:
        """Return the record of a round that is done, else that of the last one before it, if there was any.

        Where that one is gone or cannot be read, the round is refused: it would go on from another state, and the
        records that there are would be overwritten.
        """
        if self.written and self.written["rounds"] <= round + 1:
            return self.written
        done, _ = read_newest(self.folder, round + 1)
        if done is None or done["rounds"] <= round:
            if max(rounds_written(self.folder), default=0) > round + 1:
                raise Refused("round long past")
            done, problems = read_newest(self.folder, round)
            if problems:
                log.error("%s", "; ".join(problems))
                raise Refused("record damaged")
        return self._own(done)

    def _own(self, found: dict[str, Any] | None) -> dict[str, Any] | None:
        """Refuse what another site has written: two have been given the same folder."""
        if found is not None and self.about.get("site", found["about"]["site"]) != found["about"]["site"]:
            raise Refused("record of another site")
        return found

    def write(self, before: Mapping[str, Any] | None, turn: Turn) -> None:
        """Write what a turn left, on top of the record before it."""
        content = {
            "about": self.about,
            "rounds": turn.round + 1,
            "half": turn.half,
            "buffers": turn.buffers,
            "answer": _stored(turn.answer, turn.round),
            "history": [*(before["history"] if before else []), _figures(turn)],
            **_models(before, turn),
        }
        write_checkpoint(self.folder, turn.round + 1, content)
        self.written = content


def answer_of(record: Mapping[str, Any]) -> Answer:
    """Return the answer that a record holds."""
    stored = record["answer"]
    upload = stored["upload"]
    return Answer(
        upload=None if upload is None else Upload(stored["round"], upload),
        wants=tuple(stored["wants"]),
        loss=stored["loss"],
        **{name: scores_of(stored[name]) for name in FIGURES},
    )


def scores_of(stored: Any) -> Scores | None:
    """Return scores as they were."""
    return None if stored is None else Scores(Measures(*stored[0]), Measures(*stored[1]))


def _stored(answer: Answer, round: int) -> dict[str, Any]:
    scores = {name: getattr(answer, name) for name in FIGURES}
    return {
        "round": round,
        "upload": None if answer.upload is None else answer.upload.vector,
        "wants": list(answer.wants),
        "loss": answer.loss,
        **{name: s and [list(s.validation), list(s.test)] for name, s in scores.items()},
    }


def _figures(turn: Turn) -> dict[str, Any]:
    stored = _stored(turn.answer, turn.round)
    return {name: stored[name] for name in ("round", "loss", *FIGURES)} | {"notes": dict(turn.notes)}


def _models(before: Mapping[str, Any] | None, turn: Turn) -> dict[str, dict[str, Any] | None]:
    """Keep the model that was just measured as the last one, and as the chosen one where validation says so."""
    kept = {name: before[name] if before else None for name in ("last", "chosen")}
    scores: Scores | None = getattr(turn.answer, turn.moment)
    if turn.model is None or scores is None:
        return kept
    vector, buffers = turn.model
    figures = [list(scores.validation), list(scores.test)]
    measured = turn.round - (turn.moment != "trained")  # what the last round's exchange gave is measured in the next
    new = {"round": measured, "vector": vector, "buffers": buffers, "scores": figures}
    best = kept["chosen"]
    better = best is None or scores.validation.accuracy > best["scores"][0][0]
    return {"last": new, "chosen": new if better else best}
