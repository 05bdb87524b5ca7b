"""What an audit finds, and how it is kept: `audit.json` in the run's folder."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from orchard.audit.membership import Found
from orchard.audit.rehearsal import Labels
from orchard.audit.statistics import Guesses
from orchard.audit.wanted import Wanted
from orchard.errors import UserError
from orchard.experiment import Experiment
from orchard.runs.files import check_format
from orchard.runs.folder import RunFolder

FORMAT = 1


@dataclass(frozen=True)
class Plan:
    """How thorough an audit is."""

    shadows: int = 8
    canaries: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.shadows < 0 or self.shadows % 2:
            raise UserError(
                f"--shadows {self.shadows}: an even number, since each record is in half of them; 0 for none"
            )
        if self.canaries < 0 or 0 < self.canaries < 8:
            raise UserError(f"--canaries {self.canaries}: at least 8; 0 for none")
        if self.seed < 0:
            raise UserError(f"--seed {self.seed}: not below 0")

    def exchanges(self, experiment: Experiment) -> int:
        """Return how many exchanges of messages the repeated runs have."""
        return (1 + self.shadows + bool(self.canaries)) * (experiment.rounds + 1)


@dataclass(frozen=True)
class Image:
    """How well the samples of a batch were recovered."""

    samples: int
    likeness: float
    """Peak signal-to-noise ratio in decibels."""
    exactly: bool


@dataclass(frozen=True)
class Audit:
    """What an audit found."""

    method: str
    """With the parameters that are not defaults."""
    epsilon: float | None
    """ε that the run was promised to keep; None without differential privacy."""
    plan: Plan
    same_figures: bool
    """Whether the repeated run gave the figures of the run; another processor changes last bits."""
    membership: list[Found]
    canaries: dict[str, Guesses]
    labels: Labels | None = None
    frequencies: float | None = None
    images: list[Image] = field(default_factory=list)
    wanted: Wanted | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    """What was not measured, and why."""
    format: int = FORMAT


def read_audit(folder: Path) -> Audit | None:
    """Return what an audit of a run found; None if there was none."""
    content = RunFolder(folder).read("audit.json")
    return parsed(content, folder / "audit.json") if content else None


def parsed(content: Mapping[str, Any], place: Path) -> Audit:
    """Return an audit read back from plain values."""
    check_format(content.get("format"), FORMAT, "leakage report", place)
    try:
        return TypeAdapter(Audit).validate_python(content)
    except ValueError as error:
        raise UserError(f"{place}: cannot be read: {error}") from None
