"""Settings that people write: checked when they are read, and refused in words that say what to do."""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from orchard.errors import Refusal

LaxPath = Annotated[Path, Field(strict=False)]


class Settings(BaseModel):
    """A frozen group of settings that refuses unknown keys and wrong types.

    A validator's ValueError starts with the field it is about, e.g. ``budget = 12: at most 7 ...``.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, values: Any) -> Any:
        known = list(cls.model_fields)
        for key in values if isinstance(values, Mapping) else ():
            if key not in known:
                raise ValueError(f"{key}: unknown key; {nearest(key, known)}")
        return values


def explain(error: ValidationError, prefix: tuple[str, ...] = ()) -> str:
    """Say for each problem which field it is about, what was given, and what is allowed."""
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
            lines.append(f"{field} = {problem['input']!r}: {message}")
    return "\n".join(lines)


def nearest(word: str, known: Sequence[str]) -> str:
    """Return a hint for a name that does not exist: the nearest one that does, else all of them."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}"


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, or say why it cannot be read."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise Refusal(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refusal(f"{path}: is not valid TOML: {error}") from None
