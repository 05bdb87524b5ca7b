"""Settings that people write: checked when they are read, with error messages that say what to do."""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar, dataclass_transform

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic._internal._model_construction import ModelMetaclass  # it has no public name

from orchard.errors import UserError
from orchard.text import nearest

LONGEST_TOML = 1 << 24
DEEPEST = 12
TOO_DEEP = "it is nested too deeply"
LaxPath = Annotated[Path, Field(strict=False)]
S = TypeVar("S", bound="Settings")
T = TypeVar("T")


def _plainly(make: Callable[..., T], *args: Any, **values: Any) -> T:
    """Make settings; raise UserError where pydantic raises an error of its own."""
    try:
        return make(*args, **values)
    except ValidationError as error:
        raise UserError(explain(error)) from None


@dataclass_transform(kw_only_default=True, field_specifiers=(Field,))
class _SaidPlainly(ModelMetaclass):
    """Makes a class whose constructor raises UserError where pydantic raises an error of its own."""

    if not TYPE_CHECKING:  # which would take this for the signature of every constructor

        def __call__(self, *args: Any, **values: Any) -> Any:
            return _plainly(super().__call__, *args, **values)


class Settings(BaseModel, metaclass=_SaidPlainly):
    """A frozen group of settings that allows no unknown keys and no wrong types.

    A validator's ValueError starts with the field it is about, e.g. ``budget = 12: at most 7 ...``.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    @classmethod
    def model_validate(cls, obj: Any, **how: Any) -> Self:
        """Return checked settings, as the constructor does."""
        return _plainly(super().model_validate, obj, **how)

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **how: Any) -> Self:
        """Return checked settings from JSON."""
        return _plainly(super().model_validate_json, json_data, **how)

    def __setattr__(self, name: str, value: Any) -> None:
        """Raise: settings that are checked must not change."""
        if name in type(self).model_fields:
            raise UserError(f"{name}: cannot be changed in place; make a copy: settings.changed({name}=…)")
        super().__setattr__(name, value)

    def given(self) -> dict[str, Any]:
        """Return the settings that somebody has set; the others have their defaults."""
        return {name: value for name, value in self if name in self.model_fields_set}

    def changed(self, **changes: Any) -> Self:
        """Return a copy with some settings changed, checked like a new one."""
        return validated(type(self), {**self.given(), **changes})

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, values: Any) -> Any:
        known = list(cls.model_fields)
        for key in values if isinstance(values, Mapping) else ():
            if key not in known:
                raise ValueError(f"{key}: unknown key{cls._unlike(key, known)}")
        return values

    @classmethod
    def _unlike(cls, key: str, known: list[str]) -> str:
        """Say whose key it is not, if the settings have a name, and what else may have been meant."""
        name = cls.model_fields["name"].default if "name" in known else None
        others = [other for other in known if other != "name"] if isinstance(name, str) else known
        return f"{f' of {name}' if isinstance(name, str) else ''}; {nearest(key, others) if others else 'it has none'}"


def named(value: object) -> object:
    """Let ``"apple"`` stand for ``{"name": "apple"}``."""
    return {"name": value} if isinstance(value, str) else value


def validated(kind: type[S], values: Mapping[str, Any], where: str = "") -> S:
    """Return checked settings; raise UserError with a readable message that starts with `where`."""
    try:
        return checked(kind, dict(values))
    except ValidationError as error:
        raise UserError(where + explain(error)) from None


def checked(kind: type[S], values: object) -> S:
    """Return checked settings; raise pydantic's error, for those who know better what to say, and to whom."""
    found: S = kind.__pydantic_validator__.validate_python(values)
    return found


def flat(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of groups of settings under names like ``shift.kind``."""
    groups = {key: value for key, value in values.items() if isinstance(value, dict)}
    inner = {f"{key}.{name}": value for key, group in groups.items() for name, value in group.items()}
    return {key: value for key, value in values.items() if key not in groups} | inner


def explain(error: ValidationError, prefix: tuple[str, ...] = ()) -> str:
    """Return one line for each problem: its field, the value given, and what is allowed."""
    lines = []
    for problem in error.errors():
        place = (*prefix, *map(str, problem["loc"]))
        field, cause = ".".join(place), problem.get("ctx", {}).get("error")
        if isinstance(cause, ValidationError):
            lines.append(explain(cause, place))
        elif problem["type"] == "value_error":
            lines.append(".".join((*place, str(cause))))
        elif problem["type"] == "missing":
            lines.append(f"{field}: is missing")
        else:
            message = problem["msg"][0].lower() + problem["msg"][1:]
            lines.append(f"{field} = {problem['input']!r}: {message}" if field else message)
    return "\n".join(lines)


def parsed_toml(text: str) -> dict[str, Any]:
    """Parse TOML; raise TOMLDecodeError also if tables lie deeper in each other than any settings do."""
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError(TOO_DEEP) from None
    level: list[Any] = [values]
    for _ in range(DEEPEST):
        level = [inner for value in level if isinstance(value, dict) for inner in value.values()] + [
            inner for value in level if isinstance(value, list) for inner in value
        ]
    if level:
        raise tomllib.TOMLDecodeError(TOO_DEEP)
    return values


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; raise if it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(LONGEST_TOML + 1)
        if len(content) > LONGEST_TOML:
            raise UserError(f"{path}: is larger than any settings are")
        return parsed_toml(content.decode("utf-8-sig"))  # some editors begin with a byte order mark
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: is not valid TOML: {error}") from None
