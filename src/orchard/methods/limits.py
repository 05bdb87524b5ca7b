"""Limits on parameters that several methods share, checked before anything runs."""

from orchard.experiment import Experiment


def check_convergence(field: str, value: float, strength: float, meaning: str, experiment: Experiment) -> None:
    """Raise if SGD diverges on a pull: explicit steps on (s/2)·‖x‖² grow once learning rate × s > 2(1 + β)."""
    limit = 2 * (1 + experiment.local_momentum)
    if strength > limit:
        raise ValueError(f"{field} = {value:g}: {meaning} = {strength:g}, but SGD diverges beyond {limit:g}")


def check_budget(budget: int | None, experiment: Experiment) -> None:
    """Raise if a budget allows more downloads than there are other clients."""
    others = experiment.clients - 1
    if budget is not None and budget > others:
        raise ValueError(f"budget = {budget}: at most clients − 1 = {others} others to download")
