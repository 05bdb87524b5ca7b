"""The methods by name.

A method's file is imported only when it is asked for, so that naming methods costs nothing. Another package adds
its own under the entry point group `orchard.methods`.
"""

from importlib.metadata import EntryPoint, entry_points

from orchard.method import MethodSettings
from orchard.text import nearest

GROUP = "orchard.methods"

BUILT_IN = {
    "separate": "orchard.methods.separate:Separate",
    "fedavg": "orchard.methods.fedavg:FedAvg",
    "fedavg-local": "orchard.methods.fedavg:FedAvgLocal",
    "fedavg-ft": "orchard.methods.fedavg:FedAvgFT",
    "fedprox": "orchard.methods.fedprox:FedProx",
    "fedprox-ft": "orchard.methods.fedprox:FedProxFT",
    "scaffold": "orchard.methods.scaffold:Scaffold",
    "feddyn": "orchard.methods.feddyn:FedDyn",
    "per-fedavg": "orchard.methods.perfedavg:PerFedAvg",
    "fedper": "orchard.methods.fedper:FedPer",
    "lg-fedavg": "orchard.methods.fedper:LGFedAvg",
    "fedrep": "orchard.methods.fedrep:FedRep",
    "fedbn": "orchard.methods.fedbn:FedBN",
    "ditto": "orchard.methods.ditto:Ditto",
    "pfedme": "orchard.methods.pfedme:PFedMe",
    "apfl": "orchard.methods.apfl:APFL",
    "fedala": "orchard.methods.fedala:FedALA",
    "cfl": "orchard.methods.cfl:CFL",
    "ifca": "orchard.methods.ifca:IFCA",
    "mocha": "orchard.methods.mocha:Mocha",
    "fedamp": "orchard.methods.fedamp:FedAMP",
    "heurfedamp": "orchard.methods.heurfedamp:HeurFedAMP",
    "fedfomo": "orchard.methods.fedfomo:FedFomo",
    "apple": "orchard.methods.apple:Apple",
    "graft": "orchard.methods.graft:Graft",
}


def all_methods() -> dict[str, EntryPoint]:
    """Return all methods by name: the built-in ones, then those of other packages; no name is taken twice."""
    built_in = {name: EntryPoint(name, home, GROUP) for name, home in BUILT_IN.items()}
    return {entry.name: entry for entry in entry_points(group=GROUP)} | built_in


def method_settings(name: str) -> type[MethodSettings]:
    """Return the settings class of a method; an unknown name gets the nearest one suggested."""
    known = all_methods()
    if name not in known and (own := _defined_in_this_process(name)):
        return own
    if name not in known:
        bare, _, parameters = name.partition(":")
        hint = f"only `orchard compare` takes parameters with the name; here: --method {bare} --set method.{parameters}"
        raise ValueError(f"name = {name!r}: unknown method; {hint if bare in known else nearest(name, list(known))}")
    try:
        settings = known[name].load()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"name = {name!r}: cannot be loaded from {known[name].value}: {error}") from error
    if not (isinstance(settings, type) and issubclass(settings, MethodSettings)):
        raise ValueError(f"name = {name!r}: {known[name].value} is not a MethodSettings class")
    return settings


def _defined_in_this_process(name: str) -> type[MethodSettings] | None:
    """Return the class of a method that a script or notebook has defined; the newest of that name."""
    found, classes = None, [MethodSettings]
    for one in classes:  # which grows
        classes += one.__subclasses__()
        if "name" in one.model_fields and one.model_fields["name"].default == name:
            found = one
    return found
