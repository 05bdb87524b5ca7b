"""A site's durable record of a run: its state and its last update, written to disk before that update is sent.

A record is a folder of checkpoints. Each holds the client's state, the round's update, the figures of all rounds so
far with the site's directed relationships, and two personalised models: the last one, and the one with the best
score on the site's validation data. A record never leaves its site.

The updates of earlier rounds are kept too, in `answers`: a server that was restored from a backup asks for them again.
As long as its record is whole, a site trains no round twice. Asked again, it sends what it sent before, so that asking
again tells nobody more: an account of what its updates give away, as differential privacy keeps one, counts a round
when it is recorded, and once.
"""

import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import Tensor

from orchard.core.contract import ClientUpdate, Diagnostics
from orchard.core.evaluation import Scores
from orchard.core.vector import Model
from orchard.engines.flare.messages import FIGURES, MessageRejected
from orchard.method import Moment
from orchard.privacy.noise import BYTES, Noise
from orchard.runs.checkpoints import read_newest, rounds_written, write_checkpoint
from orchard.whole import write_durably

log = logging.getLogger(__name__)

KEY = "noise.key"
"""Under privacy: what the site's noise is drawn from. Whoever has it can take the noise off."""
SECONDS = 60.0
"""How long to wait for another process that makes the key."""


ANSWERS = "answers"
"""The folder of the updates of earlier rounds."""


@dataclass(frozen=True)
class SiteRound:
    """What a site records of a round."""

    round: int
    update: ClientUpdate
    client: Mapping[str, Any]
    """The client's state."""
    buffers: Mapping[str, Tensor]
    diagnostics: Diagnostics
    moment: Moment
    """The moment at which the method is evaluated."""
    score: str
    """The measure that models are chosen by."""
    model: Model | None
    """The model that was evaluated at that moment."""
    lineage: str = ""
    """Under privacy: a digest of all that this round and those before it were made of, from which noise follows."""


class SiteRecord:
    """The record of one run at one site; `about` describes the run and is checked whenever it continues.

    It keeps the updates of the `kept` rounds before the last.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any], kept: int = 1) -> None:
        self.folder, self.about, self.kept = folder, dict(about), kept
        self.written: dict[str, Any] | None = None
        """The last record that this process wrote, to avoid reading it again."""

    def noise(self) -> Noise:
        """Return this site's secret noise, the same whenever the run continues."""
        with self.locked(SECONDS):
            file = self.folder / KEY
            if not file.exists():
                if rounds_written(self.folder):
                    raise MessageRejected("noise key missing")
                write_durably(file, secrets.token_bytes(BYTES))
                file.chmod(0o600)
            return Noise(file.read_bytes())

    @contextmanager
    def locked(self, seconds: float) -> Iterator[None]:
        """Lock the record against other processes of this site, e.g. one that outlived its job."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)  # other users of this machine may not read it
        try:
            with FileLock(self.folder.with_name(f".{self.folder.name}.lock"), timeout=seconds):
                yield
        except Timeout:
            raise MessageRejected("record in use") from None

    def newest(self) -> dict[str, Any] | None:
        """Return the newest undamaged record, or None."""
        return self._own(read_newest(self.folder)[0])

    def for_round(self, round: int) -> dict[str, Any] | None:
        """Return the record of a round if it was run already, else that of the last round before it, else None.

        Of an earlier round the record holds the update alone. Raise if the record is missing or damaged: the round
        would start from a wrong state and overwrite the existing records.
        """
        newest = max(rounds_written(self.folder), default=0)  # another process of this site may have gone on
        if self.written and newest <= self.written["rounds"] <= round + 1:
            return self.written
        done, _ = read_newest(self.folder, round + 1)
        if done is None or done["rounds"] <= round:
            if newest > round + 1:
                return self._own(self._answered(round))
            done, problems = read_newest(self.folder, round)
            if problems:
                log.error("%s", "; ".join(problems))
                raise MessageRejected("record damaged")
        return self._own(done)

    def _answered(self, round: int) -> dict[str, Any]:
        """Return what is kept of an earlier round."""
        kept: dict[str, Any] | None = read_newest(self.folder / ANSWERS, round + 1)[0]
        if kept is None or kept["rounds"] != round + 1:
            first = min(rounds_written(self.folder / ANSWERS), default=0)
            log.error("round %d is asked for again; there are answers from round %d on", round + 1, first)
            raise MessageRejected("round long past")
        return kept

    def _own(self, found: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the record; raise if another site wrote it, i.e. if two sites share a folder."""
        if found is not None and self.about.get("site", found["about"]["site"]) != found["about"]["site"]:
            raise MessageRejected("record of another site")
        return found

    def write(self, before: Mapping[str, Any] | None, site_round: SiteRound) -> None:
        """Write the record of a round; it extends the record before it."""
        content = {
            "about": self.about,
            "rounds": site_round.round + 1,
            "client": site_round.client,
            "buffers": dict(site_round.buffers),
            "update": _stored(site_round.update),
            "lineage": site_round.lineage,
            "history": [*(before["history"] if before else []), _figures(site_round)],
            **_models(before, site_round),
        }
        if before is not None:  # before its record is deleted
            answer = {name: before[name] for name in ("about", "rounds", "update")}
            write_checkpoint(self.folder / ANSWERS, before["rounds"], answer, kept=self.kept)
        write_checkpoint(self.folder, site_round.round + 1, content)
        self.written = content


def update_of(record: Mapping[str, Any]) -> ClientUpdate:
    """Return the update that a record holds."""
    stored = record["update"]
    return ClientUpdate(
        upload=stored["upload"],
        selected=tuple(stored["selected"]),
        loss=stored["loss"],
        **{name: stored[name] and Scores.from_plain(stored[name]) for name in FIGURES},
    )


def _stored(update: ClientUpdate) -> dict[str, Any]:
    return {"upload": dict(update.upload), "selected": list(update.selected), **_plain(update)}


def _plain(update: ClientUpdate) -> dict[str, Any]:
    """Return an update's figures as plain values."""
    scores = {name: getattr(update, name) for name in FIGURES}
    return {"loss": update.loss, **{name: s and s.as_plain() for name, s in scores.items()}}


def _figures(site_round: SiteRound) -> dict[str, Any]:
    diagnostics = dict(site_round.diagnostics)
    return {"round": site_round.round, **_plain(site_round.update), "diagnostics": diagnostics}


def _models(before: Mapping[str, Any] | None, site_round: SiteRound) -> dict[str, dict[str, Any] | None]:
    """Return the last and the chosen model; the new one is chosen if its validation score is the best so far."""
    kept = {name: before[name] if before else None for name in ("last", "chosen")}
    scores: Scores | None = getattr(site_round.update, site_round.moment)
    if site_round.model is None or scores is None:
        return kept
    vector, buffers = site_round.model
    # A round's aggregation is evaluated in the next round.
    evaluated = site_round.round - (site_round.moment != "after_training")
    new = {"round": evaluated, "vector": vector, "buffers": dict(buffers), "scores": scores.as_plain()}
    best = kept["chosen"]
    mine = scores.validation[site_round.score]
    theirs = best["scores"]["validation"][site_round.score] if best else None
    better = best is None or (mine is not None and (theirs is None or mine > theirs))
    return {"last": new, "chosen": new if better else best}
