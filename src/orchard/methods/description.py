"""What a method does, what travels, what it keeps, its parameters and its paper: read from the method's file.

``python -m orchard.methods.description docs/methods.md`` writes all of them as one page of the documentation.
"""

import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from orchard.method import MethodSettings
from orchard.methods.registry import BUILT_IN, method_settings

PAGE_OPENS = """# Methods

What `orchard methods` and `orchard methods NAME` say, written by `make documents`. Symbols are those of the papers; n_i
is the number of client i's training samples, n that of all, E the local epochs, η the learning rate.
"""

SIGNS: dict[type, str] = {Ge: "≥", Gt: ">", Le: "≤", Lt: "<"}

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
    fields = {field: info for field, info in settings.model_fields.items() if field != "name"}
    return Description(
        name,
        (inspect.getdoc(settings) or "").split("\n")[0],
        settings.travels,
        settings.keeps,
        EVALUATED[settings.moment],
        [_parameter(field, info, settings) for field, info in fields.items()],
        inspect.getdoc(module) or "",
    )


def _parameter(name: str, info: FieldInfo, settings: type[MethodSettings]) -> Parameter:
    tried = ", ".join(_text(value) for value in settings.grid.get(name, ()))
    return Parameter(name, _text(info.default), _allowed(info), tried, info.description or "")


def _allowed(info: FieldInfo) -> str:
    """Return the values that a parameter may have, e.g. ``≥ 0``."""
    kinds = get_args(info.annotation) if get_origin(info.annotation) in (Union, UnionType) else (info.annotation,)
    return ", ".join("none" if kind is NoneType else _kind(kind, info.metadata) for kind in kinds)


def _kind(kind: Any, limits: Sequence[object]) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(map(str, get_args(kind)))
    if get_origin(kind) is list:
        return "a list of names"
    if kind is bool:
        return "true, false"
    whole = "whole numbers, " if kind is int else ""
    bounds = {type(limit): getattr(limit, type(limit).__name__.lower()) for limit in limits if type(limit) in SIGNS}
    if Ge in bounds and Le in bounds:
        return f"{whole}{bounds[Ge]} to {bounds[Le]}"
    return whole + ", ".join(f"{SIGNS[sign]} {value}" for sign, value in bounds.items()) or "any number"


def _text(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def as_page(names: Sequence[str]) -> str:
    """Return the methods as a page in Markdown: a table of all, then file by file paper, equations and parameters."""
    every = [describe(name) for name in names]
    families = [list(family) for _, family in groupby(every, key=lambda one: one.paper)]
    lines = [PAGE_OPENS, *_table_head("method", "what it does", "travels each round", "private")]
    for family in families:
        anchor = "-".join(one.name for one in family)
        lines += [f"| [{one.name}](#{anchor}) | {one.does} | {one.travels} | {one.keeps} |" for one in family]
    for family in families:
        lines += ["", f"## {', '.join(one.name for one in family)}", "", family[0].paper]
        for one in family:
            lines += ["", *_section(one)]
    return "\n".join(lines) + "\n"


def _section(one: Description) -> list[str]:
    lines = [f"`{one.name}` is evaluated {one.evaluated}."]
    if one.parameters:
        lines += ["", *_table_head("parameter", "default", "allowed", "tried by `tune`", "meaning")]
    cells = [(f"`{p.name}`", p.default, p.allowed, p.tried, p.meaning) for p in one.parameters]
    return [*lines, *(f"| {' | '.join(row)} |" for row in cells)]


def _table_head(*headings: str) -> list[str]:
    return [f"| {' | '.join(headings)} |", "|" + "---|" * len(headings)]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(as_page(list(BUILT_IN)), "utf-8")
