"""What audits found, as one table: a row for each figure, a column for each run."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from orchard.audit.findings import Audit, Image
from orchard.audit.membership import Found
from orchard.audit.statistics import Estimate

SEEN = {
    "last": "the last upload",
    "uploads": "all uploads",
    "peers": "what a peer is sent",
    "personalised": "the personalised model",
}
ATTACKS = {"threshold": "loss threshold", "likelihood": "likelihood ratio"}
NOTHING = "–"
ABOUT = (
    "Attacks are lower bounds: who knows a better one finds more. AUC: 0.50 is guessing, 1 is knowing. Found: the "
    "share of the records trained on that are found where 1 % of the others are taken for such. ε ≥: with 95 % "
    "confidence, from canaries guessed rightly. Labels and samples: of a single step that the server sees; samples by "
    "their signal-to-noise ratio. Intervals are of 95 % and tell of these records, not of other runs."
)
EXACT = 60.0
"""Decibels from which on a sample is called recovered exactly: nobody sees a difference."""
Row = tuple[str, ...]


def table_of(audits: Sequence[tuple[str, Audit]]) -> tuple[Row, list[Row]]:
    """Return the table's head and its rows, without those that no audit has a figure for."""
    found = [one for _, one in audits]
    sizes = sorted({image.samples for one in found for image in one.images})
    promised = ("ε promised", *(_number(one.epsilon) for one in found))
    rows = [promised, *_membership(found), *_canaries(found), *_first_steps(found, sizes), *_wanted(found)]
    kept = [row for row in rows if any(cell != NOTHING for cell in row[1:])]
    return ("what is measured", *(label for label, _ in audits)), kept


def labels_of(runs: Sequence[Path], audits: Sequence[Audit]) -> list[str]:
    """Return the runs' methods, with their folders' names where a method comes twice."""
    methods = [f"{found.method}, ε = {found.epsilon:.3g}" if found.epsilon else found.method for found in audits]
    return [
        method if methods.count(method) == 1 else f"{method} ({run.name})"
        for method, run in zip(methods, runs, strict=True)
    ]


def notes_of(audits: Sequence[tuple[str, Audit]]) -> list[str]:
    """Return what was not measured, and why; and which runs could not be repeated exactly."""
    notes = [
        f"{label}: {what} not measured: {reason}" for label, found in audits for what, reason in found.left_out.items()
    ]
    other = "gave other figures when it was repeated, in the last bits at least"
    return notes + [f"{label}: {other}" for label, found in audits if not found.same_figures]


def _membership(audits: Sequence[Audit]) -> Iterator[Row]:
    for sees, seen in SEEN.items():
        for attack, name in ATTACKS.items():
            found = [_attacked(one, attack, sees) for one in audits]
            yield f"{name}, {seen}: AUC", *(_interval(one.auc, 1, 2) if one else NOTHING for one in found)
            yield f"{name}, {seen}: found", *(f"{_interval(one.tpr, 100, 0)} %" if one else NOTHING for one in found)


def _attacked(audit: Audit, attack: str, sees: str) -> Found | None:
    return next((one for one in audit.membership if (one.attack, one.sees) == (attack, sees)), None)


def _interval(one: Estimate, times: float, digits: int) -> str:
    value, low, high = (f"{times * number:.{digits}f}" for number in (one.value, one.low, one.high))
    return f"{value} ({low}–{high})"


def _canaries(audits: Sequence[Audit]) -> Iterator[Row]:
    for sees in ("last", "uploads", "personalised"):
        found = [one.canaries.get(sees) for one in audits]
        yield f"canaries, {SEEN[sees]}: right", *(f"{one.right} of {one.guessed}" if one else NOTHING for one in found)
        yield f"canaries, {SEEN[sees]}: ε ≥", *(f"{one.epsilon:.2f}" if one else NOTHING for one in found)


def _first_steps(audits: Sequence[Audit], sizes: Sequence[int]) -> Iterator[Row]:
    labels = [one.labels for one in audits]
    yield "labels of single samples", *(f"{one.right} of {one.of}" if one else NOTHING for one in labels)
    yield "classes, first upload: correlation", *(_number(one.frequencies) for one in audits)
    for size in sizes:
        images = [next((image for image in one.images if image.samples == size), None) for one in audits]
        yield f"{size} sample{'s' if size > 1 else ''} recovered", *map(_likeness, images)


def _likeness(image: Image | None) -> str:
    if image is None:
        return NOTHING
    return "exactly" if image.likeness >= EXACT else f"{image.likeness:.0f} dB"


def _wanted(audits: Sequence[Audit]) -> Iterator[Row]:
    found = [one.wanted for one in audits]
    hits = [f"{one.most_wanted_is_strongest} of {one.clients}" if one else NOTHING for one in found]
    yield "most wanted is strongest", *hits
    yield "wanted and strong: rank correlation", *(_number(one.rank_correlation if one else None) for one in found)


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"
