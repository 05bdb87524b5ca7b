"""Run folders as runs leave them, without training: written by Orchard's own hand, with figures made up."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from helpers import measures
from orchard.core.evaluation import Scores
from orchard.data.clients import DataDistribution
from orchard.experiment import RunOptions, load_experiment
from orchard.report.content import contents_of
from orchard.report.views import Content
from orchard.runs.folder import RunFolder
from orchard.runs.metrics import Round
from orchard.runs.result import Result

RELATED = ("apple", "fedfomo")
NINE = ["separate", "fedavg", "fedavg-local", "fedavg-ft", "fedprox-ft", "apfl", "heurfedamp", "fedfomo", "apple"]


class SyntheticRun:
    """A run whose rounds are written one by one; `finish` ends it. Accuracies and test cases by class may be given."""

    def __init__(
        self,
        path: Path,
        method: str | dict[str, object] = "apple",
        *,
        names: Sequence[str] = ("north", "south", "east", "west"),
        classes: int = 3,
        rounds: int = 5,
        seed: int = 42,
        dataset: str = "digits",
        accuracy: Sequence[float] | None = None,
        tests: list[list[int]] | None = None,
    ) -> None:
        self.accuracy = accuracy
        values = {"dataset": dataset, "clients": len(names), "partition": "iid", "method": method}
        experiment = load_experiment(overrides={**values, "rounds": rounds, "seed": seed})
        self.random = np.random.default_rng([seed, *str(method).encode()])
        counts = {
            part: [[size + i + k for k in range(classes)] for i in range(len(names))]
            for part, size in (("train", 40), ("validation", 5), ("test", 10))
        }
        counts["test"] = tests or counts["test"]
        sizes = {part: [sum(row) for row in rows] for part, rows in counts.items()}
        held = DataDistribution(list(names), [f"class {k}" for k in range(classes)], [1, 8, 8], sizes, counts)
        self.clients = len(names)
        self.related = experiment.method.name in RELATED
        self.result = Result.of(experiment, held, self.diagnostics(0))
        self.folder = RunFolder(path)
        path.mkdir(parents=True)
        about = {"started": datetime.now(UTC).isoformat(), "data": dataset}
        self.folder.create(self.result, RunOptions(), about)

    def diagnostics(self, r: int) -> dict[str, list[list[float]]]:
        """Relationships that grow from 1/N towards ones drawn at random, the first client's helpers soonest."""
        if not self.related:
            return {}
        n = self.clients
        target = np.eye(n) + 0.3 * np.random.default_rng(n).normal(size=(n, n))
        return {"relationships": (1 / n + (target - 1 / n) * r / (r + 3)).tolist()}

    def run(self, rounds: int) -> "SyntheticRun":
        for _ in range(rounds):
            self.round()
        return self

    def by_class(self) -> list[list[list[int]]]:
        """Of each class, as many test samples as the client's number from 1 are taken for the next class."""
        tests = self.result.distribution.counts["test"]
        wrong = [[min(i + 1, held) for held in row] for i, row in enumerate(tests)]
        return [
            [row for k, held in enumerate(tests[i]) for row in ([k, k, held - few[k]], [k, (k + 1) % len(few), few[k]])]
            for i, few in enumerate(wrong)
        ]

    def round(self) -> None:
        """End one more round."""
        r, n = len(self.result.rounds), self.clients
        level = 1 - 0.7 / (r + 2)
        accuracy = self.accuracy or np.clip(level - 0.1 * self.random.random(n), 0, 1).tolist()
        scores: list[Scores | None] = [
            Scores(measures(float(a) - 0.01), measures(float(a), max(0.0, float(a) - 0.1))) for a in accuracy
        ]
        entry = Round(
            round=r,
            time="2024-01-01T00:00:00.000+00:00",
            seconds=1.5,
            loss=[float(2 / (r + 1) + i / 10) for i in range(n)],
            after_training=scores,
            after_aggregation=scores,
            after_finetuning=scores,
            bytes_up=[0 if self.result.experiment.method.name == "separate" else 1_000_000] * n,
            bytes_down=[0 if self.result.experiment.method.name == "separate" else 3_000_000] * n,
            diagnostics=self.diagnostics(r + 1),
            failures={},
        )
        self.result.rounds.append(entry)
        self.folder.append(entry)

    def finish(self) -> Path:
        """Run all rounds that are left and end the run."""
        self.run(self.result.experiment.rounds - len(self.result.rounds))
        self.folder.write("summary.json", {"state": "finished"})
        self.folder.write("by_class.json", {"round": self.result.figures().best.round, "clients": self.by_class()})
        return self.folder.path


def shown(*runs: Path, live: bool = False) -> Content:
    """Return what the report shows of runs on one data set."""
    (content,) = contents_of([RunFolder(run) for run in runs], live=live)
    return content
