"""Which methods are really apart, and which differences between clients' scores may be chance."""

from dataclasses import dataclass
from statistics import mean

from orchard.report.views import Content, MethodView, Values
from orchard.runs.advice import commonest
from orchard.runs.uncertainty import SURE, chance_of, wilson, within_noise

UNEVEN = 1.5
"""Classes are uneven if the commonest takes, at the average client, so many times its even share of the test cases."""


@dataclass(frozen=True)
class Ranking:
    """The method with the best mean, and the others by whether it is ahead of them or level with them."""

    best: str
    ahead: list[str]
    level: list[str]


def ranking(content: Content) -> Ranking | None:
    """Return which methods the best one is really ahead of; None if there is nothing to compare."""
    measured = {view.label: view for view in content.methods if view.best}
    if len(measured) < 2:
        return None
    best = max(measured.values(), key=lambda view: view.best.mean if view.best else 0)
    chances = {label: chance_of(_differences(best, view)) for label, view in measured.items() if view is not best}
    ahead = [label for label, chance in chances.items() if chance < _sure(content)]
    return Ranking(best.label, ahead, [label for label in chances if label not in ahead])


def _sure(content: Content) -> float:
    """Return the chance below which methods are apart: the more are compared with one, the smaller."""
    others = sum(view.best is not None for view in content.methods) - 1
    return SURE / max(1, others)


def _differences(one: MethodView, other: MethodView) -> list[float]:
    """Return by how much each client does better with one method, mean over the seeds that both have."""
    shared = set(one.seeds) & set(other.seeds)
    mine, theirs = (_by_client(view, shared or set(view.seeds)) for view in (one, other))
    return [a - b for a, b in zip(mine, theirs, strict=True) if a is not None and b is not None]


def _by_client(view: MethodView, seeds: set[int]) -> Values:
    runs = [run.clients for run in view.runs or [view] if seeds & set(run.seeds)]
    columns = zip(*runs, strict=True)
    return [mean(v for v in column if v is not None) if None not in column else None for column in columns]


def is_counted(content: Content) -> bool:
    """Tell whether scores are shares of test cases, so that their noise is known from their number."""
    return content.score.title == "accuracy"


def intervals(content: Content, view: MethodView) -> list[tuple[float, float] | None] | None:
    """Return the 95 % interval of each client's accuracy; None in other tasks."""
    if not is_counted(content):
        return None
    cases = content.distribution.samples["test"]
    return [None if v is None else wilson(v, n) for v, n in zip(view.clients, cases, strict=True)]


def gain_in_cases(content: Content, view: MethodView, client: int) -> str:
    """Say how many test cases a client's gain over training alone is, and whether that is noise; else nothing."""
    gain, score = (view.gains or view.clients)[client], view.clients[client]
    if not is_counted(content) or gain is None or score is None or not gain:
        return ""
    cases = content.distribution.samples["test"][client]
    count = f"{abs(gain) * cases:.1f}".removesuffix(".0")
    said = f"{count} of {cases} test case{'s' if cases > 1 else ''}"
    alone = min(1.0, max(0.0, score - gain))  # both are rounded
    return f"{said}: within noise" if within_noise(score, alone, cases) else said


def is_beyond_noise(content: Content, view: MethodView, client: int) -> bool:
    """Tell whether a client's gain over training alone is more than the choice of its test cases explains."""
    said = gain_in_cases(content, view, client)
    return bool(said) and not said.endswith("noise")


def apart_from_alone(content: Content, view: MethodView) -> bool:
    """Tell whether a method is really apart from training alone, over all clients."""
    return chance_of([gain for gain in view.gains or [] if gain is not None]) < _sure(content)


def uneven(content: Content) -> list[float] | None:
    """Return how often always naming its commonest class is right at each client, if classes are uneven."""
    if content.distribution.task != "classification":
        return None
    shares = commonest(content.distribution)
    return shares if mean(shares) > UNEVEN / len(content.distribution.classes) else None
