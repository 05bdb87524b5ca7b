"""The results of runs, in sentences for people who do not train networks."""

from orchard.report.content import Content, RunView
from orchard.runs.advice import advice

SEVERAL = 3
"""Up to so many clients are named one by one; otherwise they are counted."""
LINK = 0.001
"""A relationship below this is none."""


def overview(content: Content) -> list[str]:
    """Return which of several runs does best, as a sentence; nothing for a single run."""
    measured = [run for run in content.runs if run.best]
    if len(measured) < 2:
        return []
    best = max(measured, key=lambda run: run.best.accuracy if run.best else 0)
    return [f"Of the {len(content.runs)} ways of training compared here, {best.label} does best."]


def story(content: Content, run: RunView) -> list[str]:
    """Return sentences about one run."""
    sentences = [_what_happened(content, run)]
    if not run.best:
        return [*sentences, "There are no figures yet: the first come when the second round has ended."]
    outcome = f"On average a client's model is right in {_percent(run.best.accuracy)} of its own test cases"
    if run.alone is not None:
        outcome += f"; training alone it is right in {_percent(run.alone)}"
    sentences.append(f"{outcome}.")
    if run.state == "finished" and (note := advice(run.method, run.best.accuracy, content.distribution)):
        sentences.append(note)
    sentences += _gains(content, run) if run.gains is not None else [_extremes(content, run)]
    return sentences + _groups(content, run)


def _what_happened(content: Content, run: RunView) -> str:
    clients, done = len(content.distribution.clients), len(run.accuracy)
    samples = int(content.distribution.totals().sum())
    who = f"{clients} client{'s' if clients > 1 else ''} with {samples:,} samples between them"
    how = "alone" if run.method == "separate" else f"together by {run.label}"
    if run.state == "running":
        return f"{who} are training {how}: {done} of {run.planned} rounds are measured so far."
    if run.state == "finished":
        return f"{who} trained {how} for {done} round{'s' if done > 1 else ''}."
    return f"{who} trained {how}; the run {_stopped(run)} after {done} of {run.planned} rounds."


def _stopped(run: RunView) -> str:
    return "failed" if run.state == "failed" else "was interrupted"


def _gains(content: Content, run: RunView) -> list[str]:
    names = content.distribution.clients
    gains = {i: gain for i, gain in enumerate(run.gains or []) if gain is not None}
    if not gains:
        return []
    most = max(gains, key=lambda i: gains[i])
    sentences = []
    if gains[most] > 0:
        helped = f", helped most by {run.helpers[most]}" if run.helpers[most] else ""
        sentences.append(f"The most is gained by {names[most]} ({_points(gains[most])}{helped}).")
    worse = sorted((i for i in gains if gains[i] < 0), key=lambda i: gains[i])
    if not worse:
        sentences.append("No client does worse than alone.")
    elif len(worse) <= SEVERAL:
        listed = ", ".join(f"{names[i]} ({_points(gains[i])})" for i in worse)
        sentences.append(f"Worse than alone: {listed}.")
    else:
        low = worse[0]
        sentences.append(f"{len(worse)} clients do worse than alone, {names[low]} most ({_points(gains[low])}).")
    return sentences


def _groups(content: Content, run: RunView) -> list[str]:
    """Say who learns only among themselves after the last round, if there are such groups."""
    if not run.relationships:
        return []
    left, groups = dict(enumerate(run.relationships.matrices[-1])), list[list[int]]()
    while left:
        group, reached = list[int](), [min(left)]
        while reached:
            i = reached.pop()
            if i in left:
                row = left.pop(i)
                group.append(i)
                reached += [j for j in left if abs(row[j]) > LINK or abs(left[j][i]) > LINK]
        groups.append(sorted(group))
    several = [group for group in groups if len(group) > 1]
    if len(groups) < 2 or not several:
        return []
    named = "; ".join(", ".join(content.distribution.clients[i] for i in group) for group in several)
    return [f"These learn only from one another: {named}."]


def _extremes(content: Content, run: RunView) -> str:
    names = content.distribution.clients
    known = {i: value for i, value in enumerate(run.clients) if value is not None}
    low, high = min(known, key=lambda i: known[i]), max(known, key=lambda i: known[i])
    helped = f", helped most by {run.helpers[low]}" if run.helpers[low] else ""
    return f"From {_percent(known[low])} ({names[low]}{helped}) to {_percent(known[high])} ({names[high]})."


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _points(gain: float) -> str:
    return f"{100 * gain:+.1f} points".replace("-", "−")
