"""Names that a package exports without importing their modules until they are used: PyTorch takes seconds."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any


def attribute(package: str, homes: Mapping[str, Sequence[str]], name: str) -> Any:
    """Return an exported name from the module that defines it, for a package's ``__getattr__``."""
    for module, names in homes.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {package!r} has no attribute {name!r}")
