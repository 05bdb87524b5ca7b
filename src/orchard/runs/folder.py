"""The run folder: a run's files, written so that a crash loses nothing that was already written.

`experiment.toml` (the experiment and its options), `federation.json` (each client's samples by class),
`environment.json` (machine and code), `metrics.jsonl` (a line per round), `summary.json`, `checkpoints/` and
`models/`. The text files are readable without Orchard. Only one process at a time writes a folder.
"""

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

from orchard.data.clients import DataDistribution
from orchard.data.download import chosen_folder
from orchard.engines.offload import Offloader
from orchard.errors import RunFailed, UserError
from orchard.experiment import Experiment, RunOptions, load_definition, to_toml
from orchard.runs.checkpoints import delete_newer, read_newest, write_checkpoint
from orchard.runs.files import check_format, from_json, to_json
from orchard.runs.metrics import Round
from orchard.runs.model_store import ModelStore
from orchard.runs.result import Result
from orchard.whole import sync, write_durably

FORMAT = 3
CHECKPOINT_SHARE = 0.02
"""Checkpoints may take this share of a run's time; if one per round would take more, there are fewer."""
WAITING = "waiting.json"
PATIENCE = 1.0
"""Seconds to wait for a lock: another process may take it for a moment to check whether it is free."""

PRIVATE = 0o700
"""A run's folder holds models and relationships, which are not for other users of the machine."""

State = Literal["running", "finished", "failed", "interrupted"]


@contextmanager
def new_folder(root: Path, experiment: Experiment) -> Iterator[Path]:
    """Make a run's folder with the first unused name, which no other process can take; remove it if it stays empty."""
    data = re.sub(r"[^\w.-]+", "-", Path(experiment.dataset).resolve().name)[:60]  # a name, never a path
    name = f"{data}-{experiment.partition.name}-{experiment.method.name}-seed{experiment.seed}"
    candidates = (root / (name if k == 1 else f"{name}-{k}") for k in count(1))
    try:
        root.mkdir(parents=True, exist_ok=True)
        path = next(path for path in candidates if _made(path))
    except OSError as error:
        raise UserError(f"{root}: cannot be used as a folder: {error.strerror}") from None
    try:
        yield path
    finally:
        with suppress(OSError):
            path.rmdir()


def _made(folder: Path) -> bool:
    """Make a folder; return False if its name is taken."""
    try:
        folder.mkdir(mode=PRIVATE)
    except FileExistsError:
        return False
    return True


class RunFolder:
    """One run's folder. Enter `locked` before writing to it."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.models = ModelStore(self.path / "models")
        self.offloader = Offloader(self.path / "checkpoints" / "offloaded")
        self.last_checkpoint = self.checkpoint_cost = 0.0

    # --- Reading ---

    def experiment(self) -> Experiment:
        """Return the run's experiment."""
        return self.definition()[0]

    def definition(self) -> tuple[Experiment, RunOptions]:
        """Return the run's experiment and options."""
        if not (self.path / "experiment.toml").is_file():
            raise UserError(f"{self.path}: is not the folder of a run: it has no experiment.toml")
        about = self.read("environment.json")
        if about:
            check_format(about.get("format"), FORMAT, "run folder", self.path)
        try:
            return load_definition(self.path / "experiment.toml")
        except UserError as refusal:
            said = str(refusal)
            raise UserError(said if said.startswith(str(self.path)) else f"{self.path}: {said}") from None

    def read(self, name: str) -> dict[str, Any]:
        """Return the content of a JSON file; an empty dictionary if there is none."""
        try:
            content = from_json((self.path / name).read_text("utf-8"))
            if not isinstance(content, dict) or not _is_list_of_tables(content.get("resumed", [])):
                raise ValueError("expected names and values")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{self.path / name}: cannot be read: {error}") from None
        return content

    def rounds(self, most: int | None = None) -> list[Round]:
        """Return the finished rounds, or the first `most` of them; ignore a last line that a crash cut short."""
        file = self.path / "metrics.jsonl"
        rounds = []
        for number, line in enumerate(_lines(file)[:most]):
            try:
                entry = Round.from_json(from_json(line))
                if entry.round != number:
                    raise ValueError
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise UserError(f"{file}: line {number + 1} is damaged") from None
            rounds.append(entry)
        return rounds

    def result(self) -> Result:
        """Return the run's figures so far."""
        result = self.header()
        result.rounds = self.rounds()
        return result

    def header(self) -> Result:
        """Return the result without rounds, as it was before the first one."""
        experiment, known = self.experiment(), self.read("federation.json")
        if not known:
            raise UserError(f"{self.path}: this run was stopped before it began")
        try:
            names = {field.name for field in fields(DataDistribution)}
            distribution = DataDistribution(**{name: known[name] for name in known if name in names})
            result = Result.of(experiment, distribution, known["initial_diagnostics"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{self.path / 'federation.json'}: is damaged: {error!r}") from None
        result.folder = self.path
        return result

    def must_have_checkpoint(self) -> bool:
        """Tell whether the run got far enough to have written a checkpoint."""
        first = self.definition()[1].checkpoint_every or 1
        return bool(self.read("summary.json")) or len(_lines(self.path / "metrics.jsonl")) > first

    def newest_checkpoint(self) -> tuple[Any, list[str]]:
        """Return the newest undamaged checkpoint, or None, and the problems of newer ones."""
        return read_newest(self.path / "checkpoints", offloader=self.offloader)

    def waiting_for(self) -> str:
        """Return what a running run waits for; an empty string if that is nothing."""
        return str(self.read(WAITING).get("for", "")) if self.state() == "running" else ""

    def state(self) -> State:
        """Return the run's state; it is running if another process holds the lock."""
        if (self.path / ".lock").exists():
            try:
                with FileLock(self.path / ".lock", timeout=0):
                    pass
            except Timeout:
                return "running"
            except OSError:
                pass  # another user's folder, which we may only read
        state: State = self.read("summary.json").get("state", "interrupted")
        return state

    # --- Writing ---

    @contextmanager
    def locked(self) -> Iterator[Self]:
        """Lock the folder for this process. The lock of a process that dies is released."""
        for name in ("checkpoints", "models"):
            if (self.path / name).is_symlink():  # what is deleted there might be another run's
                raise UserError(f"{self.path / name}: is a link; put the whole folder of the run where it leads to")
        try:
            lock = FileLock(self.path / ".lock", timeout=PATIENCE).acquire()
        except Timeout:
            holder = self.read(".holder.json")
            who = f"process {holder.get('process', '?')} on {holder.get('machine', '?')}"
            raise UserError(f"{self.path}: is in use by {who}") from None
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror or error}") from None
        with lock:
            with self.on_disk():
                self.write(".holder.json", {"process": os.getpid(), "machine": platform.node()})
            self.last_checkpoint = time.monotonic()
            try:
                yield self
            finally:
                with suppress(OSError):
                    (self.path / ".holder.json").unlink()

    def create(self, result: Result, options: RunOptions, about: Mapping[str, Any]) -> None:
        """Write what is known before the first round."""
        self.models.discard_staged()
        self.write_experiment(result.experiment, options)
        self.write("environment.json", {"format": FORMAT, **about})
        write_durably(self.path / "metrics.jsonl", b"")
        self.write_federation(result)

    def write_federation(self, result: Result) -> None:
        """Write each client's samples by class, and the initial diagnostics."""
        initial = {"initial_diagnostics": result.initial_diagnostics}
        self.write("federation.json", {**asdict(result.distribution), **initial})

    def write_experiment(self, experiment: Experiment, options: RunOptions) -> None:
        """Write the experiment and options, without `out` and a cluster's address: the file can be run as it is."""
        folder = chosen_folder(options.data_dir)
        kept = options.changed(out=None, address=None, data_dir=folder and folder.resolve())
        write_durably(self.path / "experiment.toml", to_toml(experiment.located(), kept))

    def append(self, finished: Round) -> None:
        """Add a round's line to the metrics."""
        with (self.path / "metrics.jsonl").open("r+b") as file:  # raises if the file has vanished
            file.seek(0, os.SEEK_END)
            file.write(to_json(finished.as_json()).encode() + b"\n")

    def truncate(self, rounds: int) -> None:
        """Keep the metrics of the first `rounds` rounds and the checkpoint built on them; the others are run again."""
        delete_newer(self.path / "checkpoints", rounds + 1, self.offloader)
        self.models.discard_staged()
        file = self.path / "metrics.jsonl"
        # A new file: the old one may be linked from a backup (cp -al), which must not change.
        write_durably(file, b"".join(_lines(file)[:rounds]))

    def checkpoint_is_due(self, rounds: int, experiment: Experiment, every: int | None) -> bool:
        """Tell whether to write a checkpoint after `rounds` rounds; always after the last, to be able to extend it."""
        if rounds == experiment.rounds:
            return True
        if every:
            return rounds % every == 0
        return self.checkpoint_cost <= CHECKPOINT_SHARE * (time.monotonic() - self.last_checkpoint)

    def write_checkpoint(self, rounds: int, content: Mapping[str, Any], keep: Set[int]) -> None:
        """Write a checkpoint after `rounds` rounds; first sync the metrics and commit the models that it builds on."""
        began = time.monotonic()
        sync(self.path / "metrics.jsonl")
        self.models.commit(keep)
        try:
            write_checkpoint(self.path / "checkpoints", rounds, content, self.offloader)
        except (TypeError, ValueError, KeyError) as error:  # a method's state cannot be written
            raise RunFailed(f"the checkpoint after {rounds} rounds: {error}") from None
        self.last_checkpoint = time.monotonic()
        self.checkpoint_cost = self.last_checkpoint - began

    def write_failed(self, result: Result, reasons: str) -> None:
        """Mark the run as failed."""
        state = {"state": "failed", "error": reasons, "rounds": len(result.rounds)}
        self.write("summary.json", {**state, **result.description()})

    def write(self, name: str, content: object) -> None:
        """Write a JSON file atomically."""
        write_durably(self.path / name, to_json(content, indent=2) + "\n")

    def note_waiting(self, what: str | None) -> None:
        """Leave a note of what this run waits for, which listing runs shows; None removes it."""
        if what is None:
            (self.path / WAITING).unlink(missing_ok=True)
        else:
            self.write(WAITING, {"for": what})

    @contextmanager
    def on_disk(self) -> Iterator[None]:
        """Turn an `OSError` into a `RunFailed` that says how to resume."""
        try:
            yield
        except OSError as error:
            what = f"{error.filename or self.path}: {error.strerror or error}"
            raise RunFailed(f"cannot write {what}\n{self.resume_hint()}") from None

    def resume_hint(self) -> str:
        """Return a message on how to resume the run."""
        return f"what was saved is safe; go on with: orchard resume {shlex.quote(str(self.path))}"


def _is_list_of_tables(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _lines(file: Path) -> list[bytes]:
    """Return the complete lines of a file."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    return [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
