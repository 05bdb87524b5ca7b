"""One client's personalised model, taken out of a run to be used: as safetensors, PyTorch's .pt2, or ONNX.

Each file says itself what it needs to be used (classes, shape of its input, how images are prepared), and has a model
card beside it for people.
"""

import json
import logging
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from orchard import __version__
from orchard.card import model_card
from orchard.checkpoints import write_durably, write_tensors
from orchard.errors import Refusal
from orchard.folder import RunFolder
from orchard.results import Result

Choice = Literal["best", "last", "validation"]
"""Which round's model: of the best mean test accuracy, the last, or of the best mean validation accuracy."""

ABOUT = "orchard"
"""The name under which a file says what it is."""


def export_model(run: Path, client: str, to: Path, choice: Choice = "validation") -> Path:
    """Write a client's personalised model and its card; return where the card is."""
    write = WRITERS.get(to.suffix)
    if write is None:
        raise Refusal(f"--to {to}: models are written as {', '.join(WRITERS)}")
    folder = RunFolder(run)
    result = folder.result()
    index, round = _client_index(client, result), _chosen_round(folder, result, choice)
    module = result.module(*folder.models.read(round, index))
    for p in module.parameters():
        p.data = p.data.contiguous()  # training may have laid convolutions out with channels last
    about = describe(result, index, round, choice)
    temporary = to.with_name(f".{to.stem}.new{to.suffix}")
    try:
        write(module, result.federation.shape, about, temporary)
        temporary.replace(to)
        card = to.with_name(f"{to.name}.md")
        write_durably(card, model_card(result, index, about, to))
    except OSError as error:
        raise Refusal(f"{to}: cannot be written: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)
    return card


def describe(result: Result, client: int, round: int, choice: Choice) -> dict[str, Any]:
    """Return what a file says of the model in it."""
    experiment = result.experiment
    return {
        "orchard": __version__,
        "model": experiment.model_dump(mode="json")["model"],
        "shape": result.holdings.shape,
        "classes": result.holdings.classes,
        "client": result.holdings.clients[client],
        "method": experiment.method.name,
        "dataset": Path(experiment.dataset).name,
        "round": round,
        "chosen": choice,
    }


def _client_index(client: str, result: Result) -> int:
    """Find a client by its number or its name."""
    names = result.holdings.clients
    if client in names:
        return names.index(client)
    if client.isdecimal() and int(client) < len(names):
        return int(client)
    raise Refusal(f"--client {client}: no such client; there are 0 to {len(names) - 1}: {', '.join(names)}")


def _chosen_round(folder: RunFolder, result: Result, choice: Choice) -> int:
    kept = sorted(folder.models.rounds())
    if not kept or not result.measured_rounds():
        raise Refusal(f"{folder.path}: keeps no models yet; they come with the first checkpoint")
    figures = result.figures()
    chosen = {"best": figures.best, "last": figures.last, "validation": figures.validation_selected}[choice].round
    if chosen not in kept:
        raise Refusal(
            f"{folder.path}: the models of round {chosen} are not kept yet; "
            f"finish the run with: orchard resume {folder.path}"
        )
    return chosen


# --- Formats ---


def _write_safetensors(module: nn.Module, shape: tuple[int, ...], about: dict[str, Any], file: Path) -> None:
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in module.state_dict().items()}
    write_tensors(file, tensors, {ABOUT: json.dumps(about)})


def _write_pt2(module: nn.Module, shape: tuple[int, ...], about: dict[str, Any], file: Path) -> None:
    with _quiet():
        program = torch.export.export(module.cpu(), (_two(shape),), dynamic_shapes=_ANY_BATCH)
        torch.export.save(program, file, extra_files={f"{ABOUT}.json": json.dumps(about)})


def _write_onnx(module: nn.Module, shape: tuple[int, ...], about: dict[str, Any], file: Path) -> None:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as missing:
        raise Refusal(f"{file.suffix}: needs {missing.name}; install it with: pip install 'orchard[onnx]'") from None
    with _quiet():
        program = torch.onnx.export(
            module.cpu(),
            (_two(shape),),
            dynamo=True,
            dynamic_shapes=_ANY_BATCH,
            input_names=["samples"],
            output_names=["scores"],
            verbose=False,
        )
    assert program is not None  # noqa: S101 (only the old exporter returns nothing)
    program.model.metadata_props[ABOUT] = json.dumps(about)
    program.save(file)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    x = torch.randn(5, *shape, generator=torch.Generator().manual_seed(0))
    (given,) = session.run(None, {"samples": x.numpy()})
    with torch.inference_mode():
        torch.testing.assert_close(torch.from_numpy(given), module(x), rtol=1e-3, atol=1e-4)


WRITERS: dict[str, Callable[[nn.Module, tuple[int, ...], dict[str, Any], Path], None]] = {
    ".safetensors": _write_safetensors,
    ".pt2": _write_pt2,
    ".onnx": _write_onnx,
}

_ANY_BATCH = ({0: torch.export.Dim.AUTO},)


def _two(shape: tuple[int, ...]) -> Tensor:
    """Return an example of a batch; one of a single sample would be taken for the only size there is."""
    return torch.zeros(2, *shape)


@contextmanager
def _quiet() -> Any:
    """Keep the exporters' words for their developers away from users."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.setLevel(level)
