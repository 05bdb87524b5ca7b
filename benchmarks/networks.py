"""The networks that steps are measured on, written the ordinary way."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class PlainCNN(nn.Module):
    """The paper's network: ReLU before pooling, as everybody writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 20, 5), nn.Conv2d(20, 50, 5)
        self.hidden, self.output = nn.Linear(800, 500), nn.Linear(500, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        scores: Tensor = self.output(functional.relu(self.hidden(x.flatten(1))))
        return scores


class Branches(nn.Module):
    """The published formulation of one layer: N of them side by side, their outputs mixed by p."""

    def __init__(self, layers: Sequence[nn.Module], p: Tensor) -> None:
        super().__init__()
        self.layers, self.p = nn.ModuleList(layers), p

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.p[0] * self.layers[0](x)
        for j in range(1, len(self.layers)):
            mixed = mixed + self.p[j] * self.layers[j](x)
        return mixed


def branched_cnn(p: Tensor) -> tuple[nn.Module, list[nn.Parameter]]:
    """Return the CNN with N branches at every layer, and the parameters of the first client's own branch."""
    models = [PlainCNN() for _ in p]
    for other in models[1:]:
        other.requires_grad_(False)
    own = list(models[0].parameters())
    for name, _ in list(models[0].named_children()):
        branches = Branches([model.get_submodule(name) for model in models], p)
        setattr(models[0], name, branches)
    return models[0], own


class Block(nn.Module):
    """Two 3×3 convolutions with BatchNorm and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.around: Callable[[Tensor], Tensor] = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.around = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.around(x))


class ResNet18(nn.Module):
    """ResNet-18 as it is, 11 million parameters, on small grey images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        sizes = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)]
        self.blocks = nn.Sequential(*(Block(*size) for size in [*sizes, (256, 512, 2), (512, 512, 1)]))
        self.output = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(functional.max_pool2d(self.stem(x), 3, 2, padding=1))
        scores: Tensor = self.output(x.mean((2, 3)))
        return scores


class OrdinaryResNet18(ResNet18):
    """The same in the ordinary order."""

    channels_last = False
