"""Rooms are imported in one direction only, so that a reader can take them in one after another."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "orchard"

ROOMS = [
    "errors",
    "randomness",
    "settings",
    "layout",
    "catalogue",
    "experiment",
    "vector",
    "shelf",
    "data",
    "models",
    "measures",
    "training",
    "contract",
    "plan",
    "consortium",
    "methods",
    "engines",
    "rounds",
    "record",
    "results",
    "checkpoints",
    "kept",
    "folder",
    "environment",
    "resuming",
    "runs",
    "card",
    "export",
    "prediction",
    "site",
    "deploy",
    "grid",
    "comparison",
    "tables",
    "paper",
    "holdings",
    "listing",
    "report",
    "display",
    "stopping",
    "cli",
]
"""A room may import itself and those above it."""

ALLOWED = {("experiment", "methods")}
"""An experiment names a method; its file is looked up when the name is read."""


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):  # imports for type checkers alone do not count
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [node for node in froms if node.level], f"{path} imports relatively"
    names = [f"{node.module}.{alias.name}" for node in froms for alias in node.names]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("orchard.")} - {"__version__"}


def test_every_room_has_its_place() -> None:
    rooms = {room_of(path) for path in SOURCE.rglob("*.py")} - {"__init__"}
    assert rooms == set(ROOMS)


def test_imports_point_one_way() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)} imports {other}"
        for path in SOURCE.rglob("*.py")
        if (room := room_of(path)) != "__init__"
        for other in imported_rooms(path)
        if ROOMS.index(other) > ROOMS.index(room) and (room, other) not in ALLOWED
    ]
    assert not wrong


def test_engines_know_nothing_of_methods_nor_methods_of_engines() -> None:
    for path in (SOURCE / "engines").rglob("*.py"):
        assert "methods" not in imported_rooms(path)
    for path in (SOURCE / "methods").rglob("*.py"):
        assert "engines" not in imported_rooms(path)
