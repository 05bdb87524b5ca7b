"""What people are told about privacy: before a run, in `orchard site check`, and in the card of an exported model."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from orchard.privacy.accounting import Account, account_of
from orchard.privacy.settings import Privacy

if TYPE_CHECKING:
    from orchard.experiment import Experiment

DROWNED = 10.0
"""Where noise is so many times as long as a gradient can be, hardly anything is learned."""
WEAK = 10.0
"""With a larger ε the formal guarantee says little."""
NAMES_SHOWN = 24


def before_a_run(experiment: "Experiment", samples: Mapping[str, int], parameters: int) -> str:
    """Say what each client spends, by which noise, and what that will likely cost."""
    privacy = experiment.privacy
    if privacy is None:
        return ""
    accounts = {name: account_of(experiment, n) for name, n in samples.items()}
    lines = [f"privacy, for each record of a client, over the whole run at δ = {privacy.delta:g}:"]
    lines += [f"  {name}: {described(one)}" for name, one in list(accounts.items())[:NAMES_SHOWN]]
    if len(accounts) > NAMES_SHOWN:
        lines.append(f"  … and {len(accounts) - NAMES_SHOWN} more")
    return "\n".join([*lines, *warnings(accounts, parameters)])


def described(account: Account) -> str:
    """Return a client's account in a line."""
    parts = [f"ε = {account.epsilon:.3g}", f"n = {account.samples}", f"q = {account.rate:.3g}"]
    steps = f"{account.total.batches} steps with σ = {account.multiplier:.3g}"
    if account.total.gradients > 1:
        steps += f", {account.total.gradients} gradients in each"
    asked = {"training": account.total.train_losses, "validation": account.total.validation_losses}
    return ", ".join([*parts, steps, *(f"{n} losses on {part} data" for part, n in asked.items() if n)])


def warnings(accounts: Mapping[str, Account], parameters: int) -> list[str]:
    """Return what is likely to go wrong."""
    found = []
    noise = {name: one.multiplier * math.sqrt(parameters) / (one.rate * one.samples) for name, one in accounts.items()}
    loudest = max(noise, key=lambda name: noise[name])
    text = f"the noise on a step is {noise[loudest]:.1f} times as long as its gradient can be ({loudest})"
    if noise[loudest] > DROWNED:
        found.append(
            f"  {text}: expect little more than guessing there; a larger ε, fewer parameters, fewer epochs, and "
            "batches up to all of the client's samples help"
        )
    else:
        found.append(f"  {text}; accuracy is lost to it, most where it is longest")
    if (most := max(one.epsilon for one in accounts.values())) > WEAK:
        found.append(f"  ε = {most:.3g} promises little; most deployments choose 10 or less")
    few = {name: one.samples for name, one in accounts.items() if one.delta * one.samples >= 1}
    if few:
        found.append(f"  δ should be far below 1/n, and is not at {', '.join(few)}")
    return found


def promise(account: Account, privacy: Privacy) -> str:
    """Return what the guarantee is, in words for people who decide."""
    return (
        f"differential privacy for each record in this client's training and validation data: "
        f"ε = {account.epsilon:.3g} at δ = {privacy.delta:g} over the whole run. Whatever all others pool (the server, "
        "the other clients, whoever receives this model), whether a record was used changes the odds of what they see "
        f"by a factor of {_factor(account.epsilon)} at most, but for a chance of δ"
    )


def _factor(epsilon: float) -> str:
    return f"exp(ε) = {math.exp(epsilon):.3g}" if epsilon < 50 else "exp(ε)"


NOT_COVERED: Sequence[str] = (
    "how many samples the client has, that it takes part, when it answers and whether it fails",
    "several records of one person together: k of them have k·ε, roughly",
    "what can be learned about a person without their record, e.g. that a sign goes with a disease",
    "other runs on the same data: their ε add up",
)
EXACT_SCALE = "means and deviations by which numbers are standardised, which are exact"
SIMULATED: Sequence[str] = (
    "figures on validation and test data, which are exact, and a round that is chosen by them: they are for those who "
    "may see the data",
    "this model in the hands of somebody who knows the seed: it is of a simulation, whose noise follows from that",
)


def not_covered(*, scaled: bool, simulated: bool) -> list[str]:
    """Return what the guarantee does not cover."""
    return [*NOT_COVERED, *([EXACT_SCALE] if scaled else []), *(SIMULATED if simulated else [])]
