"""The model card: what to know before using an exported model."""

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchard.core.evaluation import Scores
from orchard.data.catalogue import CATALOGUE
from orchard.experiment import Experiment, to_toml
from orchard.export.trained_model import TrainedModel

RULES = {
    "best": "the round with the best mean test accuracy of all clients. It was chosen on test data, so its figures "
    "are a little too good",
    "last": "the last round",
    "validation": "the round with the best mean validation accuracy of all clients",
}


def model_card(trained: TrainedModel, about: Mapping[str, Any], file: Path) -> str:
    """Return the Markdown card of the model in `file`; `about` is the file's metadata."""
    experiment = trained.experiment
    name = _cell(about["client"])
    settings = experiment.model_copy(update={"dataset": about["dataset"]})
    return "\n".join(
        [
            f"# {file.name}: the personalised model of {name}",
            "",
            f"Trained with Orchard {about['orchard']} by {trained.clients} clients together, with the "
            f"method `{about['method']}`. It is the model that {name} would use, for data like its own.",
            "",
            "## How good it is",
            "",
            *_figures(trained.scores, trained.counts),
            "",
            f"These are of round {about['round']} (counted from 0): {RULES[about['chosen']]}.",
            "",
            "## What it was trained on",
            "",
            *_data(experiment, trained.classes, trained.counts),
            "",
            "## How it was trained",
            "",
            "```toml",
            to_toml(settings).strip(),
            "```",
            "",
            "## How to use it",
            "",
            *_use(about, file),
            "",
            "## Limits",
            "",
            "The figures hold for data like this client's test data, and for nothing else. It has not been examined as "
            "a medical device, nor for fairness between groups of people.",
            "",
            f"SHA-256 of the file: `{hashlib.sha256(file.read_bytes()).hexdigest()}`",
            "",
        ]
    )


def _figures(scores: Scores, counts: Mapping[str, Sequence[int]]) -> list[str]:
    lines = ["| on its own | samples | accuracy | balanced accuracy | AUROC |", "|---|---|---|---|---|"]
    for part in ("test", "validation"):
        values = ("not defined" if value is None else f"{value:.4f}" for value in getattr(scores, part))
        lines.append(f"| {part} data | {sum(counts[part])} | {' | '.join(values)} |")
    if any(value is None for value in (*scores.test, *scores.validation)):
        lines += ["", "Balanced accuracy and AUROC compare classes, and are not defined where all samples are of one."]
    return lines


def _data(experiment: Experiment, classes: Sequence[str], counts: Mapping[str, Sequence[int]]) -> list[str]:
    name = Path(experiment.dataset).name
    lines = [f"`{name}`, partition `{experiment.partition.name}`. This client's samples, by class:", ""]
    lines += ["| class | train | validation | test |", "|---|---|---|---|"]
    for k, label in enumerate(classes):
        row = [str(counts[part][k]) for part in ("train", "validation", "test")]
        lines.append(f"| {_cell(label)} | {' | '.join(row)} |")
    entry = CATALOGUE.get(experiment.dataset)
    if entry:
        return [*lines, "", f"Licence of the data: {entry.licence}. Please cite {entry.citation}."]
    return [*lines, "", "Licence of the data: known to those who brought them."]


def _use(about: Mapping[str, Any], file: Path) -> list[str]:
    shape = "×".join(map(str, about["shape"]))
    classes = ", ".join(_cell(name) for name in about["classes"])
    return [
        "```",
        _command(about, file),
        "```",
        "",
        f"- Input: a batch of samples of shape {shape}, {about['dtype']}.",
        "- Images: channels first, resized to that size (bilinear), pixels scaled from 0 … 255 to −1 … 1, "
        "i.e. (x/255 − 0.5)/0.5. Other arrays: as they were given for training.",
        f"- Output: a score for each class; their softmax are probabilities. Classes, in order: {classes}.",
        f"- Architecture: `{about['model']}`.",
    ]


def _command(about: Mapping[str, Any], file: Path) -> str:
    if file.suffix == ".pt2":  # `orchard predict` does not load it, since it may hold pickles
        return f"scores = torch.export.load({file.name!r}).module()(samples)"
    own = f" --model {shlex.quote(about['model'])}" if file.suffix == ".safetensors" and ":" in about["model"] else ""
    channels, *sides = about["shape"]
    images = channels in (1, 3) and len(sides) == 2 and sides[0] == sides[1]
    samples = "images..." if images else "samples.npz"
    return f"orchard predict {shlex.quote(file.name)} {samples}{own}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
