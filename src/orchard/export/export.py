"""Export one client's personalised model as safetensors, PyTorch's .pt2, or ONNX.

Each file holds the metadata to use it (classes, shape and type of its input), and comes with a model card.
"""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from orchard.data.catalogue import CATALOGUE
from orchard.data.division import federated_data
from orchard.data.download import is_at_hand
from orchard.data.samples import Samples
from orchard.errors import UserError
from orchard.export.by_class import has_classes
from orchard.export.card import model_card
from orchard.export.trained_model import Choice, TrainedModel
from orchard.runs.folder import RunFolder
from orchard.runs.joining import Joined
from orchard.runs.result import Result
from orchard.whole import replacing

ABOUT = "orchard"
"""The key of Orchard's metadata in an exported file."""


def export_model(run: Path, client: str, to: Path, choice: Choice = "validation") -> tuple[str, Path]:
    """Write a client's personalised model and its card; return the client's name and the card's path."""
    folder = RunFolder(run)
    result = folder.result()
    index, round = _client_index(client, result), _chosen_round(folder, result, choice)
    held = result.distribution
    trained = TrainedModel(
        federation=result.federation,
        client=held.clients[index],
        clients=len(held.clients),
        sizes={part: sizes[index] for part, sizes in held.samples.items()},
        counts={part: rows[index] for part, rows in held.counts.items()},
        scores=getattr(result.rounds[round], result.experiment.method.moment)[index],
        round=round,
        choice=choice,
        model=folder.models.read(round, index),
        preparation=held.preparations[index] if held.preparations else None,
        test=_test_samples(folder, index) if has_classes(result.task) else None,
    )
    return trained.client, write_model(trained, to)


def export_joined(joined: Joined, to: Path) -> Path:
    """Write the model of a newcomer to a finished run, and its card; return the card's path."""
    data, private = joined.data, joined.federation.experiment.privacy is not None
    preparations = data.preparations()
    trained = TrainedModel(
        federation=joined.federation,
        client=joined.client.name,
        clients=joined.federation.clients,
        sizes={part: sizes[0] for part, sizes in data.sizes().items()},
        counts={part: rows[0] for part, rows in data.class_counts().items()},
        scores=joined.joined.scores,
        round=joined.joined.round,
        choice="last" if private else "joined",
        model=joined.joined.model,
        test=joined.client.test,
        told=not private,
        preparation=preparations[0] if preparations else None,
    )
    return write_model(trained, to)


def write_model(trained: TrainedModel, to: Path) -> Path:
    """Write a model and its card; return the card's path."""
    packed = packer_for(to)
    module = trained.module()
    for p in module.parameters():
        p.data = p.data.contiguous()  # training may have stored convolutions with channels last
    about = trained.about()
    dtype = getattr(torch, about["dtype"])
    example = torch.zeros(2, *about["shape"], dtype=dtype)  # tracing would fix a batch size of one
    content = packed(module, example, about)
    card = to.with_name(f"{to.name}.md")
    try:
        with replacing(card) as described, replacing(to) as written:
            written.write_bytes(content)
            described.write_text(model_card(trained, about, to, content), "utf-8")
            card.unlink(missing_ok=True)  # there is never a new model beside an old card
    except OSError as error:
        raise UserError(f"{to}: cannot be written: {error.strerror or error}") from None
    return card


def _client_index(client: str, result: Result) -> int:
    """Return the index of a client, given by its number or its name."""
    names = result.distribution.clients
    if client in names:
        return names.index(client)
    if client.isdecimal() and int(client) < len(names):
        return int(client)
    raise UserError(f"--client {client}: no such client; there are 0 to {len(names) - 1}: {', '.join(names)}")


def _chosen_round(folder: RunFolder, result: Result, choice: Choice) -> int:
    kept = sorted(folder.models.rounds())
    if not kept or not result.evaluated_rounds():
        raise UserError(
            f"{folder.path}: keeps no models, which come with the first checkpoint; "
            "those of a run between sites stay there: orchard site export"
        )
    figures = result.figures()
    chosen = {"best": figures.best, "last": figures.last, "validation": figures.validation_selected}[choice].round
    if chosen not in kept:
        raise UserError(f"{folder.path}: the models of round {chosen + 1} are not kept yet; {folder.resume_hint()}")
    return chosen


def _test_samples(folder: RunFolder, client: int) -> Samples | None:
    """Return a client's test samples; None if the run's data are not here any more. Nothing is downloaded for it."""
    experiment, options = folder.definition()
    published = CATALOGUE.get(experiment.dataset)
    if experiment.dataset == "arrays" or (published and not is_at_hand(published, options.data_dir)):
        return None
    try:
        with warnings.catch_warnings(action="ignore"):  # the run has said them
            data = federated_data(experiment, options.data_dir)
    except UserError:
        return None
    same = data.fingerprint() == folder.read("environment.json").get("data")
    return data.clients[client].test if same else None


# --- Formats ---

Packer = Callable[[nn.Module, Tensor, dict[str, Any]], bytes]
"""Takes a module, an example of its input, and the metadata to store; returns the content of a file."""


def packer_for(to: Path) -> Packer:
    """Return what writes a model into a file of this name; raise if nothing does."""
    if to.suffix not in FORMATS:
        raise UserError(f"--to {to}: models are written as {', '.join(FORMATS)}")
    return FORMATS[to.suffix]


def all_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's state dict, and its non-persistent buffers."""
    return {**dict(module.named_buffers()), **module.state_dict()}


def _as_safetensors(module: nn.Module, example: Tensor, about: dict[str, Any]) -> bytes:
    tensors = {name: tensor.detach().contiguous().clone() for name, tensor in all_tensors(module).items()}
    return save(tensors, {ABOUT: json.dumps(about)})


def _as_pt2(module: nn.Module, example: Tensor, about: dict[str, Any]) -> bytes:
    content = io.BytesIO()
    with _tracing(".pt2"):
        program = torch.export.export(module, (example,), dynamic_shapes=_ANY_BATCH)
        _compare(program.module()(_others(example)), module, example)
        torch.export.save(program, content, extra_files={f"{ABOUT}.json": json.dumps(about)})
    return content.getvalue()


def _as_onnx(module: nn.Module, example: Tensor, about: dict[str, Any]) -> bytes:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as missing:
        raise UserError(f".onnx: needs {missing.name}; install it with: pip install 'orchard[onnx]'") from None
    with _tracing(".onnx"):
        program = torch.onnx.export(
            module,
            (example,),
            dynamo=True,
            dynamic_shapes=_ANY_BATCH,
            input_names=["samples"],
            output_names=["outputs"],
            verbose=False,
        )
        assert program is not None  # noqa: S101 (only the old exporter returns nothing)
        program.model.metadata_props[ABOUT] = json.dumps(about)
        content: bytes = program.model_proto.SerializeToString()
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        (given,) = session.run(None, {"samples": _others(example).numpy()})
        _compare(torch.from_numpy(given), module, example)
    return content


def _others(example: Tensor) -> Tensor:
    """Return samples to test an exported model on; values and batch size differ from those it was traced with."""
    return torch.randn(5, *example.shape[1:], generator=torch.Generator().manual_seed(0)).to(example.dtype)


def _compare(given: Tensor, module: nn.Module, example: Tensor) -> None:
    with torch.inference_mode():
        torch.testing.assert_close(given, module(_others(example)), rtol=1e-3, atol=1e-4)


FORMATS: dict[str, Packer] = {
    ".safetensors": _as_safetensors,
    ".pt2": _as_pt2,
    ".onnx": _as_onnx,
}

_ANY_BATCH = ({0: torch.export.Dim.AUTO},)


@contextmanager
def _tracing(suffix: str) -> Iterator[None]:
    """Silence the exporters, and turn their errors into one message."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except Exception as error:  # whatever in the network cannot be traced
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise UserError(f"{suffix}: the network cannot be written so: {reason}; try .safetensors") from error
        finally:
            logger.setLevel(level)
