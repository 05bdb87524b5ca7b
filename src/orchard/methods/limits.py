"""Limits on parameters that several methods share; what breaks one is refused before anything runs."""

from orchard.experiment import MOMENTUM, Experiment


def refuse_divergence(field: str, value: float, strength: float, meaning: str) -> None:
    """Refuse a pull on which SGD diverges: explicit steps on (s/2)·‖x‖² grow once learning rate × s > 2(1 + β)."""
    limit = 2 * (1 + MOMENTUM)
    if strength > limit:
        raise ValueError(f"{field} = {value:g}: {meaning} = {strength:g}, but SGD diverges beyond {limit:g}")


def refuse_budget(budget: int | None, experiment: Experiment) -> None:
    """Refuse a budget of more downloads than there are others."""
    others = experiment.clients - 1
    if budget is not None and budget > others:
        raise ValueError(f"budget = {budget}: at most clients − 1 = {others} others to download")
