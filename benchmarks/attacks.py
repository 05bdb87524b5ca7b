"""What dishonest members do to the honest ones: attacks × methods, without and with a defence.

``python benchmarks/attacks.py measure results/attacks.json`` measures what the file lacks and adds it cell by cell;
``python benchmarks/attacks.py table results/attacks.json docs/dishonest.md`` writes the tables into the document.

Attackers are clients of the ordinary engine in this process. What they upload is altered on its way to the server, so
nothing of this is in the product.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orchard.core.contract import ClientUpdate, Download, Failure
from orchard.core.federation import Federation
from orchard.data.clients import DataDistribution, FederatedData
from orchard.data.samples import Samples
from orchard.engines.engine import Selections
from orchard.engines.local import LocalEngine
from orchard.engines.scale import Scale
from orchard.errors import RunFailed
from orchard.experiment import RunOptions, load_experiment
from orchard.randomness import generator
from orchard.runs.loop import new_run, run_to_end
from orchard.runs.run import load_data
from orchard.sites.plan import Agreement

BASE: Mapping[str, Any] = {
    "dataset": "digits", "model": "mlp", "rounds": 12, "epochs": 2, "batch_size": 16, "lr": 0.02
}  # fmt: skip
DIRICHLET = {"name": "dirichlet", "alpha": 0.5}
LAST_ROUNDS = 3
SCALE = Agreement.model_fields["scale_bound"].default
MARKS = "<!-- attacks: written by `make documents` -->\n", "<!-- end of attacks -->\n"


@dataclass(frozen=True)
class Setting:
    """A federation, and which of its clients are dishonest."""

    title: str
    changes: Mapping[str, Any]
    attackers: tuple[int, ...]
    seeds: tuple[int, ...]


SETTINGS = {
    "iid-1-of-4": Setting("1 of 4, alike", {"clients": 4, "partition": "iid"}, (1,), (0,)),
    "dirichlet-1-of-4": Setting("1 of 4, unlike", {"clients": 4, "partition": DIRICHLET}, (1,), (0,)),
    "dirichlet-1-of-12": Setting("1 of 12, unlike", {"clients": 12, "partition": DIRICHLET}, (1,), (0,)),
    "dirichlet-3-of-12": Setting("3 of 12, unlike", {"clients": 12, "partition": DIRICHLET}, (1, 4, 7), (0,)),
}
METHODS = ("fedavg", "apple", "graft", "fedfomo")
DEFENCES: Mapping[str, tuple[bool, bool]] = {"none": (False, False), "bounds": (True, False), "robust": (True, True)}
"""Whether uploads are checked against the scale, as in every deployment, and the setting `robust`."""

Falsify = Callable[[Tensor, Tensor, np.random.Generator], Tensor]
"""Takes what an honest client would upload, and what it had before; returns what is sent."""
UPLOADS: Mapping[str, Falsify] = {
    "negation": lambda w, before, draw: -w,
    "scaling": lambda w, before, draw: -30 * w,
    "reversal": lambda w, before, draw: before - 3 * (w - before),
    "noise": lambda w, before, draw: before + _noise(draw, w) * (3 * (w - before).norm() / len(w) ** 0.5),
}
ATTACKS: Mapping[str, str] = {
    "none": "no attack",
    "absent": "those members are not there",
    "negation": "sends its model negated",
    "scaling": "sends −30 times its model",
    "reversal": "sends its update reversed, three times as long",
    "noise": "adds noise three times as long as its update",
    "labels": "trains on label 9 − y for y",
    "counts": "claims 2⁴⁰ samples",
}


def _noise(draw: np.random.Generator, like: Tensor) -> Tensor:
    return torch.from_numpy(draw.standard_normal(len(like))).to(like)


class AttackedEngine(LocalEngine):
    """An engine some of whose clients are dishonest, and whose server checks the scale of uploads or does not."""

    def __init__(self, attack: str, attackers: tuple[int, ...], bounded: bool, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.attack, self.attackers, self.bounded = attack, attackers, bounded
        self.had: dict[int, Tensor] = {}

    def quorum(self, failures: Sequence[Failure]) -> int:
        return len(self.data) // 2 + 1  # as between separate sites

    def enrol(self) -> DataDistribution:
        held = super().enrol()
        if self.attack != "counts":
            return held
        claimed = [2**40 if i in self.attackers else n for i, n in enumerate(held.samples["train"])]
        return replace(held, samples={**held.samples, "train": claimed})

    def start(self, federation: Federation) -> Selections:
        self.scale = Scale(federation, SCALE, self.distribution.clients)
        return super().start(federation)

    def exchange(self, downloads: dict[int, Download]) -> dict[int, ClientUpdate | Failure]:
        sent = {i: download.vectors for i, download in downloads.items()}
        round = next(iter(downloads.values())).round
        if self.attack == "absent":
            for i in self.attackers:
                downloads.pop(i, None)
        updates = super().exchange(downloads)
        for i in self.attackers:
            update = updates.get(i)
            if self.attack in UPLOADS and isinstance(update, ClientUpdate) and update.upload:
                updates[i] = self._falsified(i, round, update, sent[i])
        return self.scale.checked(round, sent, updates) if self.bounded else updates

    def _falsified(self, i: int, round: int, update: ClientUpdate, sent: Mapping[str, Tensor]) -> ClientUpdate:
        ((name, honest),) = update.upload.items()
        first = self.federation.initial_core(i)
        before = sent.get(name, sent.get("pool", self.had.get(i, first)))
        self.had[i] = honest
        draw = generator(0, "attack", i, round)
        return replace(update, upload={name: UPLOADS[self.attack](honest, before, draw)})


def attacked_data(data: FederatedData, attack: str, attackers: tuple[int, ...]) -> FederatedData:
    """Return the data that clients train on."""
    if attack != "labels":
        return data
    clients = list(data.clients)
    for i in attackers:
        train = clients[i].train
        clients[i] = replace(clients[i], train=Samples(train.x, 9 - train.y))
    return replace(data, clients=tuple(clients))


def honest_accuracy(setting: Setting, method: str, attack: str, defence: str, seed: int) -> float | None:
    """Return the honest clients' mean test accuracy over the last rounds; None if the run ends before."""
    bounded, robust = DEFENCES[defence]
    experiment = load_experiment(
        overrides={**BASE, **setting.changes, "method": method, "robust": robust, "seed": seed}
    )
    data, options = load_data(experiment), RunOptions(workers=1)
    data = attacked_data(data, attack, setting.attackers)
    with AttackedEngine(attack, setting.attackers, bounded, experiment, data, options) as engine:
        run = new_run(experiment, engine, options)
        try:
            run_to_end(run, None, options)
        except RunFailed:
            return None
    scores = run.result.scores()[-LAST_ROUNDS:]
    honest = [i for i in range(experiment.clients) if i not in setting.attackers]
    found = scores[:, honest]
    # A client that fails has no figure; what it would be worth is unknown, so it counts as nothing.
    return float(np.nan_to_num(found).mean())


def cells() -> Iterator[tuple[str, str, str, str, int]]:
    """Yield setting, method, attack, defence and seed, what matters most first."""
    last = max(max(setting.seeds) for setting in SETTINGS.values())
    for seed, name, method, attack, defence in product(range(last + 1), SETTINGS, METHODS, ATTACKS, DEFENCES):
        # Without a falsified upload the bounds have nothing to refuse.
        if seed in SETTINGS[name].seeds and (defence != "bounds" or attack in UPLOADS):
            yield name, method, attack, defence, seed


def measure(path: Path, only: str | None, methods: list[str]) -> None:
    """Measure the cells that the file lacks."""
    for cell in cells():
        found: dict[str, float | None] = json.loads(path.read_text("utf-8")) if path.exists() else {}
        name, method, attack, defence, seed = cell
        key = "/".join(map(str, cell))
        if key not in found and only in (None, name) and method in methods:
            found[key] = honest_accuracy(SETTINGS[name], method, attack, defence, seed)
            path.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n", "utf-8")
            print(key, found[key], flush=True)


def tables(found: Mapping[str, float | None]) -> str:
    """Return a table for each setting, in Markdown."""
    blocks = []
    for name, setting in SETTINGS.items():
        last = setting.seeds[-1]
        measured = [m for m in METHODS if all(f"{name}/{m}/{attack}/robust/{last}" in found for attack in ATTACKS)]
        columns = list(product(measured, DEFENCES))
        head = ["attack", *(f"{method}: {defence}" for method, defence in columns)]
        rows = [
            [what, *(_cell(found, setting.seeds, name, method, attack, defence) for method, defence in columns)]
            for attack, what in ATTACKS.items()
        ]
        if measured:
            lines = [head, ["---", *("---:" for _ in columns)], *rows]
            text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
            blocks.append(f"**{setting.title}**\n\n{text}")
    return "\n".join(blocks)


def _cell(found: Mapping[str, float | None], seeds: Sequence[int], *what: str) -> str:
    """Return the mean over seeds; nothing if one was not measured."""
    keys = ["/".join([*what, str(seed)]) for seed in seeds]
    if not all(key in found for key in keys):
        return ""
    values = [found[key] for key in keys]
    known = [value for value in values if value is not None]
    return f"{100 * mean(known):.1f}" if len(known) == len(values) else "ends"


def document(found: Mapping[str, float | None], text: str) -> str:
    """Return a document with the tables in it, between two comments."""
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return f"{before}{MARKS[0]}\n{tables(found)}\n{MARKS[1]}{after}"


def main() -> None:
    """Measure, or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["measure", "table"])
    parser.add_argument("results", type=Path)
    parser.add_argument("document", type=Path, nargs="?")
    parser.add_argument("--setting", choices=list(SETTINGS))
    parser.add_argument("--methods", default=",".join(METHODS))
    options = parser.parse_args()
    if options.what == "measure":
        measure(options.results, options.setting, options.methods.split(","))
    else:
        found = json.loads(options.results.read_text("utf-8"))
        options.document.write_text(document(found, options.document.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
