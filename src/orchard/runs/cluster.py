"""The runs of a grid, many at once on a Ray cluster.

The driver decides, as for a grid in this process, which runs are reused, resumed or new, and makes their folders. A
task trains where Ray places it, with the local engine. It writes into the run's folder if its node sees that folder,
else into one of its own that is sent home after every exchange. So a run whose node dies goes on elsewhere, from its
last checkpoint.
"""

import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchard.data.clients import FederatedData
from orchard.engines.ray.cluster import join, on_gpu, slots
from orchard.engines.ray.packing import pack_data
from orchard.errors import ClusterWarning, ResumeWarning, RunFailed, Stopped, UserError
from orchard.experiment import Experiment, RunOptions
from orchard.runs.cluster_task import Home, Outcome, train
from orchard.runs.folder import RunFolder, new_folder
from orchard.runs.grid import Failures, Grid, Runs, Watcher, reusable
from orchard.runs.loop import Progress, Stop

ATTEMPTS = 5
"""How often a run is tried again after its node or its process was lost."""
LOOK = 0.5
"""Seconds between two looks at what is running."""

Key = tuple[str, int]
"""A run's label and its seed."""


@dataclass
class Job:
    """A run to make: the folders to go on in, the best first, and how often it was lost."""

    key: Key
    experiment: Experiment
    folders: list[RunFolder]
    lost: int = 0
    progress: Progress | None = None
    seen: int = 0

    def show(self) -> None:
        """Report the figures so far, if there are new ones."""
        with suppress(OSError, UserError):  # nothing is there yet
            size = (self.folders[0].path / "metrics.jsonl").stat().st_size
            if self.progress and size != self.seen:
                self.seen = size
                self.progress(self.folders[0].result())


def many_at_once(
    runs_to_make: Mapping[Key, Experiment], data: FederatedData, grid: Grid, watcher: Watcher, stop: Stop | None
) -> tuple[Runs, Failures]:
    """Run or reuse all experiments, as many at once as the cluster has room for."""
    runs, failures, jobs = Runs(), Failures(), list[Job]()
    fingerprint = data.fingerprint()

    def failed(key: Key, failure: RunFailed) -> None:
        watcher.fail(*key, str(failure))
        failures.add(f"{key[0]}, seed {key[1]}", failure)

    for key, experiment in runs_to_make.items():
        try:
            finished, interrupted = reusable(experiment, fingerprint, grid.root)
        except RunFailed as busy:
            failed(key, busy)
            continue
        if finished:
            runs[key] = finished
            watcher.end(*key, finished[1], finished[0].path)
        else:
            jobs.append(Job(key, experiment, [RunFolder(folder.path.resolve()) for folder in interrupted]))
    if not jobs:
        return runs, failures
    try:
        for job, outcome in _outcomes(jobs, data, grid, watcher, stop or (lambda: False)):
            if outcome.kind == "failed":
                failed(job.key, _failure(outcome))
            else:
                runs[job.key] = job.folders[0], job.folders[0].result()
                watcher.end(*job.key, runs[job.key][1], None)
    except Stopped:
        done = f"stopped with {len(runs)} of {len(runs_to_make)} runs; what was saved is safe; the same command goes on"
        raise Stopped("\n".join([*failures.reasons, done])) from None
    return runs, failures


def _outcomes(
    waiting: list[Job], data: FederatedData, grid: Grid, watcher: Watcher, stop: Stop
) -> Iterator[tuple[Job, Outcome]]:
    """Yield each run as it finishes or fails; raise if it is to stop, when all have stopped."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    options = grid.options
    join(options.address)
    workers = _workers(options, len(waiting))
    local = options.changed(engine="local", address=None, workers=workers)
    packed = ray.put((replace(data, clients=()), [pack_data(client) for client in data.clients]))
    gpus = options.gpus if on_gpu(options) else 0
    task = ray.remote(train).options(
        num_cpus=workers * options.threads, num_gpus=gpus, max_retries=0, scheduling_strategy="SPREAD"
    )
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    home: Any = ray.remote(Home).options(num_cpus=0, scheduling_strategy=here).remote()
    running: dict[Any, Job] = {}
    stopped = False
    with ExitStack() as stack:
        stack.callback(ray.kill, home)
        sign = stack.enter_context(_sign(grid.root))
        while running or (waiting and not stopped):
            room = sum(slot.workers // workers for slot in slots(options.changed(workers=None)))
            while waiting and not stopped and len(running) < max(1, room):
                job = waiting.pop(0)
                if not job.folders:
                    new = stack.enter_context(new_folder(grid.root, job.experiment))
                    job.folders = [RunFolder(new.resolve())]
                job.progress = job.progress or watcher.begin(*job.key)
                running[task.remote(job.experiment, packed, local, job.folders[0].path, sign, home)] = job
            done, _ = ray.wait(list(running), timeout=LOOK)
            if not stopped and stop():
                stopped = True
                ray.get(home.stop.remote())
            for job in running.values():
                job.show()
            for ref in done:
                job = running.pop(ref)
                outcome = _outcome(ref, job)
                if outcome is None:
                    waiting.insert(0, job)
                elif outcome.kind != "stopped":
                    yield job, outcome
    if stopped:
        raise Stopped


def _workers(options: RunOptions, runs: int) -> int:
    """Return how many clients a run trains at a time: as many as keep all CPUs busy, on one node."""
    if options.workers or on_gpu(options):
        return options.workers or 1
    there = [slot.workers for slot in slots(options)]
    return max(1, min(max(there), sum(there) // max(1, runs)))


def _outcome(ref: Any, job: Job) -> Outcome | None:
    """Return how a task ended; None if it is to be tried again."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    which = f"{job.key[0]}, seed {job.key[1]}"
    try:
        outcome: Outcome = ray.get(ref)
    except RayError as error:
        if isinstance(error, RayTaskError) and not isinstance(error.cause, RayError):
            return Outcome("failed", f"{type(error.cause).__name__}: {error.cause}", str(error))
        job.lost += 1
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        if job.lost > ATTEMPTS:
            return Outcome("failed", f"lost {job.lost} times: {reason}")
        warnings.warn(
            f"{which}: lost: {reason}; it goes on elsewhere, from its last checkpoint", ClusterWarning, stacklevel=3
        )
        return None
    if outcome.kind == "no checkpoint":
        warnings.warn(outcome.text, ResumeWarning, stacklevel=3)
        job.folders = job.folders[1:]
        return None
    return outcome


def _failure(outcome: Outcome) -> RunFailed:
    failure = RunFailed(outcome.text)
    if outcome.trace:
        failure.__cause__ = RuntimeError(f"On the node:\n{outcome.trace}")
    return failure


@contextmanager
def _sign(root: Path) -> Iterator[Path]:
    """Make a file by which a task knows that its node sees the folder of runs."""
    root.mkdir(parents=True, exist_ok=True)
    path = root.resolve() / f".shared-{uuid.uuid4().hex}"
    path.touch()
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
