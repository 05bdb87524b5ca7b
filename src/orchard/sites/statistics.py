"""Statistics before training: what a site lets out, and whether the data of all sites fit together."""

import json
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from orchard.data.statistics import (
    Numbers,
    Statistics,
    column_text,
    count_text,
    numbers_text,
    statistics,
    told_lines,
)
from orchard.data.stored import digest_of_path
from orchard.engines.flare.messages import MessageRejected
from orchard.errors import RunFailed
from orchard.settings import checked
from orchard.sites.connection import Connection, printable
from orchard.sites.job import STATISTICS
from orchard.sites.members import known_sites
from orchard.sites.party import party_of
from orchard.sites.plan import Plan, make_plan
from orchard.sites.settings import SiteSettings, load_site
from orchard.sites.waiting import SLOW, Waiting
from orchard.whole import write_durably

TOLD = "statistics.json"
"""The file in a site's records that says which data its statistics were about."""
POLL = 1.0
FAR = 3.0
"""A mean so many deviations away from the others' is worth a look."""
WIDE = 10.0
"""So is a deviation that is so many times as large, or as small."""

# --- At a site ---


def allowed_statistics(plan: Plan, name: str, settings: SiteSettings) -> Statistics:
    """Return what this site tells; raise if it does not allow that, or if its data have changed since it told.

    Answers about data that differ in one patient would tell of that patient.
    """
    if name not in plan.sites:
        raise MessageRejected("not a site of this run")
    if not settings.statistics:
        raise MessageRejected("statistics not allowed here")
    before, now = _told_about(settings), digest_of_path(settings.data)
    if before not in (None, now):
        raise MessageRejected("data changed since statistics")
    told = statistics(settings.data, name, plan.task, plan.experiment)
    if before is None:
        write_durably(settings.records / TOLD, json.dumps({"data": now}))
    return told


def _told_about(settings: SiteSettings) -> str | None:
    """Return the fingerprint of the data that this site has told of; None if it has told nothing."""
    try:
        settings.records.mkdir(parents=True, exist_ok=True)
        return str(json.loads((settings.records / TOLD).read_text("utf-8"))["data"])
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError):
        return "damaged"  # which is no data's


def rehearsed(kit: Path, experiment: Path) -> Iterator[str]:
    """Yield what this site would tell, line by line; nothing leaves."""
    settings, name = load_site(kit), party_of(kit, "site").name
    plan = make_plan(experiment, "stats", known_sites(kit, settings), "statistics")
    yield "This site would tell, of all its data, counts in tens (rounded down):"
    yield from (f"  {line}" for line in told_lines(statistics(settings.data, name, plan.task, plan.experiment)))
    if not settings.statistics:
        yield "It tells nothing of this unless its site.toml says: statistics = true"
    elif _told_about(settings) not in (None, digest_of_path(settings.data)):
        yield (
            "It tells nothing of this: its data have changed since it told, and the difference could tell of single "
            f"patients. To allow it all the same, delete {settings.records / TOLD}"
        )


# --- At the coordinator ---


def ask(experiment: Path, kit: Path, say: Callable[[str], None]) -> tuple[dict[str, Statistics], dict[str, str]]:
    """Ask all connected sites; return what each told, and why others told nothing."""
    waiting = Waiting(say)
    with Connection(kit, waiting=Waiting(say)) as server:
        plan = make_plan(experiment, f"stats-{secrets.token_hex(4)}", server.consortium.sites, "statistics")
        there = server.sites()
        present = [site for site in plan.sites if site in there]
        if not present:
            raise RunFailed("no site is connected")
        job = server.submit(plan, present)
        say(f"asked: {', '.join(present)}; the answer takes half a minute, or until a run that is under way has ended")
        try:
            while not server.is_over(job, status := server.status(job)):
                waiting.on(*waited_for(server, job, status, plan))
                time.sleep(POLL)
        except KeyboardInterrupt:
            server.abort(job)
            raise
        with tempfile.TemporaryDirectory() as home:
            error = server.fetch(job, Path(home))
            file = Path(home) / STATISTICS
            if not file.is_file():
                raise RunFailed(f"the server has no statistics: {error or status}")
            return read_told(file.read_text("utf-8"), plan)


def waited_for(server: Connection, job: str, status: str, plan: Plan) -> tuple[str, float | None, float]:
    """Return what an answer waits for, how long at most, and after how many seconds that is worth saying."""
    progress = server.progress(job, {}) if status == "RUNNING" else None
    late = ", ".join(site for site in plan.sites if site in (progress or {}).get("waiting", []))
    if late:
        agreed = plan.agreement
        return f"{late} (counting)", max(agreed.round_seconds, agreed.patience_seconds), SLOW
    return "the server, which begins the job or has another one under way", None, SLOW


def read_told(text: str, plan: Plan) -> tuple[dict[str, Statistics], dict[str, str]]:
    """Check and return what the server says that the sites have told."""
    try:
        content = json.loads(text)
        all_told = {site: checked(Statistics, found) for site, found in content["sites"].items()}
        told = {site: all_told[site] for site in plan.sites if site in all_told and _fits(all_told[site], plan)}
        given = {site: printable(str(content["reasons"].get(site, "malformed"))) for site in plan.sites}
    except (ValueError, TypeError, LookupError, AttributeError, ValidationError):
        raise RunFailed("the server's statistics make no sense") from None
    return told, {site: reason for site, reason in given.items() if site not in told}


def _fits(one: Statistics, plan: Plan) -> bool:
    """Tell whether a site has told what it was asked for, and nothing else."""
    task, table = plan.task, plan.experiment.table
    asked = (table and table.columns) or {}
    levels = {name: None if kind == "number" else list(kind) for name, kind in asked.items()}
    return (
        list(one.classes) == (list(task.classes) if task.by_class else [])
        and list(one.targets) == ([] if task.by_class else list(task.classes))
        and [column.name for column in one.columns] == list(asked)
        and all(column.levels is None or list(column.levels) == levels[column.name] for column in one.columns)
    )


def comparison(told: Mapping[str, Statistics], reasons: Mapping[str, str]) -> Iterator[str]:
    """Yield tables of sites × classes and of each column, then what does not fit, in words."""
    if told:
        yield "Counts are in tens, rounded down; <10 may be none."
        yield from _class_table(told)
        for kind, rows in _figures_of(told):
            yield ""
            yield kind
            yield from (f"  {site:24} {text}" for site, text in rows.items())
        yield ""
    found = [*(f"{site}: told nothing: {reason}" for site, reason in reasons.items()), *misfits(told)]
    yield "What does not fit:" if found else "Nothing was found that does not fit."
    yield from (f"  {line}" for line in found)


def _class_table(told: Mapping[str, Statistics]) -> Iterator[str]:
    classes = list(next(iter(told.values())).classes)
    widths = [max(9, len(name) + 2) for name in ("samples", *classes)]
    yield "site".ljust(24) + "".join(n.rjust(width) for n, width in zip(("samples", *classes), widths, strict=True))
    for site, one in told.items():
        counts = [one.samples, *one.classes.values()]
        yield site.ljust(24) + "".join(count_text(n).rjust(w) for n, w in zip(counts, widths, strict=True))


def _figures_of(told: Mapping[str, Statistics]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each target that is a number and each column, with what each site tells of it."""
    for name in next(iter(told.values())).targets:
        yield f"target {name}", {site: numbers_text(one.targets[name]) for site, one in told.items()}
    for k, column in enumerate(next(iter(told.values())).columns):
        yield f"column {column.name}", {site: column_text(one.columns[k]) for site, one in told.items()}


# --- What does not fit ---


def misfits(told: Mapping[str, Statistics]) -> Iterator[str]:
    """Yield, in words, where the sites' data do not fit together or the plan."""
    shapes = {one.shape for one in told.values() if one.shape}
    if len(shapes) > 1:
        each = ", ".join(f"{site} {'×'.join(map(str, one.shape))}" for site, one in told.items())
        yield f"samples differ in shape: {each}"
    for site, one in told.items():
        few = [name for name, count in one.classes.items() if not count]
        if few:
            yield f"{site}: holds fewer than 10 of, or none: {', '.join(few)}"
        if one.others:
            yield f"{site}: {count_text(one.others)} targets are not as agreed, e.g. other names of classes"
        for column in one.columns:
            if column.problem:
                yield f"{site}: column {column.name!r} {column_text(column)}"
            if column.others:
                yield f"{site}: {count_text(column.others)} values of {column.name!r} are not as agreed"
            if 2 * column.missing > one.samples:
                yield f"{site}: {column.name!r} is missing in most rows"
    for name in next(iter(told.values())).targets if told else ():
        yield from _far_apart(name, {site: one.targets[name] for site, one in told.items()})
    for k, column in enumerate(next(iter(told.values())).columns if told else ()):
        yield from _far_apart(column.name, {site: one.columns[k].numbers for site, one in told.items()})


def _far_apart(name: str, figures: Mapping[str, Numbers | None]) -> Iterator[str]:
    """Yield the sites whose numbers lie far from those of all others, as with another unit."""
    known = {
        site: (one.mean, one.deviation)
        for site, one in figures.items()
        if one is not None and one.mean is not None and one.deviation
    }
    for site, (mean, deviation) in known.items():
        others = [pair for other, pair in known.items() if other != site]
        if not others:
            return
        middle, wide = (sorted(values)[len(values) // 2] for values in zip(*others, strict=True))
        if abs(mean - middle) > FAR * max(deviation, wide) or not 1 / WIDE < deviation / wide < WIDE:
            yield (
                f"{site}: {name!r} has mean {mean:g} and deviation {deviation:g}, elsewhere about {middle:g} and "
                f"{wide:g}: another unit?"
            )
