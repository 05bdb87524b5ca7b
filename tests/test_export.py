"""A personalised model leaves the run folder, and does elsewhere what it did in the run."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

import orchard
from helpers import small_arrays, small_run
from orchard.data.client_arrays import ClientArrays, from_arrays
from orchard.export.export import export_model
from orchard.export.predict import batches, load_predictor, predict
from orchard.export.trained_model import Choice
from orchard.runs.folder import RunFolder
from orchard.runs.result import Result
from processes import orchard_command
from test_vector import Residual

FORMATS = (".safetensors", ".pt2", ".onnx")
CHOICES: tuple[Choice, ...] = ("best", "last", "validation")
SHAPE = (1, 16, 16)


LEARNS = {"model": "cnn", "epochs": 1, "lr": 0.02, "method": "separate"}
"""A CNN that learns a little every round, the same however many rounds follow."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("export") / "run"


@pytest.fixture(scope="module")
def trained(folder: Path) -> Result:
    """Twelve rounds, of which the best, the last and the one that validation chooses are three."""
    return small_run(small_arrays(shape=SHAPE), **LEARNS, rounds=12, out=folder, checkpoint_every=4)


def predicted(model: Path, x: np.ndarray, y: np.ndarray | None, factory: str | None = None) -> float | None:
    """The accuracy that `predict` gives on an .npz."""
    arrays = {"x": x} if y is None else {"x": x, "y": y}
    np.savez(model.with_suffix(".npz"), **arrays)  # type: ignore[arg-type]
    predictor = load_predictor(model, factory)
    measured = predict(predictor, batches([model.with_suffix(".npz")], predictor), io.StringIO())[1]
    return measured["accuracy"] if measured else None


@pytest.mark.parametrize(
    ("choice", "suffix"), [*((choice, ".safetensors") for choice in CHOICES), ("validation", ".onnx")]
)
def test_accuracy_on_a_clients_test_data_is_the_runs_figure(
    trained: Result, folder: Path, suffix: str, choice: Choice, tmp_path: Path
) -> None:
    figures = trained.figures()
    round = {"best": figures.best, "last": figures.last, "validation": figures.validation_selected}[choice].round
    data = from_arrays(small_arrays(shape=SHAPE), trained.experiment)
    for i, client in enumerate(data.clients[: 1 if suffix == ".onnx" else None]):
        model = tmp_path / f"{i}{suffix}"
        export_model(folder, str(i), model, choice)
        accuracy = predicted(model, client.test.x.numpy(), client.test.y.numpy())
        assert accuracy == trained.scores()[round, i]


@pytest.mark.parametrize("choice", CHOICES)
def test_the_weights_are_those_of_the_round_that_was_chosen(
    trained: Result, folder: Path, choice: Choice, tmp_path: Path
) -> None:
    figures = trained.figures()
    assert len({figures.best.round, figures.last.round, figures.validation_selected.round}) == 3
    round = {"best": figures.best, "last": figures.last, "validation": figures.validation_selected}[choice].round
    ended_there = small_run(small_arrays(shape=SHAPE), **LEARNS, rounds=round + 1)
    for i in range(4):
        export_model(folder, str(i), tmp_path / "m.safetensors", choice)
        written, expected = load_file(tmp_path / "m.safetensors"), ended_there.personalised(i).state_dict()
        assert written.keys() == expected.keys()
        assert all(torch.equal(written[name], expected[name]) for name in expected)


@pytest.mark.parametrize("suffix", FORMATS)
def test_batchnorm_statistics_go_with_the_model(suffix: str, tmp_path: Path) -> None:
    arrays = small_arrays(shape=(2, 6, 6))
    result = small_run(arrays, model=Residual, out=tmp_path / "run")
    model = tmp_path / f"model{suffix}"
    export_model(tmp_path / "run", "client 1", model, "last")
    x = torch.randn(7, 2, 6, 6)
    expected = result.personalised(1)(x)
    if suffix == ".pt2":
        given = torch.export.load(model).module()(x)
    else:
        given = load_predictor(model, "test_vector:Residual" if suffix == ".safetensors" else None).outputs(x)
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-5)


def test_the_card_says_what_matters(trained: Result, folder: Path, tmp_path: Path) -> None:
    name, card_file = export_model(folder, "2", tmp_path / "model.safetensors", "best")
    assert name == "client 2"
    card = card_file.read_text()
    best = trained.figures().best.round
    scores = trained.rounds[best].after_training[2]
    assert scores is not None
    for text in (
        "the personalised model of client 2",
        f"| test data | 12 | {' | '.join(f'{value:.4f}' for value in scores.test.values())} |",
        "It was chosen on test data",
        f"All of these are after round {best + 1}: ",
        "method `separate`",
        "orchard predict model.safetensors images...\n",
        "shape 1×16×16, float32",
        "shape 1×16×16",
        "(x/255 − 0.5)/0.5",
        "Licence of the data",
    ):
        assert text in card


def test_a_client_of_one_class_has_a_card_that_says_so(tmp_path: Path) -> None:
    arrays = small_arrays()
    np.asarray(arrays[0].y_test)[:] = 2
    result = small_run(arrays, out=tmp_path / "run", method="separate")
    assert result.summary()["undefined_measures"] == {"balanced_accuracy": ["client 0"], "auroc": ["client 0"]}
    card = export_model(tmp_path / "run", "0", tmp_path / "model.safetensors")[1].read_text()
    assert "| not defined | not defined |" in card
    assert "is not defined where the samples hold too little to compare" in card


class Doubles(nn.Module):
    """Computes in double precision, with a buffer that is not part of its state."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3, dtype=torch.float64)
        self.register_buffer("seen", torch.zeros(6, dtype=torch.float64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen = self.seen + x.mean(0).detach()
        scores: Tensor = self.layer(x + self.seen)
        return scores


@pytest.mark.parametrize("suffix", FORMATS)
def test_double_precision_and_buffers_that_are_not_state_go_with_the_model(suffix: str, tmp_path: Path) -> None:
    result = small_run(model=Doubles, out=tmp_path / "run")
    file = tmp_path / f"model{suffix}"
    _, card = export_model(tmp_path / "run", "1", file, "last")
    x = small_arrays()[1].x_test
    expected = result.personalised(1)(torch.from_numpy(x).double())
    assert result.personalised(1).get_buffer("seen").abs().sum() > 0
    if suffix == ".pt2":
        given = torch.export.load(file).module()(torch.from_numpy(x).double())
        command = "outputs = torch.export.load('model.pt2').module()(samples)"
    else:
        own = "test_export:Doubles" if suffix == ".safetensors" else None
        given = load_predictor(file, own).outputs(torch.from_numpy(x))
        command = f"orchard predict model{suffix} samples.npz" + (f" --model {own}" if own else "")
    torch.testing.assert_close(given, expected, rtol=1e-9, atol=1e-9)
    assert f"\n{command}\n" in card.read_text()
    assert "a batch of samples of shape 6, float64" in card.read_text()


class OneByOne(nn.Module):
    """Traced with a batch of two, it takes batches of two alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.layer(row) for row in x])


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layer(x if float(x.sum()) > 0 else 2 * x)
        return scores


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
@pytest.mark.parametrize("network", [Untraceable, OneByOne])
def test_a_network_that_cannot_be_traced_is_refused(network: type[nn.Module], suffix: str, tmp_path: Path) -> None:
    small_run(model=network, out=tmp_path / "run")
    with pytest.raises(orchard.UserError, match=f"{suffix}: the network cannot be written so: .*; try .safetensors"):
        export_model(tmp_path / "run", "0", tmp_path / f"m{suffix}")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_clients_name_goes_before_a_number(tmp_path: Path) -> None:
    arrays = [replace(client, name=name) for client, name in zip(small_arrays(), "3201", strict=True)]
    small_run(arrays, out=tmp_path / "run")
    assert export_model(tmp_path / "run", "3", tmp_path / "m.safetensors")[0] == "3"
    with safe_open(tmp_path / "m.safetensors", "pt") as opened:
        about = json.loads(opened.metadata()["orchard"])
    assert about["client"] == "3"
    kept = RunFolder(tmp_path / "run").models.read(about["round"], 0)[0]
    exported = load_file(tmp_path / "m.safetensors")
    assert torch.equal(exported["hidden.weight"].flatten(), kept[: exported["hidden.weight"].numel()])


# --- Images ---


def picture_arrays() -> list[ClientArrays]:
    """Grey images of bytes, the classes told apart by brightness."""
    draw = np.random.default_rng(0)
    arrays = []
    for _ in range(2):
        y = np.arange(60) % 3
        x = (y[:, None, None] * 80 + draw.integers(0, 60, size=(60, 16, 16))).astype(np.uint8)
        arrays.append(ClientArrays(x[:40], y[:40], x[40:], y[40:]))
    return arrays


def test_images_are_classified_as_in_the_run(tmp_path: Path) -> None:
    arrays = picture_arrays()
    x_test, y_test = np.asarray(arrays[1].x_test), np.asarray(arrays[1].y_test)
    run = tmp_path / "run"
    result = small_run(arrays, clients=2, model="cnn", size=16, rounds=4, method="fedavg-local", out=run)
    (tmp_path / "images").mkdir()
    for k, pixels in enumerate(x_test):
        Image.fromarray(pixels).save(tmp_path / f"images/{k:03d}.png")
    options = ["--client", "1", "--to", "model.safetensors", "--round", "last"]
    done = orchard_command("export", "run", *options, cwd=tmp_path)
    assert done.stderr == "written: model.safetensors, the model of client 1, described in model.safetensors.md\n"
    np.savez(tmp_path / "test.npz", x_test=x_test, y_test=y_test)
    same = Image.open(tmp_path / "images/003.png").convert("RGB")  # the same shades, saved in colour
    same.save(tmp_path / "images/colour.png")
    done = orchard_command("predict", "model.safetensors", "test.npz", "images", "-o", "out.csv", cwd=tmp_path)
    accuracy = f"accuracy {100 * result.scores()[-1, 1]:.2f} %"
    assert done.returncode == 0
    assert done.stderr.startswith(f"41 samples, {accuracy}, balanced accuracy ")
    lines = (tmp_path / "out.csv").read_text().splitlines()
    everything = list(csv.DictReader(lines))
    labelled, rows, colour = everything[:20], everything[20:40], everything[40]
    assert [row["label"] for row in labelled] == [str(label) for label in y_test]
    assert [row["predicted"] for row in labelled] == [row["predicted"] for row in rows]
    assert colour["p(0)"] == rows[3]["p(0)"]
    right = [row["predicted"] == str(label) for row, label in zip(rows, y_test, strict=True)]
    assert np.mean(right) == result.scores()[-1, 1]
    assert rows[3]["sample"] == "images/003.png"
    for row in rows:
        probabilities = [float(row[f"p({name})"]) for name in "012"]
        assert sum(probabilities) == pytest.approx(1, abs=1e-4)
        assert row["predicted"] == str(int(np.argmax(probabilities)))


def test_folders_named_after_classes_label_their_images(tmp_path: Path) -> None:
    arrays = picture_arrays()
    x_test, y_test = np.asarray(arrays[1].x_test), np.asarray(arrays[1].y_test)
    result = small_run(arrays, clients=2, model="cnn", size=16, rounds=1, method="fedavg-local", out=tmp_path / "run")
    export_model(tmp_path / "run", "1", tmp_path / "model.safetensors", "last")
    for k, (pixels, label) in enumerate(zip(x_test, y_test, strict=True)):
        (tmp_path / f"images/{label}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / f"images/{label}/{k:03d}.png")
    predictor, table = load_predictor(tmp_path / "model.safetensors"), io.StringIO()
    _, measured = predict(predictor, batches([tmp_path / "images"], predictor), table)
    assert measured is not None
    assert measured["accuracy"] == result.scores()[-1, 1]
    for row in csv.DictReader(table.getvalue().splitlines()):
        assert row["label"] == Path(row["sample"]).parent.name
    Image.fromarray(x_test[0]).save(tmp_path / "images/stray.png")
    assert all(batch.y is None for batch in batches([tmp_path / "images"], predictor))
