"""The server's part of a run: the ordinary rounds, saved in an ordinary run folder, with sites for clients.

A round is complete when enough sites have answered, and is on the disk before the next begins. One that is not is
run again: the sites answer from their records.
"""

import gc
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orchard.contract import Answer, Server
from orchard.data import Holdings
from orchard.engines.flare.engine import FlareEngine
from orchard.environment import environment
from orchard.errors import Refusal, RunFailed
from orchard.folder import RunFolder
from orchard.plan import Plan
from orchard.record import Round
from orchard.results import Result
from orchard.resuming import deciding
from orchard.rounds import Exchange, form_federation, run_rounds
from orchard.vector import give_memory_back

Follow = Callable[[Result], None]
"""Is shown the figures so far, after every exchange."""
Stop = Callable[[], bool]


def coordinate(plan: Plan, path: Path, engine: FlareEngine, follow: Follow, stop: Stop) -> bool:
    """Run the rounds that are left; return whether the run is finished, rather than stopped after a round."""
    gc.freeze()  # what was imported stays, and need not be looked at again and again
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)  # models are nobody else's matter on this machine
    with RunFolder(path).held() as folder:
        if folder.read("summary.json").get("state") == "finished":
            return True
        result, server, wants, first = _begun(plan, folder, engine) or _begin(plan, folder, engine)
        follow(result)
        for exchange in run_rounds(result.federation, server, engine, wants, first):
            _refuse_too_few(plan, exchange)
            _save(folder, server, result, exchange)
            follow(result)
            gc.collect()  # what a round's messages took, gigabytes in the end
            give_memory_back()
            if exchange.round < plan.experiment.rounds and stop():
                return False
        return True


Begun = tuple[Result, Server, Mapping[int, tuple[int, ...]], int]


def _begin(plan: Plan, folder: RunFolder, engine: FlareEngine) -> Begun:
    """Form the federation, with all of its sites."""
    federation = form_federation(plan.experiment, engine)
    wants = engine.start(federation)
    engine.refuse_fewer_than(len(plan.sites))
    classes = plan.agreement.classes
    counts = {part: [engine.enrolled[site][1][part] for site in plan.sites] for part in ("train", "validation", "test")}
    holdings = Holdings(plan.sites, classes, list(federation.shape), None, counts)
    result = Result(plan.experiment, holdings, federation, {})
    with folder.on_disk():
        folder.create(result, environment(plan.experiment))
    return result, plan.experiment.method.server(federation), wants, 0


def _begun(plan: Plan, folder: RunFolder, engine: FlareEngine) -> Begun | None:
    """Go on from the last complete round, with the sites that are there."""
    checkpoint, problems = folder.newest_checkpoint()
    if checkpoint is None:
        if problems:
            raise Refusal("\n".join(problems))
        return None
    result, done = folder.beginning(), checkpoint["rounds"]
    # Where things are kept at this machine is in its file too, and is nobody else's matter.
    if deciding(result.experiment) != deciding(plan.experiment) or result.experiment.rounds != plan.experiment.rounds:
        raise Refusal(f"{folder.path}: the run began with another experiment")
    federation = result.federation
    engine.call_up()
    engine.start(federation)
    engine.refuse_fewer_than(plan.min_sites)
    server = plan.experiment.method.server(federation)
    server.restore(checkpoint["server"])
    result.rounds = [*folder.rounds(done - 1), Round.from_json(checkpoint["unfinished"])]
    with folder.on_disk():
        folder.forget(after=done - 1)
    return result, server, checkpoint["wants"], done


def _refuse_too_few(plan: Plan, exchange: Exchange) -> None:
    good = sum(isinstance(answer, Answer) for answer in exchange.answers.values())
    if good < plan.min_sites:
        reasons = "\n".join(failure.reason for failure in exchange.failures())
        raise RunFailed(f"{good} sites answered, {plan.min_sites} are needed:\n{reasons}")


def _save(folder: RunFolder, server: Server, result: Result, exchange: Exchange) -> None:
    """Bring a complete round onto the disk."""
    finished = result.add(exchange)
    with folder.on_disk():
        if finished:
            folder.append(finished)
        if exchange.round == result.experiment.rounds:
            folder.write("summary.json", defined({"state": "finished", **result.summary()}))
            return
        content = {
            "rounds": exchange.round + 1,
            "server": server.state(),
            "wants": exchange.wants,
            "unfinished": result.rounds[-1].as_json(),
        }
        folder.write_checkpoint(exchange.round + 1, content, set())


def defined(value: Any) -> Any:
    """Return figures as JSON has them: one that is not defined, for want of a site, is null."""
    match value:
        case float() if math.isnan(value):
            return None
        case list():
            return [defined(item) for item in value]
        case dict():
            return {key: defined(item) for key, item in value.items()}
    return value
