"""The methods by name. A method is one file: its settings, its client half, its server half.

Its file is imported only when it is asked for, so that naming methods costs nothing.
"""

from importlib import import_module

from orchard.experiment import MethodSettings, nearest

METHODS = {
    "apple": "orchard.methods.apple:Apple",
}


def method_settings(name: str) -> type[MethodSettings]:
    """Return the settings class of a method, or refuse the name and suggest the nearest one."""
    if name not in METHODS:
        raise ValueError(f"name = {name!r}: unknown method; {nearest(name, list(METHODS))}")
    module, _, attribute = METHODS[name].partition(":")
    settings: type[MethodSettings] = getattr(import_module(module), attribute)
    return settings
