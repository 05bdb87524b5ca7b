"""One run from its first or next round to its end, on any engine: rounds, metrics, models, checkpoints, summary."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, get_args

from torch import Tensor

from orchard.core.contract import ClientUpdate, Download, Failure, Server, Vectors, check_vectors
from orchard.engines.engine import Engine, Selections
from orchard.engines.guards import StateGuard, check_keys
from orchard.errors import NoUsableCheckpoint, RunFailed, ServerFailed, UserError
from orchard.experiment import Experiment, RunOptions
from orchard.method import Moment
from orchard.runs.folder import RunFolder
from orchard.runs.metrics import Exchange, Round, by_name
from orchard.runs.result import Result
from orchard.runs.resuming import resume_identity

Progress = Callable[[Result], None]
"""Called after every exchange with the figures so far."""
Stop = Callable[[], bool]
"""Asked after every exchange whether to stop; asked once at the start too, so that it knows that rounds have begun."""


class TooFewAnswers(RunFailed):
    """An exchange in which fewer clients answered than a round needs."""

    def __init__(self, exchange: Exchange, needed: int) -> None:
        failures = exchange.failures()
        answered = len(exchange.updates) - len(failures)
        reasons = _grouped(failures)
        some = needed < len(exchange.updates)
        super().__init__(f"{answered} clients answered, {needed} are needed:\n{reasons}" if some else reasons)
        self.exchange = exchange


def _grouped(failures: Sequence[Failure]) -> str:
    """Return a line per reason; if several clients share one, name the first."""
    groups: dict[str, list[Failure]] = {}
    for failure in failures:
        groups.setdefault(failure.reason, []).append(failure)
    return "\n".join(
        f"{first.client}, round {first.round + 1}{f' (and {len(others)} more)' if others else ''}: {reason}"
        for reason, (first, *others) in groups.items()
    )


@dataclass
class Run:
    """The parties of a run, and how far it is."""

    engine: Engine
    server: Server
    result: Result
    selected: Selections
    """What each client selects for the next round."""
    done: int = 0
    """Rounds that are done."""
    data: str | None = None
    """The fingerprint of all data, if they are in one place."""

    @property
    def experiment(self) -> Experiment:
        """The experiment that is run."""
        return self.result.experiment


def new_run(experiment: Experiment, engine: Engine, options: RunOptions) -> Run:
    """Enrol and start the clients, and make the server; return the new run."""
    return _start_parties(Result.of(experiment, engine.enrol(), {}, options.server_device), engine)


def restored_run(
    experiment: Experiment, engine: Engine, options: RunOptions, folder: RunFolder, checkpoint: Mapping[str, Any]
) -> Run:
    """Return a run whose server and clients are restored from a checkpoint."""
    done = checkpoint["rounds"]
    header = folder.header() if folder.read("federation.json") else None  # a lost file is written again
    distribution = header.distribution if header else engine.enrol()
    run = _start_parties(Result.of(experiment, distribution, {}, options.server_device), engine)
    if header:
        run.result.initial_diagnostics = header.initial_diagnostics
    try:
        run.result.rounds = [*folder.rounds(done - 1), Round.from_json(checkpoint["unfinished"])]
    except UserError as damage:
        raise NoUsableCheckpoint(str(damage)) from None
    if len(run.result.rounds) != done:
        file = folder.path / "metrics.jsonl"
        raise NoUsableCheckpoint(f"{file}: lacks rounds that the checkpoint after {done} builds on")
    try:
        run.server.restore(checkpoint["server"])
        engine.restore(checkpoint["clients"])
    except (ValueError, KeyError) as error:
        raise NoUsableCheckpoint(f"{folder.path}: its checkpoint does not fit the code: {error}") from None
    run.selected, run.done = checkpoint["selected"], done
    return run


def _start_parties(result: Result, engine: Engine) -> Run:
    method = result.experiment.method
    if method.moment not in get_args(Moment):
        raise UserError(f"method.moment = {method.moment!r}: expected one of {', '.join(get_args(Moment))}")
    try:
        selected = engine.start(result.federation)
        server = method.server(result.federation)
        check_keys(server)
    except (UserError, RunFailed):
        raise
    except Exception as error:
        raise RunFailed(f"before the first round: {type(error).__name__}: {error}") from error
    result.initial_diagnostics = by_name(engine.diagnostics())
    return Run(engine, server, result, selected)


def run_to_end(
    run: Run, folder: RunFolder | None, options: RunOptions, progress: Progress | None = None, stop: Stop | None = None
) -> bool:
    """Run and save the remaining rounds; return True if the run is finished, False if it was stopped."""
    stop = stop or (lambda: False)
    stop()
    # One more exchange after the last round, in which the clients only evaluate its aggregation.
    for r in range(run.done, run.experiment.rounds + 1):
        exchange = _exchange(run, r)
        failures = exchange.failures()
        needed = run.engine.quorum(failures)
        if len(exchange.updates) - len(failures) < needed:
            raise TooFewAnswers(exchange, needed) from failures[0].error
        finished = run.result.add(exchange)
        run.selected, run.done = exchange.selected, len(run.result.rounds)
        stopping = stop() and exchange.round < run.experiment.rounds
        if folder:
            with folder.on_disk():
                _save(run, folder, options, exchange, finished, stopping)
        if progress:
            progress(run.result)
        if stopping:
            return False
    return True


def _save(
    run: Run, folder: RunFolder, options: RunOptions, exchange: Exchange, finished: Round | None, stopping: bool
) -> None:
    """Write the outcome of an exchange, and a checkpoint if one is due."""
    rounds = run.experiment.rounds
    if finished:
        folder.append(finished)
    keep = _stage_models(run, folder, exchange)
    if exchange.round == rounds:
        folder.models.commit(keep)
        folder.write("summary.json", {"state": "finished", **run.result.summary()})
    elif stopping or folder.checkpoint_is_due(run.done, run.experiment, options.checkpoint_every):
        content = {
            "rounds": run.done,
            "experiment": resume_identity(run.experiment),
            "data": run.data,
            "server": run.server.state(),
            "clients": run.engine.state(),
            "selected": run.selected,
            "unfinished": run.result.rounds[-1].as_json(),
        }
        folder.write_checkpoint(run.done, content, keep)


def _stage_models(run: Run, folder: RunFolder, exchange: Exchange) -> set[int]:
    """Stage the models that this exchange evaluated, if they are to be kept; return the rounds to keep."""
    newest = run.result.evaluated_rounds() - 1
    keep = run.result.rounds_to_keep()
    if newest == run.experiment.rounds - 1:
        keep |= {newest}
    evaluated_now = exchange.round == newest + (run.experiment.method.moment != "after_training")
    if newest in keep and evaluated_now:
        folder.models.stage(newest, run.engine.models(), keep)
    return keep


def _exchange(run: Run, r: int) -> Exchange:
    """Send the downloads of a round, collect the updates and aggregate them."""
    engine, server, declared = run.engine, run.server, run.result.federation.traffic.down
    began = time.perf_counter()
    engine.prepare(server, run.selected)
    guard = StateGuard(server)
    with _named_failure(r):
        downloads = {i: Download(r, _sent(server, i, names, declared)) for i, names in run.selected.items()}
        bytes_down = {i: _size(download.vectors) for i, download in downloads.items()}
        guard.check()
    updates = engine.exchange(downloads)
    good = {i: update for i, update in updates.items() if isinstance(update, ClientUpdate)}
    uploads = {i: update.upload for i, update in good.items() if update.upload}
    # A new guard: the server is not to blame for what clients did to its vectors, but for what it does to theirs.
    guard = StateGuard(server, {f"upload of client {i}": upload for i, upload in uploads.items()})
    with _named_failure(r):
        if uploads:
            server.aggregate(uploads)
        guard.check()
    return Exchange(
        round=r,
        seconds=time.perf_counter() - began,
        updates={**updates, **{i: replace(update, upload={}) for i, update in good.items()}},
        bytes_down=bytes_down,
        bytes_up={i: _size(upload) for i, upload in uploads.items()},
        diagnostics=engine.diagnostics(),
        selected={**run.selected, **{i: update.selected for i, update in good.items()}},
    )


def _sent(server: Server, client: int, names: Sequence[str], declared: Mapping[str, int]) -> Vectors:
    """Return what the server sends to a client: exactly what the client selected."""
    sender = f"{type(server).__name__}.send()"
    vectors = server.send(client, names)
    check_vectors(vectors, declared, sender)
    if missing := [name for name in names if name not in vectors]:
        raise TypeError(f"{sender} lacks {missing[0]!r}, which client {client} selected")
    return {name: vectors[name] for name in names}


@contextmanager
def _named_failure(r: int) -> Iterator[None]:
    """Name the server and the round in an error, as an engine names the client."""
    try:
        yield
    except Exception as error:
        raise ServerFailed(f"server, round {r + 1}: {type(error).__name__}: {error}") from error


def _size(vectors: Mapping[str, Tensor]) -> int:
    return sum(vector.numel() * vector.element_size() for vector in vectors.values())
