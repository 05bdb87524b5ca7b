"""One client's personalised model, taken out of a run to be used: as safetensors, PyTorch's .pt2, or ONNX.

Each file says itself what it needs to be used (classes, shape of its input, how images are prepared), and has a model
card beside it for people.
"""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save
from torch import Tensor, nn

from orchard import __version__
from orchard.card import model_card
from orchard.checkpoints import write_durably
from orchard.engines.local import Model
from orchard.errors import Refusal
from orchard.folder import RunFolder
from orchard.results import Result

Choice = Literal["best", "last", "validation"]
"""Which round's model: of the best mean test accuracy, the last, or of the best mean validation accuracy."""

ABOUT = "orchard"
"""The name under which a file says what it is."""


def export_model(run: Path, client: str, to: Path, choice: Choice = "validation") -> tuple[str, Path]:
    """Write a client's personalised model and its card; return the client's name and where the card is."""
    folder = RunFolder(run)
    result = folder.result()
    index, round = _client_index(client, result), _chosen_round(folder, result, choice)
    return result.holdings.clients[index], write_model(
        result, index, folder.models.read(round, index), (round, choice), to
    )


def write_model(result: Result, client: int, model: Model, chosen: tuple[int, Choice], to: Path) -> Path:
    """Write a client's model, of a round chosen by some rule, and its card; return where the card is."""
    packed = FORMATS.get(to.suffix)
    if packed is None:
        raise Refusal(f"--to {to}: models are written as {', '.join(FORMATS)}")
    module = result.module(*model).cpu()
    for p in module.parameters():
        p.data = p.data.contiguous()  # training may have laid convolutions out with channels last
    dtype = next(p.dtype for p in module.parameters())
    about = _about(result, client, *chosen, str(dtype).removeprefix("torch."))
    example = torch.zeros(2, *result.federation.shape, dtype=dtype)  # a batch of one would be taken for the only size
    content = packed(module, example, about)
    card = to.with_name(f"{to.name}.md")
    try:
        write_durably(to, content)
        write_durably(card, model_card(result, client, about, to))
    except OSError as error:
        raise Refusal(f"{to}: cannot be written: {error.strerror or error}") from None
    return card


def _about(result: Result, client: int, round: int, choice: Choice, dtype: str) -> dict[str, Any]:
    """Return what a file says of the model in it."""
    experiment = result.experiment
    return {
        "orchard": __version__,
        "model": experiment.model_dump(mode="json")["model"],
        "dtype": dtype,
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
        raise Refusal(f"{folder.path}: the models of round {chosen} are not kept yet; {folder.way_on()}")
    return chosen


# --- Formats ---


def all_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's state with the buffers that it does not call a part of it: without them it computes else."""
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
        raise Refusal(f".onnx: needs {missing.name}; install it with: pip install 'orchard[onnx]'") from None
    with _tracing(".onnx"):
        program = torch.onnx.export(
            module,
            (example,),
            dynamo=True,
            dynamic_shapes=_ANY_BATCH,
            input_names=["samples"],
            output_names=["scores"],
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
    """Return samples to try an exported model on: others than it was traced with, and another number of them."""
    return torch.randn(5, *example.shape[1:], generator=torch.Generator().manual_seed(0)).to(example.dtype)


def _compare(given: Tensor, module: nn.Module, example: Tensor) -> None:
    with torch.inference_mode():
        torch.testing.assert_close(given, module(_others(example)), rtol=1e-3, atol=1e-4)


FORMATS: dict[str, Callable[[nn.Module, Tensor, dict[str, Any]], bytes]] = {
    ".safetensors": _as_safetensors,
    ".pt2": _as_pt2,
    ".onnx": _as_onnx,
}

_ANY_BATCH = ({0: torch.export.Dim.AUTO},)


@contextmanager
def _tracing(suffix: str) -> Iterator[None]:
    """Keep the exporters' words for their developers away from users, and say what they could not do."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except Exception as error:  # whatever there is in the network that cannot be traced
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise Refusal(f"{suffix}: the network cannot be written so: {reason}; try .safetensors") from error
        finally:
            logger.setLevel(level)
