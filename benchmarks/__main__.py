"""Measure speed and memory, as ratios: ``python benchmarks [--json] [steps rounds workers memory loading]``."""

import argparse
import json
import os

import loading
import memory
import rounds
import steps
import workers

BENCHMARKS = {
    "steps": steps.measure,
    "rounds": rounds.measure,
    "workers": workers.measure,
    "memory": memory.measure,
    "loading": loading.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *BENCHMARKS], help="which; none: all of them")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, a line each")
    options = parser.parse_args()
    for name in options.names or BENCHMARKS:
        load = os.getloadavg()[0]
        for figure in BENCHMARKS[name]():
            about = {"benchmark": name, **figure.as_json(), "load": load}
            print(json.dumps(about) if options.json else figure.line(), flush=True)


if __name__ == "__main__":
    main()
