"""The run folder: what a run leaves behind, written so that a crash at any moment loses nothing already written.

`experiment.toml` (what defines the run), `federation.json` (who holds what), `environment.json` (where it ran),
`metrics.jsonl` (a line a round), `summary.json`, `checkpoints/` and `models/`. Text is plain and readable without
Orchard. One process at a time writes a folder.
"""

import json
import os
import platform
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from itertools import count
from pathlib import Path
from typing import Any, Literal, Self

from filelock import FileLock, Timeout

from orchard.checkpoints import forget_newer, read_newest, sync, write_checkpoint, write_durably
from orchard.contract import Federation
from orchard.data import Holdings
from orchard.data.fetch import chosen_folder
from orchard.errors import Refusal, RunFailed
from orchard.experiment import Experiment, load_experiment
from orchard.kept import KeptModels
from orchard.record import Round
from orchard.results import Result
from orchard.shelf import Shelf

CHECKPOINT_SHARE = 0.02
"""Checkpoints may take this share of a run's time; where one a round would take more, there are fewer."""
PATIENCE = 1.0
"""Seconds to wait for a lock: somebody may just be looking whether it is held."""

State = Literal["running", "finished", "failed", "interrupted"]


def free_folder(root: Path, experiment: Experiment) -> Path:
    """Return the first unused name for a run's folder."""
    data = re.sub(r"[^\w.-]+", "-", Path(experiment.dataset).resolve().name)[:60]  # never a path of its own
    name = f"{data}-{experiment.partition.name}-{experiment.method.name}-seed{experiment.seed}"
    candidates = (root / (name if k == 1 else f"{name}-{k}") for k in count(1))
    return next(path for path in candidates if not path.exists())


class RunFolder:
    """One run's folder. `held` must be entered before anything is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.models = KeptModels(path / "models")
        self.shelf = Shelf(path / "checkpoints" / "shelf")
        self.last_checkpoint = self.checkpoint_cost = 0.0

    # --- Reading ---

    def experiment(self) -> Experiment:
        """Return what was run."""
        if not (self.path / "experiment.toml").is_file():
            raise Refusal(f"{self.path}: is not the folder of a run: it has no experiment.toml")
        return load_experiment(self.path / "experiment.toml")

    def read(self, name: str) -> dict[str, Any]:
        """Return what a JSON file holds; nothing where there is none yet."""
        try:
            content = json.loads((self.path / name).read_text("utf-8"))
            if not isinstance(content, dict):
                raise ValueError("expected names and values")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise Refusal(f"{self.path / name}: cannot be read: {error}") from None
        return content

    def rounds(self, most: int | None = None) -> list[Round]:
        """Return the finished rounds, or the first of them; a last line that a crash cut short is none."""
        file = self.path / "metrics.jsonl"
        rounds = []
        for number, line in enumerate(_lines(file)[:most]):
            try:
                entry = Round.from_json(json.loads(line))
                if entry.round != number:
                    raise ValueError
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise Refusal(f"{file}: line {number + 1} is damaged") from None
            rounds.append(entry)
        return rounds

    def result(self) -> Result:
        """Return the run's figures so far, read back."""
        result = self.beginning()
        result.rounds = self.rounds()
        return result

    def beginning(self) -> Result:
        """Return what was known before the first round."""
        experiment, known = self.experiment(), self.read("federation.json")
        if not known:
            raise Refusal(f"{self.path}: this run was stopped before it began")
        try:
            holdings = Holdings(**{field.name: known[field.name] for field in fields(Holdings)})
            samples = tuple(map(sum, holdings.counts["train"]))
            federation = Federation(experiment, samples, tuple(holdings.shape), len(holdings.classes))
            return Result(experiment, holdings, federation, known["initial_notes"])
        except (KeyError, TypeError, ValueError) as error:
            raise Refusal(f"{self.path / 'federation.json'}: is damaged: {error!r}") from None

    def has_come_further_than_a_checkpoint(self) -> bool:
        """Tell whether there must have been a checkpoint by now."""
        first = self.experiment().checkpoint_every or 1
        return bool(self.read("summary.json")) or len(_lines(self.path / "metrics.jsonl")) > first

    def newest_checkpoint(self) -> tuple[Any, list[str]]:
        """Return the newest checkpoint that is whole, or None, and what is wrong with newer ones."""
        return read_newest(self.path / "checkpoints", shelf=self.shelf)

    def state(self) -> State:
        """Say where the run stands."""
        if (self.path / ".lock").exists():
            try:
                with FileLock(self.path / ".lock", timeout=0):
                    pass
            except Timeout:
                return "running"
            except OSError:
                pass  # somebody else's folder, which we may only read
        state: State = self.read("summary.json").get("state", "interrupted")
        return state

    # --- Writing ---

    @contextmanager
    def held(self) -> Iterator[Self]:
        """Keep the folder for this process alone. The lock of a process that died is free again by itself."""
        try:
            lock = FileLock(self.path / ".lock", timeout=PATIENCE).acquire()
        except Timeout:
            holder = self.read(".holder.json")
            who = f"process {holder.get('process', '?')} on {holder.get('machine', '?')}"
            raise Refusal(f"{self.path}: is in use by {who}") from None
        except OSError as error:
            raise Refusal(f"{self.path}: cannot be written: {error.strerror or error}") from None
        with lock:
            with self.on_disk():
                self.write(".holder.json", {"process": os.getpid(), "machine": platform.node()})
            self.last_checkpoint = time.monotonic()
            try:
                yield self
            finally:
                with suppress(OSError):
                    (self.path / ".holder.json").unlink()

    def create(self, result: Result, about: Mapping[str, Any]) -> None:
        """Write what is known before the first round."""
        self.models.forget_waiting()
        self.write_experiment(result.experiment)
        self.write("environment.json", about)
        (self.path / "metrics.jsonl").write_bytes(b"")
        self.write_federation(result)

    def write_federation(self, result: Result) -> None:
        """Write who holds what."""
        self.write("federation.json", {**asdict(result.holdings), "initial_notes": result.initial_notes})

    def write_experiment(self, experiment: Experiment) -> None:
        """Write what defines the run; without its own folder, so that the file can be run again as it is."""
        where = {"out": None, "data_dir": chosen_folder(experiment.data_dir)}
        write_durably(self.path / "experiment.toml", experiment.model_copy(update=where).located().to_toml())

    def append(self, finished: Round) -> None:
        """Add a round's line to the metrics."""
        with (self.path / "metrics.jsonl").open("r+b") as file:  # a file that has vanished is not begun anew
            file.seek(0, os.SEEK_END)
            file.write(json.dumps(finished.as_json()).encode() + b"\n")

    def forget(self, after: int) -> None:
        """Forget all but the lines of so many rounds and the checkpoint built on them: the others are run again."""
        forget_newer(self.path / "checkpoints", after + 1, self.shelf)
        self.models.forget_waiting()
        file = self.path / "metrics.jsonl"
        file.touch()
        os.truncate(file, sum(len(line) for line in _lines(file)[:after]))

    def checkpoint_is_due(self, rounds: int, experiment: Experiment) -> bool:
        """Tell whether to write a checkpoint after so many rounds; after the last always, to be able to extend it."""
        if rounds == experiment.rounds:
            return True
        if experiment.checkpoint_every:
            return rounds % experiment.checkpoint_every == 0
        return self.checkpoint_cost <= CHECKPOINT_SHARE * (time.monotonic() - self.last_checkpoint)

    def write_checkpoint(self, rounds: int, content: Mapping[str, Any], worth: Set[int]) -> None:
        """Write a checkpoint after so many rounds, and before it what it builds on: metrics and models."""
        began = time.monotonic()
        sync(self.path / "metrics.jsonl")
        self.models.save(worth)
        try:
            write_checkpoint(self.path / "checkpoints", rounds, content, self.shelf)
        except (TypeError, ValueError, KeyError) as error:  # a method keeps what cannot be written
            raise RunFailed(f"the checkpoint after {rounds} rounds: {error}") from None
        self.last_checkpoint = time.monotonic()
        self.checkpoint_cost = self.last_checkpoint - began

    def write(self, name: str, content: object) -> None:
        """Write a JSON file whole or not at all."""
        write_durably(self.path / name, json.dumps(content, indent=2) + "\n")

    @contextmanager
    def on_disk(self) -> Iterator[None]:
        """Turn a disk's failure into a message for people."""
        try:
            yield
        except OSError as error:
            what = f"{error.filename or self.path}: {error.strerror or error}"
            raise RunFailed(f"cannot write {what}\n{self.way_on()}") from None

    def way_on(self) -> str:
        """Say how to go on."""
        return f"what was saved is safe; go on with: orchard resume {shlex.quote(str(self.path))}"


def _lines(file: Path) -> list[bytes]:
    """Return the whole lines of a file."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Refusal(f"{file}: cannot be read: {error.strerror}") from None
    return [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
