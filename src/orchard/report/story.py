"""The results of runs, in sentences for people who do not train networks."""

from orchard.report.content import Content, RunView
from orchard.runs.advice import advice
from orchard.tasks.task import Measure

SEVERAL = 3
"""Up to so many clients are named one by one; otherwise they are counted."""
LINK = 0.001
"""A relationship below this is none."""


def overview(content: Content) -> list[str]:
    """Return which of several runs does best, as a sentence; nothing for a single run."""
    measured = [run for run in content.runs if run.best]
    if len(measured) < 2:
        return []
    best = max(measured, key=lambda run: run.best.score if run.best else float("-inf"))
    return [f"Of the {len(content.runs)} ways of training compared here, {best.label} does best."]


def story(content: Content, run: RunView) -> list[str]:
    """Return sentences about one run."""
    sentences = [_what_happened(content, run)]
    if not run.best:
        return [*sentences, "There are no figures yet: the first come when the second round has ended."]
    sentences.append(_outcome(content, run.best.score, run.alone))
    if run.state == "finished" and (note := advice(run.method, run.best.score, content.distribution)):
        sentences.append(note)
    sentences += _gains(content, run) if run.gains is not None else [_extremes(content, run)]
    return sentences + _groups(content, run)


def _what_happened(content: Content, run: RunView) -> str:
    clients, done = len(content.distribution.clients), len(run.scores)
    samples = int(content.distribution.sizes().sum())
    who = f"{clients} client{'s' if clients > 1 else ''} with {samples:,} samples between them"
    how = "alone" if run.method == "separate" else f"together by {run.label}"
    if run.state == "running":
        return f"{who} are training {how}: {done} of {run.planned} rounds are measured so far."
    if run.state == "finished":
        return f"{who} trained {how} for {done} round{'s' if done > 1 else ''}."
    return f"{who} trained {how}; the run {_stopped(run)} after {done} of {run.planned} rounds."


def _stopped(run: RunView) -> str:
    return "failed" if run.state == "failed" else "was interrupted"


def _outcome(content: Content, score: float, alone: float | None) -> str:
    """Say how good the models are on average."""
    measure = score_of(content)
    if measure.title == "accuracy":
        said = f"On average a client's model is right in {measure.text(score)} of its own test cases"
        return f"{said}; training alone it is right in {measure.text(alone)}." if alone is not None else f"{said}."
    said = f"On its own test cases a client's model has, on average, {measure.title} {measure.text(score)}"
    return f"{said}; training alone {measure.text(alone)}." if alone is not None else f"{said}."


def score_of(content: Content) -> Measure:
    """Return the task's score."""
    task = content.distribution.predicted()
    return task.measures[task.score]


def _gains(content: Content, run: RunView) -> list[str]:
    names, measure = content.distribution.clients, score_of(content)

    def points(gain: float) -> str:
        return measure.difference(gain).replace("-", "−") + (" points" if measure.percent else "")

    gains = {i: gain for i, gain in enumerate(run.gains or []) if gain is not None}
    if not gains:
        return []
    most = max(gains, key=lambda i: gains[i])
    sentences = []
    if gains[most] > 0:
        helped = f", helped most by {run.helpers[most]}" if run.helpers[most] else ""
        sentences.append(f"The most is gained by {names[most]} ({points(gains[most])}{helped}).")
    worse = sorted((i for i in gains if gains[i] < 0), key=lambda i: gains[i])
    if not worse:
        sentences.append("No client does worse than alone.")
    elif len(worse) <= SEVERAL:
        listed = ", ".join(f"{names[i]} ({points(gains[i])})" for i in worse)
        sentences.append(f"Worse than alone: {listed}.")
    else:
        low = worse[0]
        sentences.append(f"{len(worse)} clients do worse than alone, {names[low]} most ({points(gains[low])}).")
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
    text = score_of(content).text
    return f"From {text(known[low])} ({names[low]}{helped}) to {text(known[high])} ({names[high]})."
