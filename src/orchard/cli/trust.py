"""Code that a file names runs only if its reader says so: a model `package.module:factory` in a TOML file or a run.

What was trusted once, or typed on the command line, is remembered with the place of its code, and not asked again.
"""

import json
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

import typer
from platformdirs import user_state_path

from orchard.errors import UserError
from orchard.text import readable
from orchard.whole import write_durably

MEMORY = "trusted.json"


def check_trust(model: object, named_in: Path | None, trust: bool) -> None:
    """Raise unless the code of a model may run; `named_in` is the file that names it, none if the user typed it."""
    if not isinstance(model, str) or ":" not in model:
        return
    code = [model, _place(model)]
    if code in _trusted():
        return
    if named_in is not None and not trust:
        what = readable(f"{named_in}: its model {model!r} is a program, {code[1] or 'which is not found here'}")
        if not (sys.stdin.isatty() and typer.confirm(f"{what}; run it?", err=True)):
            raise UserError(f"{what}; --trust runs it, and remembers that")
    with suppress(OSError):  # then it is asked again
        memory = user_state_path("orchard") / MEMORY
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_durably(memory, json.dumps([*_trusted(), code], indent=1) + "\n")


def _place(model: str) -> str | None:
    """Return where the package of a model's code is, without running any of it."""
    found = PathFinder.find_spec(model.partition(":")[0].partition(".")[0], [path or "." for path in sys.path])
    place = found and (found.origin or next(iter(found.submodule_search_locations or ()), None))
    return str(Path(place).resolve()) if place else None


def _trusted() -> list[list[str | None]]:
    try:
        known = json.loads((user_state_path("orchard") / MEMORY).read_text("utf-8"))
    except (OSError, ValueError):
        return []
    return known if isinstance(known, list) else []
