"""The results of runs, in sentences for people who do not train networks."""

from collections.abc import Sequence

from orchard.data.clients import PARTS
from orchard.report.ranking import apart_from_alone, gain_in_cases, is_counted, ranking, uneven
from orchard.report.views import Content, MethodView
from orchard.runs.advice import advice, barely_learned

SEVERAL = 3
"""Up to so many clients are named one by one; otherwise they are counted."""
LINK = 0.001
"""A relationship below this is none."""


def overview(content: Content) -> list[str]:
    """Return which of several methods does best, and of which it is really ahead; nothing for a single one."""
    ranks = ranking(content)
    if not ranks:
        return []
    best = next(view for view in content.methods if view.label == ranks.best)
    seeds = len(best.seeds)
    over = f" (mean of {seeds} seeds)" if seeds > 1 else ""
    text = content.score.text(best.best.mean) if best.best else ""
    sentences = [f"Of the {len(content.methods)} methods compared here, {best.label} has the best mean: {text}{over}."]
    if ranks.ahead:
        sentences.append(f"It is ahead of {_listed(ranks.ahead)}.")
    if ranks.level:
        sentences.append(f"It is level with {_listed(ranks.level)}: the difference is within noise.")
    return sentences


def story(content: Content, view: MethodView) -> list[str]:
    """Return sentences about one method."""
    sentences = [_what_happened(content, view), *_private(view)]
    if not view.best:
        return [*sentences, "There are no figures yet: the first come when the second round has ended."]
    sentences.append(_outcome(content, view))
    if view.state == "finished" and (note := advice(view.method, view.best.mean, content.distribution)):
        sentences.append(note)
    else:
        sentences += _barely(content, view)
    sentences += _gains(content, view) if view.gains is not None else [_extremes(content, view)]
    return sentences + _groups(content, view)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _what_happened(content: Content, view: MethodView) -> str:
    clients, done = len(content.distribution.clients), len(view.scores)
    train, validation, test = (sum(content.distribution.samples[part]) for part in PARTS)
    who = f"{clients} silo{'s' if clients > 1 else ''} with {train:,} training samples between them "
    who += f"(and {validation:,} for validation, {test:,} test cases)"
    how = "alone" if view.method == "separate" else f"together by {view.label}"
    if view.state == "running":
        return f"{who} are training {how}: {done} of {view.planned} rounds are measured so far."
    times = f", with {len(view.seeds)} seeds" if len(view.seeds) > 1 else ""
    if view.state == "finished":
        return f"{who} trained {how} for {done} round{'s' if done > 1 else ''}{times}."
    return f"{who} trained {how}{times}; the run {_stopped(view)} after {done} of {view.planned} rounds."


def _private(view: MethodView) -> list[str]:
    """Return what was promised for each record, and that figures are no part of it."""
    if not view.privacy:
        return []
    promised = f"Their models are differentially private, record by record: {view.privacy}."
    return [promised, "The figures here are exact, which is on no account: they are for those who may see the data."]


def _stopped(view: MethodView) -> str:
    return "failed" if view.state == "failed" else "was interrupted"


def _outcome(content: Content, view: MethodView) -> str:
    """Say how good the models are on average."""
    measure, score = content.score, view.best.mean if view.best else None
    counted = is_counted(content)
    if counted:
        said = f"On average a silo's model is right in {measure.text(score)} of its own test cases"
    else:
        said = f"On its own test cases a silo's model has, on average, {measure.title} {measure.text(score)}"
    if view.alone is None:
        return f"{said}."
    said += f"; training alone {'it is right in ' if counted else ''}{measure.text(view.alone)}"
    return f"{said}." if apart_from_alone(content, view) else f"{said}, which is level: the difference is within noise."


def _barely(content: Content, view: MethodView) -> list[str]:
    """Warn of models that are hardly better than always naming their client's commonest class."""
    shares, names = uneven(content), content.distribution.clients
    if shares is None:
        return []
    text = content.score.text
    pairs = list(zip(view.clients, shares, strict=True))
    low = [i for i, (score, share) in enumerate(pairs) if score is not None and barely_learned(score, share)]
    if len(low) > SEVERAL:
        return [f"At {len(low)} silos the model hardly beats always naming the commonest class (see the table)."]
    return [
        f"At {names[i]} the model is right in {text(view.clients[i])}; "
        f"always naming the commonest class is right in {text(shares[i])}."
        for i in low
    ]


def _gains(content: Content, view: MethodView) -> list[str]:
    names, measure = content.distribution.clients, content.score
    gains = {i: gain for i, gain in enumerate(view.gains or []) if gain is not None}

    def points(i: int) -> str:
        said = measure.difference(gains[i]).replace("-", "−") + (" points" if measure.percent else "")
        cases = gain_in_cases(content, view, i)
        return f"{said}, {cases}" if cases else said

    if not gains:
        return []
    most = max(gains, key=lambda i: gains[i])
    sentences = []
    if gains[most] > 0:
        helped = _helped(view, most, "; ")
        sentences.append(f"The most is gained by {names[most]} ({points(most)}{helped}).")
    worse = sorted((i for i in gains if gains[i] < 0), key=lambda i: gains[i])
    if not worse:
        sentences.append("No silo does worse than alone.")
    elif len(worse) <= SEVERAL:
        sentences.append(f"Worse than alone: {'; '.join(f'{names[i]} ({points(i)})' for i in worse)}.")
    else:
        low = worse[0]
        sentences.append(f"{len(worse)} silos do worse than alone, {names[low]} most ({points(low)}).")
    return sentences


def _groups(content: Content, view: MethodView) -> list[str]:
    """Say who learns only among themselves after the last round, if there are such groups."""
    if not view.relationships:
        return []
    left, groups = dict(enumerate(view.relationships.matrices[-1])), list[list[int]]()
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


def _extremes(content: Content, view: MethodView) -> str:
    names = content.distribution.clients
    known = {i: value for i, value in enumerate(view.clients) if value is not None}
    low, high = min(known, key=lambda i: known[i]), max(known, key=lambda i: known[i])
    helped = _helped(view, low, ", ")
    text = content.score.text
    return f"From {text(known[low])} ({names[low]}{helped}) to {text(known[high])} ({names[high]})."


def _helped(view: MethodView, client: int, before: str) -> str:
    """Name who helps a client most; of several who do so alike none is named."""
    names = view.helpers[client]
    if len(names) > 1:
        return f"{before}helped alike by {len(names)} others"
    return f"{before}helped most by {names[0]}" if names else ""
