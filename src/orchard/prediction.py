"""Classify images or arrays with an exported model.

Samples are prepared and run exactly as in training's evaluation, so on a client's test data the accuracy is the run's
own figure. A file from elsewhere is only ever data here: a `.safetensors` runs through a network that Orchard or the
user names, never one that the file does, and a `.pt2`, which may hold pickles, is not loaded.
"""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TextIO

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from orchard.checkpoints import read_tensors
from orchard.data.folders import read_images
from orchard.data.readers import read_npz
from orchard.data.samples import as_inputs, checked_labels
from orchard.errors import Refusal
from orchard.export import ABOUT, all_tensors
from orchard.layout import EXTENSIONS, readable
from orchard.models import MODELS, build
from orchard.training import EVALUATION_BATCH

ARRAYS = (("x", "y"), ("x_test", "y_test"), ("test_images", "test_labels"), ("images", "labels"))
"""What the samples and their labels, which may be missing, are called in an `.npz`; the first that is there."""


@dataclass(frozen=True)
class Classifier:
    """An exported model, ready to use."""

    classes: list[str]
    shape: tuple[int, ...]
    scores: Callable[[Tensor], Tensor]
    """Takes a batch of prepared samples, gives a score for each class."""


class About(BaseModel):
    """What a file must say of itself; it comes from outside, so nothing else is believed."""

    model: str
    shape: list[Annotated[int, Field(gt=0)]] = Field(min_length=1)
    classes: list[str] = Field(min_length=1)


@dataclass(frozen=True)
class Batch:
    """Some samples under their names, and their labels where these are known."""

    names: list[str]
    x: Tensor
    labels: NDArray[np.int64] | None = None


def load_classifier(file: Path, model: str | None = None) -> Classifier:
    """Load an exported model; `model` names the factory of a network of one's own."""
    if not file.is_file():
        raise Refusal(f"{file}: no such file")
    if file.suffix == ".safetensors":
        return _from_safetensors(file, model)
    if file.suffix == ".onnx":
        return _from_onnx(file)
    if file.suffix == ".pt2":
        raise Refusal(f"{file}: may hold pickles, which are never loaded here; export a .safetensors or .onnx instead")
    raise Refusal(f"{file}: expected a model exported as .safetensors or .onnx")


def _from_safetensors(file: Path, model: str | None) -> Classifier:
    try:
        with safe_open(file, "pt") as opened:
            about = _about((opened.metadata() or {}).get(ABOUT), file)
        tensors = read_tensors(file)
    except (SafetensorError, OSError) as error:
        raise Refusal(f"{file}: cannot be read: {error}") from None
    if model is None and about["model"] not in MODELS:
        raise Refusal(
            f"{file}: its network is {about['model']!r}; since a file may not choose what code runs, "
            f"name it yourself: --model {about['model']}"
        )
    name, shape = model or about["model"], tuple(about["shape"])
    try:
        if name in MODELS:
            _refuse_other_sizes(MODELS[name], shape, len(about["classes"]), tensors)
        module = build(name, shape, len(about["classes"]), seed=0).eval()
        beside = {key: buffer for key, buffer in all_tensors(module).items() if key not in module.state_dict()}
        module.load_state_dict({key: tensor for key, tensor in tensors.items() if key not in beside})
        for key, buffer in beside.items():
            buffer.copy_(tensors[key])
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        raise Refusal(f"{file}: does not fit the network {name!r}: {error}") from None
    dtype = next(p.dtype for p in module.parameters())
    return Classifier(about["classes"], shape, torch.inference_mode()(lambda x: module(x.to(dtype))))


def _refuse_other_sizes(
    factory: Callable[..., nn.Module], shape: tuple[int, ...], classes: int, tensors: Mapping[str, Tensor]
) -> None:
    """Refuse a file whose tensors are not the network's before that is built: a file may claim any size."""
    with torch.device("meta"):
        expected = {name: tensor.shape for name, tensor in factory(shape=shape, classes=classes).state_dict().items()}
    if {name: tensor.shape for name, tensor in tensors.items()} != expected:
        raise ValueError("the names or shapes of its tensors are others")


def _from_onnx(file: Path) -> Classifier:
    try:
        import onnxruntime
    except ImportError:
        raise Refusal("reading .onnx needs onnxruntime; install it with: pip install 'orchard[onnx]'") from None
    try:
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common class
        raise Refusal(f"{file}: cannot be read: {error}") from None
    about = _about(session.get_modelmeta().custom_metadata_map.get(ABOUT), file)
    shape, taken = tuple(about["shape"]), session.get_inputs()[0]
    dtype = torch.float64 if taken.type == "tensor(double)" else torch.float32

    def scores(batch: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {taken.name: batch.to(dtype).numpy()})[0])

    try:
        fits = scores(torch.zeros(2, *shape)).shape == (2, len(about["classes"]))
    except Exception:
        fits = False
    if not fits:
        raise Refusal(f"{file}: does not take samples or know classes as it says of itself")
    return Classifier(about["classes"], shape, scores)


def _about(text: str | None, file: Path) -> dict[str, Any]:
    try:
        about = About.model_validate_json(text or "")
    except ValidationError:
        raise Refusal(f"{file}: was not exported by Orchard: it does not say what its classes are") from None
    return about.model_dump()


# --- Samples ---


def batches(paths: Sequence[Path], classifier: Classifier) -> Iterator[Batch]:
    """Yield prepared samples from an `.npz`, or from image files and folders of them, some at a time."""
    files = [file for path in paths for file in _files(path)]
    for file in files:
        if file.suffix.lower() == ".npz":
            yield from _from_npz(file, classifier)
    channels, *sides = classifier.shape if len(classifier.shape) == 3 else (0, 0)
    images = [file for file in files if file.suffix.lower() != ".npz"]
    if images and (channels not in (1, 3) or len(set(sides)) != 1):
        raise Refusal(f"{images[0]}: this model takes samples of shape {classifier.shape}; give them in an .npz")
    for start in range(0, len(images), EVALUATION_BATCH):
        some = images[start : start + EVALUATION_BATCH]
        pixels = read_images(some, sides[0], channels)
        yield Batch([readable(str(file)) for file in some], as_inputs(pixels, sides[0], "images"))


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.suffix.lower() in EXTENSIONS)
        if not found:
            raise Refusal(f"{path}: holds no image")
        return found
    if not path.is_file():
        raise Refusal(f"{path}: no such file")
    return [path]


def _from_npz(file: Path, classifier: Classifier) -> Iterator[Batch]:
    arrays = read_npz(file)
    found = next((pair for pair in ARRAYS if pair[0] in arrays), None)
    if found is None:
        known = ", ".join(f"'{x}'" for x, _ in ARRAYS)
        raise Refusal(f"{file}: expected samples as one of {known}; it holds {sorted(arrays)}")
    x = as_inputs(arrays[found[0]], classifier.shape[-1], f"{file}: {found[0]}")
    if tuple(x.shape[1:]) != classifier.shape:
        raise Refusal(f"{file}: {found[0]}: samples of shape {tuple(x.shape[1:])}; the model takes {classifier.shape}")
    labels = None
    if found[1] in arrays:
        place = f"{file}: {found[1]}"
        labels = checked_labels(arrays[found[1]], len(x), f"{file}: {found[0]}", place, len(classifier.classes))
    for start in range(0, len(x), EVALUATION_BATCH):
        part = slice(start, start + EVALUATION_BATCH)
        names = [f"{readable(str(file))}:{k}" for k in range(start, min(part.stop, len(x)))]
        yield Batch(names, x[part], None if labels is None else labels[part])


# --- Classifying ---


def classify(classifier: Classifier, samples: Iterator[Batch], to: TextIO) -> tuple[int, float | None]:
    """Write a line of CSV for each sample; return how many there were, and the accuracy where labels are known."""
    writer = csv.writer(to, lineterminator="\n")
    writer.writerow(["sample", "predicted", "label", *(f"p({name})" for name in classifier.classes)])
    count = labelled = right = 0
    for batch in samples:
        scores = classifier.scores(batch.x)
        predicted = scores.argmax(1).tolist()
        labels = [None] * len(predicted) if batch.labels is None else batch.labels.tolist()
        for name, k, label, row in zip(batch.names, predicted, labels, scores.softmax(1).tolist(), strict=True):
            known = "" if label is None else classifier.classes[label]
            writer.writerow([name, classifier.classes[k], known, *(f"{p:.6g}" for p in row)])
            labelled += label is not None
            right += label == k
        count += len(predicted)
    return count, right / labelled if labelled else None
