"""What a method does, what travels, what it keeps, its parameters and its paper: read from the method's file.

``python -m orchard.methods.description docs/methods.md`` writes all of them as one page of the documentation.
"""

import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from orchard.fields import as_text, described
from orchard.method import MethodSettings
from orchard.methods.registry import BUILT_IN, method_settings
from orchard.text import markdown_table

PAGE_OPENS = """# Methods

What `orchard methods` and `orchard methods NAME` say, written by `make documents`. Symbols are those of the papers; n_i
is the number of client i's training samples, n that of all, E the local epochs, η the learning rate.
"""

EVALUATED = {
    "after_training": "after its local training",
    "after_aggregation": "after the exchange",
    "after_finetuning": "after the exchange and fine-tuning",
}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a method."""

    name: str
    default: str
    allowed: str
    tried: str
    """The values that `orchard tune` tries."""
    meaning: str


@dataclass(frozen=True)
class Description:
    """A method, for people."""

    name: str
    does: str
    travels: str
    keeps: str
    evaluated: str
    parameters: Sequence[Parameter]
    paper: str
    """Paper and equations, as its file opens with them."""


def describe(name: str) -> Description:
    """Describe a method; an unknown name gets the nearest one suggested."""
    settings = method_settings(name)
    module = sys.modules[settings.__module__]
    parameters = [
        Parameter(one.name, one.default, one.allowed, _tried(settings, one.name), one.meaning)
        for one in described(settings)
    ]
    return Description(
        name,
        (inspect.getdoc(settings) or "").split("\n")[0],
        settings.travels,
        settings.keeps,
        EVALUATED[settings.moment],
        parameters,
        inspect.getdoc(module) or "",
    )


def _tried(settings: type[MethodSettings], parameter: str) -> str:
    return ", ".join(map(as_text, settings.grid.get(parameter, ())))


def as_page(names: Sequence[str]) -> str:
    """Return the methods as a page in Markdown: a table of all, then file by file paper, equations and parameters."""
    every = [describe(name) for name in names]
    families = [list(family) for _, family in groupby(every, key=lambda one: one.paper)]
    rows = [
        (f"[{one.name}](#{'-'.join(member.name for member in family)})", one.does, one.travels, one.keeps)
        for family in families
        for one in family
    ]
    lines = [PAGE_OPENS, *markdown_table(("method", "what it does", "travels each round", "private"), rows)]
    for family in families:
        lines += ["", f"## {', '.join(one.name for one in family)}", "", family[0].paper]
        for one in family:
            lines += ["", *_section(one)]
    return "\n".join(lines) + "\n"


def _section(one: Description) -> list[str]:
    lines = [f"`{one.name}` is evaluated {one.evaluated}."]
    if not one.parameters:
        return lines
    headings = ("parameter", "default", "allowed", "tried by `tune`", "meaning")
    rows = [(f"`{p.name}`", p.default, p.allowed, p.tried, p.meaning) for p in one.parameters]
    return [*lines, "", *markdown_table(headings, rows)]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(as_page(list(BUILT_IN)), "utf-8")
