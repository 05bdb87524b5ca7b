"""The model card: what to know before using an exported model."""

import hashlib
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchard.data.catalogue import CATALOGUE
from orchard.data.heart import column_of, columns_used
from orchard.data.medical.scans import MedicalSettings
from orchard.data.tables.encoding import HeartReading, Schema
from orchard.experiment import to_toml
from orchard.export.by_class import by_class, cell
from orchard.export.trained_model import TrainedModel
from orchard.privacy.accounting import account_of
from orchard.privacy.statement import not_covered, promise

RULES = {
    "best": "the round with the best mean test score of all clients. It was chosen on test data, so its figures "
    "are a little too good",
    "last": "the last round",
    "validation": "the round with the best mean validation score of all clients",
    "own-validation": "the round with this client's best validation score",
    "joined": "the round with this client's best validation score, counted from when it joined: the others had "
    "finished training, and their models stayed as they were",
}
ARRAYS = (
    "- Images: channels first, resized to that size (bilinear), pixels scaled from 0 … 255 to −1 … 1, i.e. "
    "(x/255 − 0.5)/0.5. Other arrays: as they were given for training."
)
OUTPUTS = {
    "classification": "a score for each class; their softmax are probabilities. Classes, in order",
    "multilabel": "a score for each finding; its sigmoid is a probability. Findings, in order",
    "regression": "a standardised number for each target: prediction = mean + deviation·output. Targets, in order",
    "segmentation": "a score for each class and pixel; the highest is the pixel's class. Classes, in order",
}
"""What the network's outputs mean, by task."""


NOT_TOLD = (
    "Figures on this client's data are exact, and so they are left out: they are on no account of privacy. Those who "
    "may see the data find them with `orchard site report`. The model is that after round {round}."
)


def model_card(trained: TrainedModel, about: Mapping[str, Any], file: Path, content: bytes) -> str:
    """Return the Markdown card of the model in `file`; `about` is its metadata, `content` what it holds."""
    experiment = trained.experiment
    name = cell(about["client"])
    settings = experiment.model_copy(update={"dataset": about["dataset"]})
    return "\n".join(
        [
            f"# {cell(file.name)}: the personalised model of {name}",
            "",
            f"Trained with Orchard {about['orchard']} by {trained.clients} clients together, with the "
            f"method `{about['method']}`. It is the model that {name} would use, for data like its own.",
            "",
            "## How good it is",
            "",
            *(_how_good(trained, about) if trained.told else [NOT_TOLD.format(round=about["round"] + 1)]),
            "",
            *_privacy(trained),
            "## What it was trained on",
            "",
            *_data(trained),
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
            f"SHA-256 of the file: `{hashlib.sha256(content).hexdigest()}`",
            "",
        ]
    )


def _how_good(trained: TrainedModel, about: Mapping[str, Any]) -> list[str]:
    chosen = f"All of these are after round {about['round'] + 1}: {RULES[about['chosen']]}."
    return [*_figures(trained), *by_class(trained), "", chosen]


def _privacy(trained: TrainedModel) -> list[str]:
    """Return what is protected, against whom, and what is not."""
    experiment = trained.experiment
    if experiment.privacy is None:
        return []
    spent = account_of(experiment, trained.sizes["train"])
    exact = experiment.scale is None and (trained.task.scale() is not None or bool(trained.preparation))
    missing = not_covered(scaled=exact, simulated=trained.told)
    lines = ["## What it says about single records", "", f"It has {promise(spent, experiment.privacy)}.", ""]
    return [*lines, "Not covered are:", "", *(f"- {what};" for what in missing[:-1]), f"- {missing[-1]}.", ""]


def _figures(trained: TrainedModel) -> list[str]:
    measures, scores = trained.task.measures, trained.scores
    titles = " | ".join(measure.title for measure in measures.values())
    lines = [f"| on its own | samples | {titles} |", f"|---|---|{'---|' * len(measures)}"]
    for part in ("test", "validation"):
        values = (getattr(scores, part)[name] for name in measures)
        texts = ("not defined" if value is None else f"{value:.4f}" for value in values)
        lines.append(f"| {part} data | {trained.sizes[part]} | {' | '.join(texts)} |")
    if None in (*scores.test.values(), *scores.validation.values()):
        lines += ["", "A measure is not defined where the samples hold too little to compare, e.g. a single class."]
    return lines


def _data(trained: TrainedModel) -> list[str]:
    experiment, counts = trained.experiment, trained.counts
    name = Path(experiment.dataset).name
    if not trained.told:
        held = ", ".join(f"{size} for {part}" for part, size in trained.sizes.items())
        return [f"{cell(name)}: {held}. Licence of the data: known to those who brought them."]
    lines = [f"{cell(name)}, partition `{experiment.partition.name}`. This client's {trained.task.counted}:", ""]
    lines += ["| | train | validation | test |", "|---|---|---|---|"]
    for k, label in enumerate(trained.task.classes):
        row = [str(counts[part][k]) for part in ("train", "validation", "test")]
        lines.append(f"| {cell(label)} | {' | '.join(row)} |")
    entry = CATALOGUE.get(experiment.dataset)
    if entry:
        return [*lines, "", f"Licence of the data: {entry.licence}. Please cite {entry.citation}."]
    return [*lines, "", "Licence of the data: known to those who brought them."]


def _use(about: Mapping[str, Any], file: Path) -> list[str]:
    shape = "×".join(map(str, about["shape"]))
    classes = ", ".join(cell(name) for name in about["classes"])
    return [
        "```",
        _command(about, file),
        "```",
        "",
        f"- Input: a batch of samples of shape {shape}, {about['dtype']}.",
        *_preparation(about),
        f"- Output: {OUTPUTS[about['task']]}: {classes}.",
        *_scale(about),
        f"- Architecture: {cell(about['model'])}.",
    ]


def _preparation(about: Mapping[str, Any]) -> list[str]:
    if about["preparation"]:
        return _columns(about["preparation"])
    return _medical(MedicalSettings.model_validate(about["images"])) if about["images"] is not None else [ARRAYS]


def _medical(images: MedicalSettings) -> list[str]:
    """Return how DICOM and NIfTI files become samples."""
    if images.window:
        window = "intensities {:g} … {:g}".format(*images.window)
    else:
        window = "the file's own window, else the 1st to the 99th percentile of its values,"
    grid = "stretched to that size"
    if images.spacing:
        grid = f"pixels of {'×'.join(f'{length:g}' for length in images.spacing)} mm, cut or padded around the centre"
    kind = "volumes, from feet to head, front to back, right to left" if images.depth else "2-D images"
    text = f"{kind}; {window} become −1 … 1, what lies outside is clipped; {grid} (linear)"
    return [f"- DICOM or NIfTI files, as `orchard predict` prepares them: {text}."]


def _columns(preparation: Mapping[str, Any]) -> list[str]:
    """Return how each column of a table becomes features."""
    table, scaling = Schema.model_validate(preparation["table"]), preparation["scaling"]
    what = f"UCI's columns {', '.join(columns_used(table.heart))}" if table.heart else "a table"
    lines = [f"- A row of {what} becomes these features, as `orchard predict` makes them of a .csv or .parquet:", ""]
    lines += ["| column | features | mean | deviation |", "|---|---|---|---|"]
    features = zip(scaling["means"], scaling["deviations"], strict=True)
    for column in table.columns:
        for k, name in enumerate(column.features):
            mean, deviation = next(features)
            number = k == 0 and column.levels is None
            scaled = f"{mean:.6g} | {deviation:.6g}" if number else "1 if so, else 0 | "
            lines.append(f"| {cell(column_of(name) if table.heart else column.name)} | {cell(name)} | {scaled} |")
    lines += ["", "- Numbers: (x − mean)/deviation, 0 where missing."]
    return [*lines, *_heart(table.heart)] if table.heart else lines


def _heart(reading: HeartReading) -> list[str]:
    zero = " A `chol` of 0 counts as missing." if reading == "all" else ""
    return [
        "- Features with “=” or “is missing” are 1 if so, else 0, and then standardised too. Missing is what is empty "
        f"or `?`.{zero} If a column `num` says the truth, above 0 is ill."
    ]


def _scale(about: Mapping[str, Any]) -> list[str]:
    """Return the means and deviations of the targets, if the model predicts numbers."""
    if about["scale"] is None:
        return []
    means, deviations = ([f"{value:.6g}" for value in values] for values in about["scale"])
    return [f"- Mean: {', '.join(means)}. Deviation: {', '.join(deviations)}."]


def _command(about: Mapping[str, Any], file: Path) -> str:
    if file.suffix == ".pt2":  # `orchard predict` does not load it, since it may hold pickles
        return f"outputs = torch.export.load({file.name!r}).module()(samples)"
    own = f" --model {shlex.quote(about['model'])}" if file.suffix == ".safetensors" and ":" in about["model"] else ""
    if about["preparation"]:
        return f"orchard predict {shlex.quote(file.name)} rows.csv{own}"
    if about["images"] is not None:
        return f"orchard predict {shlex.quote(file.name)} scans...{own}"
    channels, *sides = about["shape"]
    images = channels in (1, 3) and len(sides) == 2 and sides[0] == sides[1]
    samples = "images..." if images else "samples.npz"
    return f"orchard predict {shlex.quote(file.name)} {samples}{own}"
