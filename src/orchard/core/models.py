"""The networks: the paper's CNN, an MLP, a U-Net, and any factory of your own.

A factory receives `shape` (of one sample, e.g. ``(1, 28, 28)``) and `classes` if its signature has them, and returns
an `nn.Module` that maps a batch of samples to one output per class: scores, not probabilities. In regression `classes`
is the number of targets; in segmentation there is an output for every class and pixel.
"""

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from orchard.core.vector import Network, Part, check_vectorisable, lay_out_channels_last
from orchard.errors import UserError
from orchard.tasks.task import Task
from orchard.text import nearest

_global_generator = threading.RLock()

AXES = ("depth", "height", "width")
CONVOLUTIONS: tuple[Any, ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
POOLINGS: tuple[Callable[..., Tensor], ...] = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)
"""For signals, images and volumes."""
NORMALISATION = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    *(nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
)


def _pixels_after_convolutions(shape: tuple[int, ...], dimensions: Sequence[int]) -> int:
    """Return the pixels that two convolutions of side 5, each with pooling by 2, leave of a sample."""
    given = "×".join(map(str, shape))
    if len(shape) - 1 not in dimensions:
        expected = " or ".join("channels×" + "×".join(AXES[3 - d :]) for d in dimensions)
        raise ValueError(f"it takes samples of {expected}, not {given}; try mlp")
    sides = [((side - 4) // 2 - 4) // 2 for side in shape[1:]]
    if min(sides) < 1:
        raise ValueError(f"it needs at least 16 pixels a side, not {given}; try mlp")
    return int(torch.Size(sides).numel())


class CNN(nn.Module):
    """The paper's network: two 5×5 convolutions (20, 50), 500 hidden units."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        pixels, channels = _pixels_after_convolutions(shape, (2,)), shape[0]
        self.conv1 = nn.Conv2d(channels, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.hidden = nn.Linear(50 * pixels, 500)
        self.output = nn.Linear(500, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Score a batch of images."""
        # ReLU after pooling gives the same values and gradients as before it, on a quarter of the pixels.
        x = functional.relu(functional.max_pool2d(self.conv1(x), 2))
        x = functional.relu(functional.max_pool2d(self.conv2(x), 2))
        x = functional.relu(self.hidden(x.flatten(1)))
        scores: Tensor = self.output(x)
        return scores


class SmallCNN(nn.Module):
    """A network for small federations: two convolutions of side 5 (8, 16) and a linear layer.

    It takes images, signals (channels×length) and volumes (channels×depth×height×width).
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        pixels, kind = _pixels_after_convolutions(shape, (1, 2, 3)), len(shape) - 2
        self.pool = POOLINGS[kind]
        self.conv1 = CONVOLUTIONS[kind](shape[0], 8, 5)
        self.conv2 = CONVOLUTIONS[kind](8, 16, 5)
        self.output = nn.Linear(16 * pixels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Score a batch of samples."""
        x = functional.relu(self.pool(self.conv1(x), 2))
        x = functional.relu(self.pool(self.conv2(x), 2))
        scores: Tensor = self.output(x.flatten(1))
        return scores


class UNet(nn.Module):
    """A small U-Net (Ronneberger et al., https://arxiv.org/abs/1505.04597) for images and volumes of any size.

    Three levels of 16, 32 and 64 channels, two convolutions each, with group normalisation; an output for every class
    and pixel.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        if len(shape) not in (3, 4) or min(shape[1:]) < 4:
            raise ValueError("it takes images or volumes of at least 4 pixels a side")
        kind = len(shape) - 2
        self.pool = POOLINGS[kind]
        self.down1, self.down2 = (_two_convolutions(kind, a, b) for a, b in ((shape[0], 16), (16, 32)))
        self.bottom = _two_convolutions(kind, 32, 64)
        self.up2, self.up1 = (_two_convolutions(kind, a, b) for a, b in ((64 + 32, 32), (32 + 16, 16)))
        self.output = CONVOLUTIONS[kind](16, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Score every pixel of a batch."""
        fine = self.down1(x)
        middle = self.down2(self.pool(fine, 2))
        coarse = self.bottom(self.pool(middle, 2))
        middle = self.up2(torch.cat([_enlarged(coarse, middle), middle], dim=1))
        fine = self.up1(torch.cat([_enlarged(middle, fine), fine], dim=1))
        scores: Tensor = self.output(fine)
        return scores


def _two_convolutions(kind: int, before: int, after: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (before, after):
        layers += [CONVOLUTIONS[kind](channels, after, 3, padding=1), nn.GroupNorm(8, after), nn.ReLU()]
    return nn.Sequential(*layers)


def _enlarged(x: Tensor, like: Tensor) -> Tensor:
    return functional.interpolate(x, size=like.shape[2:], mode="nearest")


class MLP(nn.Module):
    """One hidden layer of 200 units, for samples of any shape."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(int(torch.Size(shape).numel()), 200)
        self.output = nn.Linear(200, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Score a batch of samples."""
        scores: Tensor = self.output(functional.relu(self.hidden(x.flatten(1))))
        return scores


class Logistic(nn.Module):
    """Logistic regression: one linear layer, for samples of any shape."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.output = nn.Linear(int(torch.Size(shape).numel()), classes)

    def forward(self, x: Tensor) -> Tensor:
        """Score a batch of samples."""
        scores: Tensor = self.output(x.flatten(1))
        return scores


MODELS: dict[str, Callable[..., nn.Module]] = {
    "cnn": CNN,
    "small-cnn": SmallCNN,
    "mlp": MLP,
    "logistic": Logistic,
    "unet": UNet,
}


def find_factory(model: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return the factory that a name, a ``package.module:factory`` or a callable stands for."""
    if not isinstance(model, str):
        return model
    if model in MODELS:
        return MODELS[model]
    module, colon, attribute = model.partition(":")
    if not colon:
        raise UserError(
            f"model = {model!r}: unknown model; {nearest(model, list(MODELS))} "
            '(for your own write "package.module:factory")'
        )
    try:
        factory = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise UserError(f"model = {model!r}: cannot be imported: {error}; run this where it is found") from error
    except Exception as error:  # importing runs somebody else's code, which may raise anything
        raise UserError(f"model = {model!r}: cannot be imported: {error}") from error
    if not callable(factory):
        raise UserError(f"model = {model!r}: is not callable")
    return factory  # type: ignore[no-any-return]


def build(model: str | Callable[..., Any], shape: tuple[int, ...], task: Task, seed: int) -> nn.Module:
    """Build a model whose initial values depend on the seed alone, and try it on a batch of zeros.

    Convolutions run faster with channels last, but for large ones on small batches: PyTorch turns their gradients
    around element by element. A model with ``channels_last = False``, or one that fails with channels last
    (``x.view(n, -1)`` after a convolution needs the ordinary order), keeps the ordinary order.
    """
    factory = find_factory(model)
    try:
        with seeded_layers(seed):
            module = _call(factory, shape, len(task.classes))
            _try_out(module, shape, task.output_shape(shape))
            if getattr(module, "channels_last", True):
                _lay_out(module, shape, task)
    except Exception as error:  # somebody else's code may raise anything
        raise UserError(f"model = {named(model)!r}: does not fit samples of shape {shape}: {error}") from error
    return module


def _lay_out(module: nn.Module, shape: tuple[int, ...], task: Task) -> None:
    """Lay out convolutions with channels last, if the model works with that."""
    ordinary = [p.data for p in module.parameters()]
    lay_out_channels_last(module)
    try:
        _try_out(module, shape, task.output_shape(shape))
    except RuntimeError:
        for p, data in zip(module.parameters(), ordinary, strict=True):
            p.data = data


def _call(factory: Callable[..., Any], shape: tuple[int, ...], classes: int) -> nn.Module:
    parameters = inspect.signature(factory).parameters
    module = factory(**{k: v for k, v in {"shape": shape, "classes": classes}.items() if k in parameters})
    if not isinstance(module, nn.Module):
        raise TypeError(f"the factory returned {type(module).__name__}, not an nn.Module")
    return module


def _try_out(module: nn.Module, shape: tuple[int, ...], output_shape: tuple[int, ...]) -> None:
    """Run one batch forward in evaluation and in training mode; this also initialises lazy layers."""
    for training in (False, True):
        outputs = _forward_zeros(module.train(training), 2, shape)
        if not isinstance(outputs, Tensor) or outputs.shape != (2, *output_shape):
            got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ValueError(f"a batch of 2 should give outputs of shape {(2, *output_shape)}, gave {got}")
    check_vectorisable(module)


def _forward_zeros(module: nn.Module, samples: int, shape: tuple[int, ...]) -> Any:
    """Run zeros through a module, and restore the buffers that training mode changes."""
    first = next((p for p in module.parameters() if p.requires_grad), torch.empty(0))
    with torch.no_grad():
        before = {name: buffer.clone() for name, buffer in module.named_buffers()} if module.training else {}
        scores = module(torch.zeros(samples, *shape, dtype=first.dtype, device=first.device))
        for name, buffer in module.named_buffers():
            if name in before:
                buffer.copy_(before[name])
    return scores


def needs_two_samples(network: Network, shape: tuple[int, ...]) -> bool:
    """Tell whether training fails on a batch of one, as BatchNorm does on samples without pixels."""
    try:
        with seeded_layers(0):
            _forward_zeros(network.module.train(), 1, shape)
    except ValueError:
        return True
    return False


def draws_randomly(network: Network, shape: tuple[int, ...]) -> bool:
    """Tell whether the model draws random numbers (dropout and the like)."""
    with seeded_layers(0):
        before = _generator_state(network.vector.device)
        for training in (True, False):
            _forward_zeros(network.module.train(training), 2, shape)
        return not torch.equal(before, _generator_state(network.vector.device))


def normalisation(network: Network) -> Part:
    """Return the parameters of a model's normalisation layers."""
    layers = [layer for layer in network.module.modules() if isinstance(layer, NORMALISATION)]
    theirs = {id(p) for layer in layers for p in layer.parameters()}
    parameters = network.module.named_parameters()
    return network.layout.part([name for name, p in parameters if id(p) in theirs and p.requires_grad])


def _generator_state(device: torch.device) -> Tensor:
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.mps.get_rng_state() if device.type == "mps" else torch.default_generator.get_state()


@contextmanager
def seeded_layers(seed: int) -> Iterator[None]:
    """Seed what PyTorch's layers draw (initial values, dropout), and restore the global generator afterwards.

    Layers use the process-wide generator, so only one thread at a time may be in here.
    """
    with _global_generator, torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


@contextmanager
def repeated_draws() -> Iterator[None]:
    """Restore the generator afterwards, so that what is drawn inside is drawn once more outside."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield


def named(model: str | Callable[..., Any]) -> str:
    """Return what a model is called in messages."""
    return model if isinstance(model, str) else getattr(model, "__qualname__", repr(model))
