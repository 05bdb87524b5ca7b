"""What a result should make its readers do."""

from statistics import mean

from orchard.data.clients import DataDistribution

ABOVE_CHANCE = 0.1
"""Less than this share of what guessing leaves to be gained is hardly more than chance."""


def commonest(distribution: DataDistribution) -> list[float]:
    """Return each client's test accuracy of always naming its commonest class."""
    return [max(row) / max(1, sum(row)) for row in distribution.counts["test"]]


def guessing(distribution: DataDistribution) -> float:
    """Return the mean client test accuracy of always naming the client's commonest class."""
    return mean(commonest(distribution))


def barely_learned(accuracy: float, chance: float) -> bool:
    """Tell whether an accuracy is hardly more than chance."""
    return accuracy < chance + ABOVE_CHANCE * (1 - chance)


def advice(method: str, accuracy: float, distribution: DataDistribution) -> str:
    """Return a sentence on a run that has hardly learned anything, with what to do; else nothing."""
    if distribution.task != "classification":
        return ""
    chance = guessing(distribution)
    if not barely_learned(accuracy, chance):
        return ""
    said = (
        f"This has hardly left chance level: always naming a client's commonest class is right in {100 * chance:.1f} %."
    )
    if method != "apple":
        return f"{said} Try more rounds, or another learning rate (lr)."
    return (
        f"{said} On small data APPLE as published hardly starts: independent first cores cancel in the mixture, and "
        "small relationships make small steps. Try graft, or --set method.initial=shared."
    )
