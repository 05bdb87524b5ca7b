"""Networks of MONAI as models of your own, on medical images from folders."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from monai.networks.nets import DenseNet, UNet
from torch import nn

import orchard
from orchard.export.export import export_model
from orchard.export.predict import batches, load_predictor
from scans import standard, write_nifti

DRAW = np.random.default_rng(0)


def segmenting(shape: tuple[int, ...], classes: int) -> nn.Module:
    network: nn.Module = UNet(len(shape) - 1, shape[0], classes, channels=(4, 8), strides=(2,), num_res_units=1)
    return network


def classifying(shape: tuple[int, ...], classes: int) -> nn.Module:
    """DenseNet121 is this with larger numbers."""
    sizes: dict[str, Any] = {"init_features": 8, "growth_rate": 4, "block_config": (2, 2)}
    network: nn.Module = DenseNet(len(shape) - 1, shape[0], classes, **sizes)
    return network


def bright(place: int) -> np.ndarray:
    """A bright cube in noise, anywhere along the first axis."""
    values = DRAW.normal(0, 10, (12, 12, 12)).astype(np.float32)
    values[place : place + 5, 3:9, 3:9] += 100
    return values


def test_a_unet_for_volumes(tmp_path: Path) -> None:
    for client in ("north", "south"):
        for name in ("images", "masks"):
            (tmp_path / "data" / client / name).mkdir(parents=True)
        for k in range(14):
            image = bright(k % 7)
            write_nifti(tmp_path / f"data/{client}/images/{k}.nii.gz", standard(image))
            write_nifti(tmp_path / f"data/{client}/masks/{k}.nii.gz", standard((image > 60).astype(np.uint8)))
    settings: dict[str, Any] = {
        "size": 12,
        "images": {"depth": 12},
        "method": "fedavg",
        "batch_size": 4,
        "lr": 0.1,
        "seed": 1,
    }
    run = tmp_path / "run"
    result = orchard.run(
        dataset=str(tmp_path / "data"), model="test_monai:segmenting", rounds=3, epochs=3, out=run, **settings
    )
    assert result.scores()[-1].min() > 0.9
    export_model(run, "north", tmp_path / "m.safetensors", "last")
    predictor = load_predictor(tmp_path / "m.safetensors", "test_monai:segmenting")
    (batch,) = batches([tmp_path / "data/south"], predictor)
    assert predictor.outputs(batch.x).shape == (14, 2, 12, 12, 12)


@pytest.mark.parametrize("method", ["apple", "scaffold"])
def test_a_densenet_for_volumes(tmp_path: Path, method: str) -> None:
    for client in ("north", "south"):
        for name, place in (("low", 0), ("high", 7)):
            (tmp_path / client / name).mkdir(parents=True)
            for k in range(14):
                write_nifti(tmp_path / f"{client}/{name}/{k}.nii", standard(bright(place)))
    images = {"depth": 12, "window": [0, 100]}
    result = orchard.run(
        dataset=str(tmp_path), model=classifying, size=12, images=images, method=method, rounds=4, epochs=2,
        batch_size=4, lr=0.02,
    )  # fmt: skip
    assert result.scores()[-1].min() > 0.8
