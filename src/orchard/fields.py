"""What a setting is, for people: its default, the values it may have, and what it means. Read from its class."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from orchard.settings import Settings

SIGNS: dict[type, str] = {Ge: "≥", Gt: ">", Le: "≤", Lt: "<"}
KINDS: dict[object, str] = {
    str: "text",
    Path: "a path",
    list: "a list of names",
    tuple: "a list of numbers",
    dict: "a table",
    Callable: "a factory",
}


@dataclass(frozen=True)
class Described:
    """One setting."""

    name: str
    default: str
    allowed: str
    meaning: str


def described(settings: type[Settings]) -> list[Described]:
    """Describe the settings of a group, but for the group's own name."""
    fields: Mapping[str, FieldInfo] = settings.model_fields
    return [_described(name, info) for name, info in fields.items() if not (name == "name" and _is_fixed(info))]


def as_text(value: object) -> str:
    """Return a setting's value as people read it."""
    if isinstance(value, Settings):
        return str(getattr(value, "name", value))
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _is_fixed(info: FieldInfo) -> bool:
    return get_origin(info.annotation) is Literal


def _described(name: str, info: FieldInfo) -> Described:
    default = "must be set" if info.is_required() else as_text(info.get_default(call_default_factory=True))
    return Described(name, default, _allowed(info), info.description or "")


def _allowed(info: FieldInfo) -> str:
    """Return the values that a setting may have, e.g. ``≥ 0``."""
    kinds = get_args(info.annotation) if get_origin(info.annotation) in (Union, UnionType) else (info.annotation,)
    return ", ".join(dict.fromkeys("none" if kind is NoneType else _kind(kind, info.metadata) for kind in kinds))


def _kind(kind: Any, limits: Sequence[object]) -> str:
    origin = get_origin(kind)
    if origin is Annotated:
        return _kind(get_args(kind)[0], limits)
    if origin is Literal:
        return ", ".join(map(str, get_args(kind)))
    if (origin or kind) in KINDS:
        return KINDS[origin or kind]
    if issubclass(kind, Settings):
        return "a name, a table" if "name" in kind.model_fields else "a table"
    if kind is bool:
        return "true, false"
    whole = "whole numbers, " if kind is int else ""
    bounds = {type(limit): getattr(limit, type(limit).__name__.lower()) for limit in limits if type(limit) in SIGNS}
    if Ge in bounds and Le in bounds:
        return f"{whole}{bounds[Ge]} to {bounds[Le]}"
    return whole + ", ".join(f"{SIGNS[sign]} {value}" for sign, value in bounds.items()) or "any number"
