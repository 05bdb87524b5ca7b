"""Measure speed and memory, as ratios: ``python benchmarks [--json] [steps rounds …]``.

``python benchmarks silos`` measures twelve sites over FLARE, by its name only: it needs the extra [deploy]. `cluster`
measures a Ray cluster, and is among the others where the extra [ray] is installed.
"""

import argparse
import json
import os
from importlib import import_module
from importlib.util import find_spec

from orchard.engines.pages import use_large_pages
from orchard.errors import UserError

ORDINARY = ["steps", "pools", "private", "rounds", "workers", "memory", "loading"]
ORDINARY += ["cluster"] if find_spec("ray") else []


def main() -> None:
    use_large_pages()  # before any benchmark imports PyTorch
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *ORDINARY, "silos"], help="which; none: all but silos")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, a line each")
    options = parser.parse_args()
    for name in options.names or ORDINARY:
        load = os.getloadavg()[0]
        try:
            figures = import_module(name).measure()
        except UserError as error:  # MNIST's files are not there
            parser.exit(2, f"{name}: {error}\n")
        for figure in figures:
            about = {"benchmark": name, **figure.as_json(), "load": load}
            print(json.dumps(about) if options.json else figure.line(), flush=True)


if __name__ == "__main__":
    main()
