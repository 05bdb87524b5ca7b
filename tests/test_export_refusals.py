"""What cannot be exported or predicted is refused, and a file from outside is trusted with nothing."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import orchard
from helpers import Dropping, classes, small_arrays, small_run
from orchard.export.export import export_model
from orchard.export.predict import batches, load_predictor, predict
from processes import orchard_command


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of one round."""
    folder = tmp_path_factory.mktemp("export") / "run"
    small_run(small_arrays(shape=(1, 16, 16)), model="cnn", rounds=1, out=folder)
    return folder


@pytest.fixture
def model(run: Path, tmp_path: Path) -> Path:
    export_model(run, "0", tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_what_cannot_be_exported_is_refused(run: Path, tmp_path: Path) -> None:
    for arguments, message in (
        ((run, "7", tmp_path / "m.onnx"), "--client 7: no such client; there are 0 to 3: client 0, client 1"),
        ((run, "0", tmp_path / "m.h5"), "models are written as .safetensors, .pt2, .onnx"),
        ((tmp_path, "0", tmp_path / "m.onnx"), "is not the folder of a run"),
        ((run, "0", tmp_path / "nowhere/m.safetensors"), "cannot be written: No such file or directory"),
        ((run, "0", tmp_path / "nowhere/m.pt2"), "cannot be written: No such file or directory"),
        ((run, "0", run / "summary.json/m.pt2"), "cannot be written: Not a directory"),
    ):
        with pytest.raises(orchard.UserError, match=message):
            export_model(*arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("about", [{"shape": [-1]}, {"shape": "x"}, {"classes": {}}, {"classes": [1]}, {"model": 3}])
def test_a_file_that_says_nonsense_of_itself_is_refused(about: dict[str, object], tmp_path: Path) -> None:
    good = {"format": 2, "model": "mlp", "shape": [6], "task": "classification", "classes": ["a", "b", "c"]}
    save_file({"x": torch.zeros(1)}, tmp_path / "odd.safetensors", {"orchard": json.dumps(good | about)})
    with pytest.raises(orchard.UserError, match="was not exported by Orchard"):
        load_predictor(tmp_path / "odd.safetensors")


def test_a_file_does_not_choose_how_much_memory_is_taken(tmp_path: Path) -> None:
    sizes = {"shape": [10**6, 10**6], "classes": ["a", "b"]}
    about = {"format": 2, "model": "mlp", "task": "classification", **sizes}
    save_file({"x": torch.zeros(1)}, tmp_path / "bomb.safetensors", {"orchard": json.dumps(about)})
    with pytest.raises(orchard.UserError, match="does not fit the network 'mlp': the names or shapes"):
        load_predictor(tmp_path / "bomb.safetensors")


@pytest.mark.parametrize("about", [{"classes": ["a", "b"]}, {"shape": [1, 16, 17]}])
def test_an_onnx_file_that_says_nonsense_of_itself_is_refused(
    run: Path, about: dict[str, object], tmp_path: Path
) -> None:
    import onnx

    export_model(run, "0", tmp_path / "m.onnx")
    program = onnx.load(tmp_path / "m.onnx")
    (entry,) = [entry for entry in program.metadata_props if entry.key == "orchard"]
    entry.value = json.dumps({**json.loads(entry.value), **about})
    onnx.save(program, tmp_path / "m.onnx")
    with pytest.raises(orchard.UserError, match="does not take samples or know classes as it says"):
        load_predictor(tmp_path / "m.onnx")


def described(file: Path, *, remove: str | None = None, **changes: object) -> None:
    """Change what an exported file says of itself."""
    with safe_open(file, "pt") as opened:
        about = {**json.loads(opened.metadata()["orchard"]), **changes}
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (it is no dictionary)
    about.pop(remove, None)
    save_file(tensors, file, {"orchard": json.dumps(about)})


def test_a_model_of_a_newer_format_is_refused_in_one_sentence(model: Path) -> None:
    sentence = f"{model}: is a model of format 99, but Orchard {orchard.__version__} reads format 2; update Orchard"
    for remove in (None, "classes"):  # a newer format may call things by other names
        described(model, format=99, remove=remove)
        with pytest.raises(orchard.UserError) as refusal:
            load_predictor(model)
        assert str(refusal.value) == sentence


def test_an_onnx_file_of_a_newer_format_is_refused_in_one_sentence(run: Path, tmp_path: Path) -> None:
    import onnx

    export_model(run, "0", tmp_path / "m.onnx")
    program = onnx.load(tmp_path / "m.onnx")
    (entry,) = [entry for entry in program.metadata_props if entry.key == "orchard"]
    entry.value = json.dumps({**json.loads(entry.value), "format": 99})
    onnx.save(program, tmp_path / "m.onnx")
    with pytest.raises(
        orchard.UserError, match=r"m\.onnx: is a model of format 99, but Orchard .* reads format 2; update"
    ):
        load_predictor(tmp_path / "m.onnx")


def test_a_model_from_before_formats_had_numbers_is_read(model: Path) -> None:
    x = torch.randn(5, 1, 16, 16)
    before = load_predictor(model).outputs(x)
    described(model, remove="format")
    assert torch.equal(load_predictor(model).outputs(x), before)


def test_a_link_is_written_through(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "good.npz", x=np.zeros((3, 1, 16, 16), np.float32))
    (tmp_path / "link.csv").symlink_to(tmp_path / "target.csv")
    orchard_command("predict", str(model), "good.npz", "-o", "link.csv", cwd=tmp_path)
    assert (tmp_path / "link.csv").is_symlink()
    assert len((tmp_path / "target.csv").read_text().splitlines()) == 4


def test_predictions_are_written_whole_or_not_at_all(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "good.npz", x=np.zeros((3, 1, 16, 16), np.float32))
    (tmp_path / "bad.png").write_text("not an image")
    (tmp_path / "out.csv").write_text("earlier")
    refused = orchard_command("predict", str(model), "good.npz", "bad.png", "-o", "out.csv", cwd=tmp_path)
    assert refused.returncode == 2
    assert (tmp_path / "out.csv").read_text() == "earlier"
    for target, reason in (("/dev/full", "No space left on device"), ("nowhere/out.csv", "No such file or directory")):
        refused = orchard_command("predict", str(model), "good.npz", "-o", target, cwd=tmp_path)
        assert (refused.returncode, refused.stderr) == (2, f"orchard: {target}: cannot be written: {reason}\n")
    shell = f"{sys.executable} -c 'from orchard.cli import main; main()' predict {model} good.npz > /dev/full"
    refused = subprocess.run(shell, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)  # noqa: S602
    assert refused.stderr == "orchard: standard output: cannot be written: No space left on device\n"
    assert refused.returncode == 2


def test_a_file_does_not_choose_what_code_runs(tmp_path: Path) -> None:
    about = {"model": "os:abort", "shape": [6], "classes": ["a", "b", "c"]}
    save_file({"x": torch.zeros(1)}, tmp_path / "evil.safetensors", {"orchard": json.dumps(about)})
    with pytest.raises(orchard.UserError, match="a file may not choose what code runs"):
        load_predictor(tmp_path / "evil.safetensors")
    small_run(model=Dropping, out=tmp_path / "run")
    export_model(tmp_path / "run", "0", tmp_path / "own.safetensors")
    with pytest.raises(orchard.UserError, match="name it yourself: --model helpers:Dropping"):
        load_predictor(tmp_path / "own.safetensors")
    assert load_predictor(tmp_path / "own.safetensors", "helpers:Dropping").task == classes(3)


def test_what_is_no_model_is_refused(model: Path, tmp_path: Path) -> None:
    plain, broken = tmp_path / "plain.safetensors", tmp_path / "broken.safetensors"
    save_file({"x": torch.zeros(1)}, plain)
    broken.write_bytes(model.read_bytes()[:1000])
    (tmp_path / "broken.onnx").write_bytes(b"nothing")
    (tmp_path / "model.pt2").write_bytes(b"")
    (tmp_path / "model.pth").write_bytes(b"")
    for file, message in (
        (plain, "was not exported by Orchard"),
        (broken, "cannot be read"),
        (tmp_path / "broken.onnx", "cannot be read"),
        (tmp_path / "model.pt2", "may hold pickles, which are never loaded"),
        (tmp_path / "model.pth", "expected a model exported as .safetensors or .onnx"),
        (tmp_path / "missing.onnx", "no such file"),
    ):
        with pytest.raises(orchard.UserError, match=message):
            load_predictor(file)
    with pytest.raises(orchard.UserError, match="does not fit the network 'mlp'"):
        load_predictor(model, "mlp")


def test_samples_that_do_not_fit_are_refused(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "flat.npz", x=np.zeros((3, 6)))
    np.savez(tmp_path / "unnamed.npz", z=np.zeros((3, 1, 16, 16)))
    np.savez(tmp_path / "labels.npz", x=np.zeros((3, 1, 16, 16)), y=np.array([0, 1, 3]))
    (tmp_path / "notes.png").write_text("not an image")
    (tmp_path / "empty").mkdir()
    predictor = load_predictor(model)
    for name, message in (
        ("flat.npz", "a sample is 6, but the model takes 1×16×16"),
        ("unnamed.npz", "expected samples as one of 'x'"),
        ("labels.npz", "row 2: label 3, but there are 3 classes"),
        ("notes.png", "notes.png: cannot be read as an image"),
        ("empty", "holds no image"),
        ("missing.png", "no such file"),
    ):
        with pytest.raises(orchard.UserError, match=message):
            predict(predictor, batches([tmp_path / name], predictor), io.StringIO())
