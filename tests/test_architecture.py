"""Rooms are imported in one direction only, so that a reader can take them in one after another."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "orchard"

TOP = {"__init__", "errors", "experiment", "fields", "lazy", "method", "randomness", "settings", "text", "whole"}
"""The files at the top, on which everything stands."""

ROOMS = {
    "tasks": set(),
    "data": {"tasks"},
    "privacy": {"data", "tasks"},
    "core": {"privacy", "data", "tasks"},
    "methods": {"core"},
    "engines": {"core", "privacy", "data", "tasks"},
    "runs": {"engines", "methods", "core", "privacy", "data", "tasks"},
    "export": {"runs", "engines", "core", "privacy", "data", "tasks"},
    "audit": {"runs", "engines", "core", "privacy", "data", "tasks"},
    "sites": {"export", "runs", "engines", "methods", "core", "privacy", "data", "tasks"},
    "report": {"audit", "runs", "core", "data", "tasks"},
    "paper": {"report", "runs", "methods", "core", "data"},
    "cli": {
        *("paper", "report", "sites", "audit", "export", "runs", "engines", "methods", "core", "privacy", "data"),
        "tasks",
    },
}
"""A room may import itself, the files at the top, and these."""

LOOKED_UP = {
    *("data.axes", "data.catalogue", "data.folders", "data.medical.scans", "data.owners", "data.partitions"),
    *("data.shifts", "data.tables.reading", "data.tables.settings", "data.tables.targets", "methods.registry"),
    "privacy.settings",
}
"""An experiment names a dataset, a partition and a method: these are looked up when the names are read. Its table
`[privacy]` is checked by that room."""


def imports_of(path: Path) -> set[str]:
    """Return the modules of Orchard that a file imports, as `room.module`; those for type checkers do not count."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [node for node in froms if node.level], f"{path} imports relatively"
    modules = [node.module or "" for node in froms]
    modules += [f"{node.module}.{alias.name}" for node in froms for alias in node.names if node.module == "orchard"]
    modules += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    found = {name.removeprefix("orchard.") for name in modules if name.startswith("orchard.")}
    return found - {"__version__"}


def test_the_table_of_contents() -> None:
    assert {path.stem for path in SOURCE.glob("*.py")} == TOP
    assert {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_one_way(room: str) -> None:
    allowed = {room, *ROOMS[room], *TOP}
    wrong = [
        f"{path.relative_to(SOURCE)} imports {module}"
        for path in (SOURCE / room).rglob("*.py")
        for module in imports_of(path)
        if module.split(".")[0] not in allowed
    ]
    assert not wrong


def test_the_files_at_the_top_import_no_room() -> None:
    wrong = [
        f"{name} imports {module}"
        for name in TOP - {"__init__"}
        for module in imports_of(SOURCE / f"{name}.py")
        if module.split(".")[0] not in TOP and not (name == "experiment" and module in LOOKED_UP)
    ]
    assert not wrong


@pytest.mark.parametrize("room", sorted(set(ROOMS) - {"cli"}))
def test_every_room_says_what_it_may_import(room: str) -> None:
    """The docstring that opens a package names the same rooms as the list above."""
    said = " ".join((ast.get_docstring(ast.parse((SOURCE / room / "__init__.py").read_text("utf-8"))) or "").split())
    _, _, rule = said.partition("May import: ")
    named = {word.strip(",") for word in rule.split(".")[0].split()} & set(ROOMS)
    assert named == ROOMS[room], said
