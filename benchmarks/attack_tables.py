"""The tables of measured attacks: ``python benchmarks/attack_tables.py results/attacks.json docs/dishonest.md``."""

import json
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import mean, stdev

from attacks import ATTACKS, DEFENCES, SETTINGS, Found, measured

KNOWING = ("little", "tailored")
MARKS = "<!-- attacks: written by `make documents` -->\n", "<!-- end of attacks -->\n"


def tables(found: Found) -> str:
    """Return what the defence achieves, then a table for each setting, in Markdown."""
    blocks = []
    for name, setting in SETTINGS.items():
        seeds = {method: whole(found, name, method) for method in setting.methods}
        columns = [
            (method, defence)
            for method, defence in product(setting.methods, DEFENCES)
            if seeds[method] and any(measured(method, attack, defence) for attack in ATTACKS)
        ]
        head = ["attack", *(f"{method}: {defence}" for method, defence in columns)]
        rows = [[what, *(_cell(found, name, m, attack, d) for m, d in columns)] for attack, what in ATTACKS.items()]
        counts = ["seeds", *(", ".join(map(str, seeds[method])) for method, _ in columns)]
        if columns:
            blocks.append(f"**{setting.title}**\n\n{_table([head, *rows, counts])}")
    return "\n".join([losses(found), *blocks])


def whole(found: Found, name: str, method: str) -> list[int]:
    """Return the seeds of which all cells were measured; those of attackers who know all uploads may lack."""
    needed = [
        f"{name}/{method}/{attack}/{defence}"
        for attack, defence in product(ATTACKS, DEFENCES)
        if measured(method, attack, defence) and attack not in KNOWING
    ]
    return [seed for seed in SETTINGS[name].seeds if all(f"{cell}/{seed}" in found for cell in needed)]


def losses(found: Found) -> str:
    """Return a table of what attacks cost the honest with `robust`, and what the attackers' mere absence costs."""
    head = ["points lost", "method", "attacker not there", "and `robust`", "worst attack", "a little", "tailored"]
    rows = []
    for name, setting in SETTINGS.items():
        for method in setting.methods:
            cost = {attack: _cost(found, name, method, attack, "robust") for attack in ATTACKS}
            blind = [cost[attack] for attack in ATTACKS if attack not in ("none", "absent", *KNOWING)]
            if all(cost.values()):
                shown = [_cost(found, name, method, "absent", "none"), cost["absent"], max(blind, key=mean)]
                rows.append([setting.title, method, *map(_spread, [*shown, *(cost[attack] for attack in KNOWING)])])
    return _table([head, *rows])


def _cost(found: Found, name: str, method: str, attack: str, defence: str) -> list[float]:
    """Return, of each seed, by how many points less the honest reach than without attack and defence; [] if unknown."""
    pairs = [
        (f"{name}/{method}/none/none/{seed}", f"{name}/{method}/{attack}/{defence}/{seed}")
        for seed in whole(found, name, method)
    ]
    if not all(key in found for pair in pairs for key in pair):
        return []
    return [100 * ((found[without] or 0) - (found[reached] or 0)) for without, reached in pairs]


def _cell(found: Found, name: str, method: str, attack: str, defence: str) -> str:
    """Return mean and deviation over seeds; nothing if one was not measured."""
    keys = [f"{name}/{method}/{attack}/{defence}/{seed}" for seed in whole(found, name, method)]
    if not all(key in found for key in keys):
        return ""
    values = [found[key] for key in keys]
    known = [100 * value for value in values if value is not None]
    if len(known) == len(values):
        return _spread(known)
    return f"ends in {len(values) - len(known)} of {len(values)}" if known else "ends"


def _spread(values: Sequence[float]) -> str:
    deviation = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{mean(values):.1f}{deviation}" if values else ""


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *others = rows
    lines = [head, ["---" if not k else "---:" for k in range(len(head))], *others]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def document(found: Found, text: str) -> str:
    """Return a document with the tables in it, between two comments."""
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return f"{before}{MARKS[0]}\n{tables(found)}\n{MARKS[1]}{after}"


if __name__ == "__main__":
    results, page = map(Path, sys.argv[1:])
    page.write_text(document(json.loads(results.read_text("utf-8")), page.read_text("utf-8")), "utf-8")
