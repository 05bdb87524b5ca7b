"""What a result should make its readers do."""

from orchard.data.clients import DataDistribution

ABOVE_CHANCE = 0.1
"""Less than this share of what guessing leaves to be gained is hardly more than chance."""


def guessing(distribution: DataDistribution) -> float:
    """Return the mean client test accuracy of always naming the client's commonest class."""
    rows = distribution.counts["test"]
    return sum(max(row) / sum(row) for row in rows) / len(rows)


def advice(method: str, accuracy: float, distribution: DataDistribution) -> str:
    """Return a sentence on a run that has hardly learned anything, with what to do; else nothing."""
    if distribution.task != "classification":
        return ""
    chance = guessing(distribution)
    if accuracy >= chance + ABOVE_CHANCE * (1 - chance):
        return ""
    said = f"This has hardly left chance level: always naming a client's commonest class is right in {chance:.1%}."
    if method != "apple":
        return f"{said} Try more rounds, or another learning rate (lr)."
    return (
        f"{said} On small data APPLE as published hardly starts: independent first cores cancel in the mixture, and "
        "small relationships make small steps. Try graft, or --set method.initial=shared."
    )
