"""Predict with an exported model, on images or arrays.

Samples are prepared and evaluated exactly as during training, so on a client's test data the measures are the run's
own figures. A file is treated as data, never as code: a `.safetensors` is loaded into a built-in network or one that
the user names, and a `.pt2`, which may hold pickles, is not loaded.
"""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, Self, TextIO

import torch
from pydantic import BaseModel, Field, ValidationError, model_validator
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from orchard.core.evaluation import evaluation_batch
from orchard.core.models import MODELS, build
from orchard.core.vector import check_vectorisable
from orchard.data.axes import Layout
from orchard.data.folders import images_below, is_ordinary
from orchard.data.heart import with_features
from orchard.data.image_folders import read_images, read_inputs
from orchard.data.medical.masks import stem, write_mask
from orchard.data.medical.scans import MedicalSettings, is_medical
from orchard.data.readers import read_npz
from orchard.data.samples import as_inputs, as_samples, decoded, image_inputs
from orchard.data.tables.datasets import target_values
from orchard.data.tables.reading import SUFFIXES, read_table
from orchard.data.tables.scaling import Preparation
from orchard.data.tables.settings import TableSettings
from orchard.errors import UserError
from orchard.export.export import ABOUT, all_tensors
from orchard.export.trained_model import FORMAT
from orchard.runs.files import Damaged, check_format, read_tensors
from orchard.tasks.classification import Classification
from orchard.tasks.registry import task_named
from orchard.tasks.task import Measures, Task
from orchard.text import no_formula, readable

ARRAYS = (("x", "y"), ("x_test", "y_test"), ("test_images", "test_labels"), ("images", "labels"))
"""Names of the samples and their optional labels in an `.npz`; the first pair whose samples are there is used."""


@dataclass(frozen=True)
class Predictor:
    """An exported model, ready to use."""

    task: Task
    shape: tuple[int, ...]
    outputs: Callable[[Tensor], Tensor]
    """Maps a batch of prepared samples to the network's outputs."""
    layout: Layout | None = None
    """What the axes of arrays are."""
    preparation: Preparation | None = None
    """How rows of a table become samples."""
    images: MedicalSettings | None = None
    """How DICOM and NIfTI files become samples."""

    @property
    def volumes(self) -> bool:
        """Whether samples are volumes in such files."""
        return self.images is not None and self.images.depth is not None

    def image_size(self, file: Path) -> int:
        """Return the side of the images; raise if the model takes anything else."""
        size, depth = self.shape[-1], [self.images.depth] if self.images and self.images.depth else []
        if self.shape not in [(channels, *depth, size, size) for channels in ((1,) if self.images else (1, 3))]:
            raise UserError(f"{file}: this model takes samples of shape {self.shape}; give them in an .npz")
        return size


class Versioned(BaseModel):
    """The format of a file's metadata; format 1 may leave it out."""

    format: int = 1


class About(Versioned):
    """The metadata that an exported file must have; validated, because the file is not trusted."""

    model: str
    shape: list[Annotated[int, Field(gt=0)]] = Field(min_length=1)
    layout: Layout | None = None
    task: Literal["classification", "multilabel", "regression", "segmentation"] = "classification"
    classes: list[str] = Field(min_length=1)
    scale: list[list[float]] | None = None
    preparation: Preparation | None = None
    images: MedicalSettings | None = None

    @model_validator(mode="after")
    def _check_scale(self) -> Self:
        """Raise unless a regression, and nothing else, has a mean and a deviation for each target."""
        sizes = [len(values) for values in self.scale or []]
        if sizes != ([len(self.classes)] * 2 if self.task == "regression" else []):
            raise ValueError("scale: expected the means and deviations of a regression's targets")
        return self

    def predicted(self) -> Task:
        """Return the task."""
        return task_named(self.task, self.classes, self.scale)


@dataclass(frozen=True)
class Batch:
    """Samples with their names, and their targets if known."""

    names: list[str]
    x: Tensor
    y: Tensor | None = None
    files: Sequence[Path] = ()
    """The images, if each sample is one."""


def load_predictor(file: Path, model: str | None = None) -> Predictor:
    """Load an exported model; `model` names the factory of a network of your own."""
    if not file.is_file():
        raise UserError(f"{file}: no such file")
    if file.suffix == ".safetensors":
        return _from_safetensors(file, model)
    if file.suffix == ".onnx":
        return _from_onnx(file)
    if file.suffix == ".pt2":
        raise UserError(
            f"{file}: may hold pickles, which are never loaded here; export a .safetensors or .onnx instead"
        )
    raise UserError(f"{file}: expected a model exported as .safetensors or .onnx")


def _from_safetensors(file: Path, model: str | None) -> Predictor:
    try:
        with safe_open(file, "pt") as opened:
            about = _about((opened.metadata() or {}).get(ABOUT), file)
        tensors = read_tensors(file)
    except (SafetensorError, OSError, Damaged) as error:
        raise UserError(f"{file}: cannot be read: {error}") from None
    if model is None and about.model not in MODELS:
        raise UserError(
            f"{file}: its network is {about.model!r}; since a file may not choose what code runs, "
            f"name it yourself: --model {about.model}"
        )
    name, shape, task = model or about.model, tuple(about.shape), about.predicted()
    try:
        if name in MODELS:
            _check_shapes(MODELS[name], shape, len(task.classes), tensors)
        module = build(name, shape, task, seed=0).eval()
        beside = {key: buffer for key, buffer in all_tensors(module).items() if key not in module.state_dict()}
        module.load_state_dict({key: tensor for key, tensor in tensors.items() if key not in beside})
        for key, buffer in beside.items():
            buffer.copy_(tensors[key])
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{file}: does not fit the network {name!r}: {error}") from None
    dtype = next(iter(check_vectorisable(module).values())).dtype
    outputs = torch.inference_mode()(lambda x: module(x.to(dtype)))
    return Predictor(task, shape, outputs, about.layout, about.preparation, about.images)


def _check_shapes(
    factory: Callable[..., nn.Module], shape: tuple[int, ...], classes: int, tensors: Mapping[str, Tensor]
) -> None:
    """Raise if a file's tensors do not fit the network, before it is built: a file may claim any size."""
    with torch.device("meta"):
        expected = {name: tensor.shape for name, tensor in factory(shape=shape, classes=classes).state_dict().items()}
    if {name: tensor.shape for name, tensor in tensors.items()} != expected:
        raise ValueError("the names or shapes of its tensors are others")


def _from_onnx(file: Path) -> Predictor:
    try:
        import onnxruntime
    except ImportError:
        raise UserError("reading .onnx needs onnxruntime; install it with: pip install 'orchard[onnx]'") from None
    try:
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common class
        raise UserError(f"{file}: cannot be read: {error}") from None
    about = _about(session.get_modelmeta().custom_metadata_map.get(ABOUT), file)
    shape, task, taken = tuple(about.shape), about.predicted(), session.get_inputs()[0]
    dtype = torch.float64 if taken.type == "tensor(double)" else torch.float32

    def outputs(batch: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {taken.name: batch.to(dtype).numpy()})[0])

    try:
        fits = outputs(torch.zeros(2, *shape)).shape == (2, *task.output_shape(shape))
    except Exception:
        fits = False
    if not fits:
        raise UserError(f"{file}: does not take samples or know classes as it says of itself")
    return Predictor(task, shape, outputs, about.layout, about.preparation, about.images)


def _about(text: str | None, file: Path) -> About:
    try:
        found = Versioned.model_validate_json(text or "").format
        if found != 1:  # which does not name the task: it was classification
            check_format(found, FORMAT, "model", file)
        return About.model_validate_json(text or "")
    except ValidationError:
        raise UserError(f"{file}: was not exported by Orchard: it does not say what its classes are") from None


# --- Samples ---


def batches(paths: Sequence[Path], predictor: Predictor) -> Iterator[Batch]:
    """Yield prepared samples in batches, from `.npz` files, tables, images and folders of images."""
    files = [file for path in paths for file in _files(path, predictor)]
    arrays = {".npz": _from_npz, **dict.fromkeys(SUFFIXES, _from_table)}
    for file in files:
        if file.suffix.lower() in arrays:
            yield from arrays[file.suffix.lower()](file, predictor)
    images = [file for file in files if file.suffix.lower() not in arrays]
    at_once, labels = _at_once(predictor.shape), _folders_labels(images, predictor)
    for start in range(0, len(images), at_once):
        batch = _from_images(images[start : start + at_once], predictor)
        yield batch if labels is None else replace(batch, y=labels[start : start + at_once])


def _folders_labels(images: Sequence[Path], predictor: Predictor) -> Tensor | None:
    """Return the labels of images that are all in folders named after classes, as those to train with are."""
    names, classes = [file.resolve().parent.name for file in images], list(predictor.task.classes)
    if not isinstance(predictor.task, Classification) or not set(names) <= set(classes):
        return None
    return torch.tensor([classes.index(name) for name in names], dtype=torch.int64)


def _at_once(shape: Sequence[int]) -> int:
    return evaluation_batch(torch.Size((1, *shape)))


def _from_images(files: Sequence[Path], predictor: Predictor) -> Batch:
    """Prepare images as those were that the model was trained on."""
    size, medical = predictor.image_size(files[0]), predictor.images is not None
    for file in files:
        if is_ordinary(file) if medical else is_medical(file):
            kind = "DICOM or NIfTI files" if medical else "images that are not medical files"
            raise UserError(f"{file}: this model was trained on {kind}; give such")
    names = [readable(str(file)) for file in files]
    if predictor.images is not None:
        return Batch(names, read_inputs(files, size, predictor.images), files=files)
    return Batch(names, image_inputs(read_images(files, size, predictor.shape[0]), size), files=files)


def _files(path: Path, predictor: Predictor) -> list[Path]:
    if path.is_dir():
        found = images_below(path, predictor.volumes)
        if not found:
            raise UserError(f"{path}: holds no image")
        return found
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    return [path]


def _from_npz(file: Path, predictor: Predictor) -> Iterator[Batch]:
    arrays = read_npz(file)
    found = next((pair for pair in ARRAYS if pair[0] in arrays), None)
    if found is None:
        known = ", ".join(f"'{x}'" for x, _ in ARRAYS)
        raise UserError(f"{file}: expected samples as one of {known}; it holds {sorted(arrays)}")
    place, targets_place = (f"{file}: {name}" for name in found)
    if found[1] in arrays:
        (given, targets), size = (arrays[name] for name in found), predictor.shape[-1]
        kind = type(predictor.task)
        ((x, y),) = decoded([as_samples(given, targets, size, kind, place, targets_place, predictor.layout)], kind)
        predictor.task.check(y, targets_place)
    else:
        x, y = as_inputs(arrays[found[0]], predictor.shape[-1], place, predictor.layout), None
    if tuple(x.shape[1:]) != predictor.shape:
        given_shape, expected = ("×".join(map(str, shape)) for shape in (x.shape[1:], predictor.shape))
        raise UserError(f"{place}: a sample is {given_shape}, but the model takes {expected}")
    yield from _in_batches(file, x, y)


def _from_table(file: Path, predictor: Predictor) -> Iterator[Batch]:
    """Prepare the rows of a table as the model's client did; with the target columns, their truth is known."""
    if predictor.preparation is None:
        raise UserError(f"{file}: this model was not trained on a table; give it samples of shape {predictor.shape}")
    frame, prepared = read_table(file), predictor.preparation
    if prepared.table.heart:
        frame = with_features(frame, prepared.table.heart, str(file))
    x = torch.from_numpy(prepared.features(frame, str(file)))
    names = list(prepared.table.targets)
    y = target_values(frame, TableSettings(target=names), predictor.task, str(file)) if {*names} <= {*frame} else None
    yield from _in_batches(file, x, y)


def _in_batches(file: Path, x: Tensor, y: Tensor | None) -> Iterator[Batch]:
    at_once = _at_once(x.shape[1:])
    for start in range(0, len(x), at_once):
        part = slice(start, start + at_once)
        names = [f"{readable(str(file))}:{k}" for k in range(start, min(part.stop, len(x)))]
        yield Batch(names, x[part], None if y is None else y[part])


# --- Predicting ---


def predict(
    predictor: Predictor, samples: Iterator[Batch], to: TextIO, masks: Path | None = None
) -> tuple[int, Measures | None]:
    """Write a line of CSV per sample, and a mask per image if there is a folder for them.

    Return the number of samples, and the measures if their targets are known.
    """
    if masks and predictor.task.name != "segmentation":
        raise UserError(f"--masks {masks}: this model is for {predictor.task.name}, which makes none")
    writer, task = csv.writer(to, lineterminator="\n"), predictor.task
    writer.writerow(map(no_formula, ["sample", *task.headings()]))
    count, known, written = 0, list[tuple[Tensor, Tensor]](), set[str]()
    for batch in samples:
        outputs = predictor.outputs(batch.x)
        if masks:
            _write_masks(outputs, batch, predictor.images, masks, written)
        for name, row in zip(batch.names, task.predictions(outputs, batch.y), strict=True):
            writer.writerow(map(no_formula, [name, *row]))
        if batch.y is not None:
            known.append((outputs, batch.y))
        count += len(outputs)
    measured = task.measure(*(torch.cat(parts) for parts in zip(*known, strict=True))) if known else None
    return count, measured


def _write_masks(
    outputs: Tensor, batch: Batch, settings: MedicalSettings | None, folder: Path, written: set[str]
) -> None:
    """Write a mask for each image; raise if one is called as another, which it would replace."""
    if not batch.files:
        raise UserError(f"--masks {folder}: masks are written for images, not for {batch.names[0]}")
    for file, labels in zip(batch.files, outputs.argmax(1).numpy(), strict=True):
        if stem(file) in written:
            raise UserError(f"--masks {folder}: two images are called {readable(stem(file))}; give them one by one")
        if file.parent.resolve() == folder.resolve():
            raise UserError(f"--masks {folder}: holds the image {readable(file.name)}; choose another folder")
        written.add(stem(file))
        write_mask(labels, file, settings, folder)
