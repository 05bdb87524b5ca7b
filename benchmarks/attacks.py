"""What dishonest members do to the honest ones: attacks × methods, without and with a defence.

``python benchmarks/attacks.py results/attacks.json`` measures what the file lacks and adds it cell by cell;
`attack_tables.py` writes the tables into the document.

Attackers are clients of the ordinary engine in this process. What they upload is altered on its way to the server, so
nothing of this is in the product. Two attacks know what all honest clients upload in the same round, and the defence:

M. Baruch, G. Baruch, Y. Goldberg, "A Little Is Enough", NeurIPS 2019, https://arxiv.org/abs/1902.06156
V. Shejwalkar, A. Houmansadr, "Manipulating the Byzantine", NDSS 2021, https://doi.org/10.14722/ndss.2021.24498
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median_low
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orchard.core.contract import ClientUpdate, Download, Failure, Vectors
from orchard.core.federation import Federation
from orchard.data.clients import DataDistribution, FederatedData
from orchard.data.samples import Samples
from orchard.engines.engine import Selections
from orchard.engines.local import LocalEngine
from orchard.engines.scale import Scale
from orchard.errors import RunFailed
from orchard.experiment import RunOptions, load_experiment
from orchard.methods.fedavg import average_of
from orchard.methods.screening import LONGEST
from orchard.randomness import generator
from orchard.runs.loop import new_run, run_to_end
from orchard.runs.run import load_data
from orchard.sites.plan import Agreement
from orchard.whole import write_output

BASE: Mapping[str, Any] = {
    "dataset": "digits", "model": "mlp", "rounds": 12, "epochs": 2, "batch_size": 16, "lr": 0.02
}  # fmt: skip
DIRICHLET = {"name": "dirichlet", "alpha": 0.5}
LAST_ROUNDS = 3
SCALE = Agreement.model_fields["scale_bound"].default


@dataclass(frozen=True)
class Setting:
    """A federation, and which of its clients are dishonest."""

    title: str
    changes: Mapping[str, Any]
    attackers: tuple[int, ...]
    methods: tuple[str, ...] = ("fedavg", "apple", "graft")
    seeds: tuple[int, ...] = (1, 2, 3)
    """The defence was chosen with seed 0."""


FEW, MANY = {"clients": 4}, {"clients": 12, "partition": DIRICHLET}
SETTINGS = {
    "iid-1-of-4": Setting("1 of 4, alike", FEW | {"partition": "iid"}, (1,), ("fedavg", "apple", "graft", "fedfomo")),
    "dirichlet-1-of-4": Setting("1 of 4, unlike", FEW | {"partition": DIRICHLET}, (1,)),
    "dirichlet-1-of-12": Setting("1 of 12, unlike", MANY, (1,)),
    "dirichlet-3-of-12": Setting("3 of 12, unlike", MANY, (1, 4, 7)),
}
METHODS = ("fedavg", "apple", "graft", "fedfomo")
DEFENCES: Mapping[str, tuple[bool, bool]] = {"none": (False, False), "bounds": (True, False), "robust": (True, True)}
"""Whether uploads are checked against the scale, as in every deployment, and the setting `robust`."""

AVERAGES = ("fedavg", "graft")
"""Methods whose server averages."""
Updates = dict[int, Any]
"""Client → `ClientUpdate` or `Failure`."""
Found = Mapping[str, float | None]
"""Cell → accuracy of the honest clients; None if the run ended."""
Falsify = Callable[[Tensor, Tensor, np.random.Generator], Tensor]
"""Takes what an honest client would upload, and what it had before; returns what is sent."""
UPLOADS: Mapping[str, Falsify] = {
    "negation": lambda w, before, draw: -w,
    "scaling": lambda w, before, draw: -30 * w,
    "reversal": lambda w, before, draw: before - 3 * (w - before),
    "noise": lambda w, before, draw: before + _noise(draw, w) * (3 * (w - before).norm() / len(w) ** 0.5),
}
FACTORS = (0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 20, 30)
"""How far the tailored attack tries to go."""
DEVIATIONS = 1.5
"""How far from the mean of honest uploads "a little" is, in their deviations."""
ATTACKS: Mapping[str, str] = {
    "none": "no attack",
    "absent": "those members are not there",
    "negation": "sends its model negated",
    "scaling": "sends −30 times its model",
    "reversal": "sends its update reversed, three times as long",
    "noise": "adds noise three times as long as its update",
    "little": "a little: 1.5 deviations beside the mean of all",
    "tailored": "tailored to the defence: as far as does most harm",
    "labels": "trains on label 9 − y for y",
    "counts": "claims 2⁴⁰ samples",
}
FALSIFIED = (*UPLOADS, "little", "tailored")
"""Attacks that send other vectors than were trained."""


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
        evil = {i: update for i in self.attackers if isinstance(update := updates.get(i), ClientUpdate)}
        if self.attack in FALSIFIED and evil and next(iter(evil.values())).upload:
            updates = self._falsified(round, sent, updates, evil)
        return self.scale.checked(round, sent, updates) if self.bounded else updates

    def _falsified(self, round: int, sent: Mapping[int, Vectors], updates: Updates, evil: Updates) -> Updates:
        """Return the updates of a round, the attackers' altered."""
        (name,) = self.federation.traffic.up
        honest = {i: u.upload[name] for i, u in updates.items() if i not in evil and isinstance(u, ClientUpdate)}
        trained = {i: update.upload[name] for i, update in evil.items()}
        before = {
            i: sent[i].get(name, sent[i].get("pool", self.had.get(i, self.federation.initial_core(i)))) for i in evil
        }
        self.had.update(trained)

        def instead(vectors: Mapping[int, Tensor]) -> Updates:
            return {**updates, **{i: replace(evil[i], upload={name: vector}) for i, vector in vectors.items()}}

        if self.attack == "little":
            return instead({i: little(list(honest.values()), before[i]) for i in evil})
        if self.attack == "tailored":
            return self._furthest(round, sent, honest, trained, before, instead)
        draw = {i: generator(self.experiment.seed, "attack", i, round) for i in evil}
        return instead({i: UPLOADS[self.attack](trained[i], before[i], draw[i]) for i in evil})

    def _furthest(
        self,
        round: int,
        sent: Mapping[int, Vectors],
        honest: Mapping[int, Tensor],
        trained: Mapping[int, Tensor],
        before: Mapping[int, Tensor],
        instead: Callable[[Mapping[int, Tensor]], Updates],
    ) -> Updates:
        """Return the updates in which the attackers go as far as does the most harm without being refused."""
        found, most = instead(trained), 0.0
        for factor in FACTORS:
            if self.experiment.method.name in AVERAGES:
                vectors, harm = self._beside_the_mean(factor, honest, before)
            else:  # each client mixes as it likes: what is long counts most, until it is left out
                vectors, harm = {i: -factor * w for i, w in trained.items()}, factor
                limit = LONGEST * median_low([float(w.norm()) for w in [*honest.values(), *vectors.values()]])
                if self.experiment.robust and max(float(w.norm()) for w in vectors.values()) > limit:
                    continue
            updates = instead(vectors)
            if harm > most and not self._refused(round, sent, updates):
                found, most = updates, harm
        return found

    def _beside_the_mean(
        self, factor: float, honest: Mapping[int, Tensor], before: Mapping[int, Tensor]
    ) -> tuple[dict[int, Tensor], float]:
        """Return vectors so far from the mean of the honest uploads, and how far they carry the server's average."""
        middle, start = torch.stack(list(honest.values())).mean(0), next(iter(before.values()))
        step = middle - start
        away = -step
        if self.experiment.method.name == "graft":  # who pulls against others is not pooled with them: pull across
            across = start - (start @ step) / (step @ step) * step
            away = -across * (step.norm() / across.norm())
        vectors = dict.fromkeys(before, middle + factor * away)
        average = average_of(self.federation)({**vectors, **honest}, self.federation.samples)
        return vectors, float((average - middle) @ away / away.norm())

    def _refused(self, round: int, sent: Mapping[int, Vectors], updates: Updates) -> bool:
        """Tell whether the server would refuse an attacker's upload."""
        if not self.bounded:
            return False
        state = self.scale.state()
        checked = self.scale.checked(round, sent, updates)
        self.scale.restore(state)
        return any(isinstance(checked[i], Failure) for i in self.attackers)


def little(honest: Sequence[Tensor], before: Tensor) -> Tensor:
    """Return what lies within the spread of honest uploads, on the side from which they come."""
    stacked = torch.stack(list(honest))
    middle = stacked.mean(0)
    return middle - DEVIATIONS * stacked.std(0, correction=0) * (middle - before).sign()


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
    for name, setting in SETTINGS.items():
        for seed, method, attack, defence in product(setting.seeds, setting.methods, ATTACKS, DEFENCES):
            if measured(method, attack, defence):
                yield name, method, attack, defence, seed


def measured(method: str, attack: str, defence: str) -> bool:
    """Tell whether this can differ: bounds refuse falsified uploads only; FedFomo defends itself in any case."""
    return attack in FALSIFIED if defence == "bounds" else defence == "none" or method != "fedfomo"


def measure(path: Path, only: str | None, methods: list[str]) -> None:
    """Measure the cells that the file lacks."""
    for cell in cells():
        found: dict[str, float | None] = json.loads(path.read_text("utf-8")) if path.exists() else {}
        name, method, attack, defence, seed = cell
        key = "/".join(map(str, cell))
        if key not in found and only in (None, name) and method in methods:
            found[key] = honest_accuracy(SETTINGS[name], method, attack, defence, seed)
            write_output(path, json.dumps(dict(sorted(found.items())), indent=1) + "\n")
            print(key, found[key], flush=True)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--setting", choices=list(SETTINGS))
    parser.add_argument("--methods", default=",".join(METHODS))
    options = parser.parse_args()
    measure(options.results, options.setting, options.methods.split(","))


if __name__ == "__main__":
    main()
