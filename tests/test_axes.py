"""What the axes of arrays are: said by `layout`, or obvious, or asked for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import orchard
from helpers import small_arrays, small_experiment, small_run
from orchard.data.axes import Layout
from orchard.data.client_arrays import from_arrays
from orchard.data.division import federated_data
from orchard.data.samples import as_inputs
from orchard.data.site import site_data
from orchard.errors import UserError
from orchard.experiment import Experiment
from orchard.export.export import export_model
from orchard.export.predict import batches, load_predictor


def inputs(shape: tuple[int, ...], layout: Layout | None = None, dtype: Any = np.float32) -> torch.Tensor:
    x = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    return as_inputs(x, 8, "here", layout)


@pytest.mark.parametrize(
    ("layout", "shape", "becomes"),
    [
        ("features", (5, 6), (5, 6)),
        ("signal", (5, 128), (5, 1, 128)),
        ("signal", (5, 1, 128), (5, 1, 128)),
        ("signal", (5, 12, 12), (5, 12, 12)),
        ("image", (5, 8, 9), (5, 1, 8, 9)),
        ("image", (5, 1, 128), (5, 1, 1, 128)),
        ("image-channels-first", (5, 12, 8, 9), (5, 12, 8, 9)),
        ("image-channels-first", (5, 3, 8, 3), (5, 3, 8, 3)),
        ("image-channels-last", (5, 8, 9, 12), (5, 12, 8, 9)),
        ("image-channels-last", (5, 3, 8, 3), (5, 3, 3, 8)),
        ("volume", (5, 8, 8, 9), (5, 1, 8, 8, 9)),
        ("volume", (5, 3, 8, 9), (5, 1, 3, 8, 9)),
        ("volume", (5, 2, 8, 8, 9), (5, 2, 8, 8, 9)),
    ],
)
def test_a_layout_says_what_the_axes_are(layout: Layout, shape: tuple[int, ...], becomes: tuple[int, ...]) -> None:
    prepared = inputs(shape, layout)
    assert prepared.shape == becomes
    back = prepared.movedim(1, -1) if layout == "image-channels-last" else prepared
    assert back.flatten().tolist() == list(range(prepared.numel()))


@pytest.mark.parametrize(
    ("shape", "choices"),
    [
        ((5, 1, 128), '"signal" (channels×length) or "image" (height×width)'),
        ((5, 12, 100), '"signal" (channels×length) or "image" (height×width)'),
        ((5, 200, 64), '"signal" (channels×length) or "image" (height×width)'),
        (
            (5, 3, 8, 3),
            '"image-channels-first" (channels×height×width) or "image-channels-last" (height×width×channels)',
        ),
        (
            (5, 28, 28, 28),
            '"image-channels-first" (channels×height×width), "image-channels-last" (height×width×channels) '
            'or "volume" (depth×height×width)',
        ),
    ],
)
def test_a_shape_that_can_be_read_in_several_ways_is_asked_about(shape: tuple[int, ...], choices: str) -> None:
    with pytest.raises(UserError) as refusal:
        inputs(shape)
    assert str(refusal.value) == f"here: the shape {shape} can be read in several ways; set layout = {choices}"


@pytest.mark.parametrize(
    ("shape", "becomes"), [((5, 8, 16), (5, 1, 8, 16)), ((5, 16, 8), (5, 1, 16, 8)), ((5, 7), (5, 7))]
)
def test_images_up_to_twice_as_long_as_wide_are_obvious(shape: tuple[int, ...], becomes: tuple[int, ...]) -> None:
    assert inputs(shape).shape == becomes


def test_another_number_of_axes_is_refused() -> None:
    with pytest.raises(UserError) as refusal:
        inputs((5, 2, 3, 4), "signal")
    assert str(refusal.value) == (
        'here: layout = "signal" is for n×length or n×channels×length, not for an array of shape (5, 2, 3, 4)'
    )
    with pytest.raises(UserError, match="layout = 'wave'"):
        small_experiment(layout="wave")


def test_bytes_are_images_of_any_shape_or_volumes() -> None:
    assert inputs((5, 1, 128), dtype=np.uint8).shape == (5, 1, 8, 8)
    assert inputs((5, 3, 9, 3), "image-channels-last", np.uint8).shape == (5, 3, 8, 8)
    volume = inputs((1, 2, 3, 5), "volume", np.uint8)
    assert volume.shape == (1, 1, 2, 3, 5)  # scaled, but not resized
    torch.testing.assert_close(volume.flatten(), torch.arange(30) / 255 * 2 - 1)
    with pytest.raises(UserError, match='layout = "signal": bytes are images or volumes; save others as floats'):
        inputs((5, 1, 128), "signal", np.uint8)


def test_signals_are_trained_on_exported_and_predicted(tmp_path: Path) -> None:
    arrays = small_arrays(shape=(2, 40))
    with pytest.raises(UserError, match=r"client 0: train: the shape \(20, 2, 40\) can be read in several ways"):
        small_run(arrays, model="small-cnn")
    result = small_run(arrays, model="small-cnn", layout="signal", out=tmp_path / "run")
    assert result.federation.shape == (2, 40)
    assert result.experiment.layout == orchard.resume(tmp_path / "run", arrays).experiment.layout == "signal"
    export_model(tmp_path / "run", "0", tmp_path / "model.safetensors")
    predictor = load_predictor(tmp_path / "model.safetensors")
    assert predictor.layout == "signal"
    np.savez(tmp_path / "new.npz", x=arrays[0].x_train[:3])
    (batch,) = batches([tmp_path / "new.npz"], predictor)
    assert batch.x.shape == (3, 2, 40)


def test_sites_read_their_arrays_by_the_layout(tmp_path: Path) -> None:
    arrays = small_arrays(1, shape=(2, 40))[0]
    experiment = small_experiment(layout="signal", clients=1)
    np.savez(tmp_path / "mine.npz", x=arrays.x_train, y=arrays.y_train)
    task = from_arrays([arrays], experiment).task
    assert site_data(tmp_path / "mine.npz", "north", 0, task, experiment).shape == (2, 40)


def test_a_layout_is_for_arrays_alone() -> None:
    with pytest.raises(UserError, match=r"layout = 'image': is for arrays of your own, in an \.npz or handed over"):
        federated_data(Experiment(dataset="digits", layout="image"))
