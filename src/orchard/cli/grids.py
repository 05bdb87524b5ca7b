"""What `compare` and `tune` have in common: an experiment, methods and seeds make a grid of runs."""

from collections.abc import Mapping
from pathlib import Path

from orchard.cli.options import definition, listed, seeds_of
from orchard.cli.progress import checked_data
from orchard.experiment import Experiment
from orchard.methods.registry import BUILT_IN
from orchard.runs.grid import Contender, Grid, parse_contender


def planned_grid(
    file: Path | None,
    settings: list[str] | None,
    given: Mapping[str, object],
    methods: str | None,
    seeds: str,
    out: Path,
    *,
    quiet: bool,
    trust: bool = False,
) -> tuple[Grid, list[Contender]]:
    """Return the grid that a command's options define, with its data, and the contenders."""
    base, options = definition(file, settings, trust=trust, **given)
    contenders = _contenders(methods, base)
    return Grid(base, options, seeds_of(seeds), out, checked_data(base, options, quiet=quiet)), contenders


def _contenders(methods: str | None, base: Experiment) -> list[Contender]:
    """Return the methods of a comma-separated option, or all built-in ones."""
    names = dict.fromkeys(BUILT_IN if methods is None else listed("methods", methods))
    return [parse_contender(text, base) for text in names]
