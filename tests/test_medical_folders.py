"""Folders of DICOM and NIfTI files: by class, by part, by client, at a site; runs on volumes; prediction."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors import safe_open

import orchard
from orchard.data.datasets import load_dataset
from orchard.data.division import federated_data
from orchard.data.medical.scans import MedicalSettings, read_medical
from orchard.data.site import site_data
from orchard.errors import DataWarning, UserError
from orchard.experiment import Experiment, load_experiment, to_toml
from orchard.export.export import export_model
from orchard.export.predict import batches, load_predictor, predict
from orchard.tasks.classification import Classification
from processes import orchard_command
from scans import DICOM_FILES, standard, write_dicom, write_nifti, write_series

DRAW = np.random.default_rng(0)


def scan(bright: bool, *shape: int) -> NDArray[np.int16]:
    """Noise around 0, with a bright middle or without."""
    values = DRAW.normal(0, 20, shape)
    values[tuple(slice(side // 4, -(side // 4)) for side in shape)] += 400 * bright
    return values.astype(np.int16)


def write_images(folder: Path, count: int, bright: bool = False, **fields: Any) -> None:
    """Write 2-D DICOM files, every other without an extension."""
    folder.mkdir(parents=True)
    for k in range(count):
        write_dicom(folder / (f"{k}.dcm" if k % 2 else f"IM{k}"), scan(bright, 12, 10), **fields)
    (folder / "notes.txt").write_text("not an image")
    (folder / "DICOMDIR").write_bytes((DICOM_FILES / "dicomdirtests/DICOMDIR").read_bytes())


def write_volumes(folder: Path, count: int, bright: bool = False) -> None:
    """Write NIfTI volumes."""
    folder.mkdir(parents=True)
    for k in range(count):
        write_nifti(folder / f"{k}.nii.gz", standard(scan(bright, 14, 20, 18)))


# reading


def test_dicom_images_by_class_keep_their_precision(tmp_path: Path) -> None:
    for name in ("clear", "lesion"):
        write_images(tmp_path / name, 5, bright=name == "lesion")
    window = MedicalSettings(window=(-100, 400))
    experiment = Experiment(dataset=str(tmp_path), size=8, images=window)
    dataset = load_dataset(experiment)
    assert dataset.task == Classification(("clear", "lesion"))
    assert dataset.train.x.shape == (8, 1, 8, 8)
    assert dataset.train.x.dtype == torch.float32
    files = sorted(path for path in (tmp_path / "clear").iterdir() if path.name not in ("notes.txt", "DICOMDIR"))
    expected = {read_medical(file, window, 8).tobytes() for file in files}
    clear = torch.cat([part.x[part.y == 0] for part in (dataset.train, dataset.test)])
    assert {image.numpy().tobytes() for image in clear} == expected  # to the last bit: not rounded to bytes
    assert len(torch.unique(clear)) > 256


def test_a_folder_of_medical_images_says_so_in_the_experiment(tmp_path: Path) -> None:
    write_images(tmp_path / "medical/a", 1)
    medical = Experiment(dataset=str(tmp_path / "medical"))
    assert medical.images == MedicalSettings()
    assert medical == medical.changed(images={})
    (tmp_path / "medical.toml").write_text(to_toml(medical))
    assert load_experiment(tmp_path / "medical.toml") == medical
    assert Experiment().images is None
    assert "images" not in to_toml(Experiment())
    narrow = medical.changed(images={"window": [0, 80]})
    assert narrow.identity() != medical.identity()


def test_settings_are_checked_where_they_are_written() -> None:
    with pytest.raises(UserError, match=r"images\.spacing = \[1\.0, 1\.0\]: volumes \(depth is set\) need 3 numbers"):
        load_experiment(assignments=["images.depth=4", "images.spacing=[1, 1]"])
    with pytest.raises(UserError, match=r"images\.dept: unknown key; did you mean 'depth'"):
        load_experiment(assignments=["images.dept=4"])
    with pytest.raises(UserError, match="images: is for folders of DICOM and NIfTI files, which 'digits' is not"):
        federated_data(load_experiment(assignments=["images.depth=4"]))


def test_parts_and_clients(tmp_path: Path) -> None:
    for home in ("parts/train", "parts/test", "clients/north", "clients/south"):
        for name in ("clear", "lesion"):
            write_images(tmp_path / home / name, 8)
    dataset = load_dataset(Experiment(dataset=str(tmp_path / "parts"), size=8))
    assert (len(dataset.train.y), len(dataset.test.y)) == (16, 16)
    experiment = Experiment(dataset=str(tmp_path / "clients"), size=8)
    assert (experiment.clients, experiment.partition.name) == (2, "given")
    assert federated_data(experiment).sizes() == {"train": [11, 11], "validation": [3, 3], "test": [2, 2]}


def test_medical_and_ordinary_images_are_not_mixed(tmp_path: Path) -> None:
    write_images(tmp_path / "a", 3)
    (tmp_path / "b").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "b/0.png")
    with pytest.raises(UserError, match=r"a/1\.dcm: is a medical image, but .*b/0\.png is not; give all of one kind"):
        load_dataset(Experiment(dataset=str(tmp_path)))
    (tmp_path / "ordinary").mkdir()
    (tmp_path / "b").rename(tmp_path / "ordinary/b")
    with pytest.raises(UserError, match=r"images: is for DICOM and NIfTI files, but .*0\.png is neither; leave it out"):
        load_dataset(Experiment(dataset=str(tmp_path / "ordinary"), images=MedicalSettings()))


def test_volumes_in_files_and_folders_of_slices(tmp_path: Path) -> None:
    volumes = [scan(False, 5, 6, 4) for _ in range(6)]
    for home in (tmp_path / "whole", tmp_path / "clients/north"):
        for name in ("a", "b"):
            (home / name).mkdir(parents=True)
            for k, volume in enumerate(volumes):
                write_series(home / name / f"series{k}", volume)
    (tmp_path / "frames/a").mkdir(parents=True)
    for k, volume in enumerate(volumes):
        write_dicom(tmp_path / f"frames/a/{k}.dcm", volume)
    images = MedicalSettings(depth=5, window=(-50, 50))

    def held(name: str) -> torch.Tensor:
        dataset = load_dataset(Experiment(dataset=str(tmp_path / name), size=4, images=images))
        return torch.cat([dataset.train.x, dataset.test.x])

    assert held("whole").shape == (12, 1, 5, 4, 4)
    assert held("frames").shape == (6, 1, 5, 4, 4)
    assert {x.numpy().tobytes() for x in held("whole")} == {x.numpy().tobytes() for x in held("frames")}
    experiment = Experiment(dataset=str(tmp_path / "clients"), size=4, images=images)
    assert (experiment.clients, experiment.partition.name, experiment.model) == (1, "given", "small-cnn")
    assert federated_data(experiment).task.classes == ("a", "b")
    with pytest.raises(UserError, match="holds no folders; expected <class>/"):
        Experiment(dataset=str(tmp_path / "whole/a"), images=images)


def test_a_volume_without_a_depth_is_named(tmp_path: Path) -> None:
    write_volumes(tmp_path / "a", 1)
    with pytest.raises(UserError, match=r"0\.nii\.gz: is a volume of 14 slices; set images\.depth to read volumes"):
        load_dataset(Experiment(dataset=str(tmp_path)))


def test_text_in_the_pixels_is_told_of_though_files_are_read_in_parallel(tmp_path: Path) -> None:
    write_images(tmp_path / "a", 10)
    write_images(tmp_path / "b", 10, BurnedInAnnotation="YES")
    with pytest.warns(DataWarning, match=r"b: some images say that text is burnt into their pixels") as told:
        load_dataset(Experiment(dataset=str(tmp_path), size=8))
    assert len(told) == 10


def test_a_site_reads_what_all_agreed_upon(tmp_path: Path) -> None:
    write_volumes(tmp_path / "clear", 10)
    write_volumes(tmp_path / "lesion", 5, bright=True)
    agreed = Classification(("clear", "cyst", "lesion"))
    experiment = Experiment(size=8, images=MedicalSettings(depth=6))
    held = site_data(tmp_path, "north", 0, agreed, experiment)
    assert held.shape == (1, 6, 8, 8)
    assert held.distribution().totals().tolist() == [[10, 0, 5]]
    with pytest.raises(UserError, match="is a medical image; for such, the experiment needs the section"):
        site_data(tmp_path, "north", 0, agreed, Experiment(size=8))


def test_an_experiment_needs_no_reader_to_be_imported() -> None:
    code = "import sys, orchard.experiment; assert not {'torch', 'pydicom', 'nibabel'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# runs


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clients with volumes of two classes that differ visibly."""
    folder = tmp_path_factory.mktemp("volumes")
    for client in ("north", "south"):
        write_volumes(folder / "data" / client / "clear", 20)
        write_volumes(folder / "data" / client / "lesion", 20, bright=True)
    return folder


def test_volumes_from_run_to_prediction(volumes: Path) -> None:
    settings = ["size=16", "images.depth=16", "images.window=[-100, 300]", "epochs=2", "batch_size=8", "lr=0.02"]
    options = [f"--set={setting}" for setting in [*settings, "method=fedavg"]]
    whole = orchard_command("run", "--dataset", "data", "--rounds", "2", *options, "--out", "whole", cwd=volumes)
    assert whole.returncode == 0, whole.stderr
    first = orchard.load(volumes / "whole")
    assert first.experiment.model == "small-cnn"
    assert first.scores()[-1].tolist() == [1, 1]
    report = orchard_command("report", "whole", "-o", "report.html", cwd=volumes)
    assert (report.returncode, (volumes / "report.html").exists()) == (0, True), report.stderr
    done = orchard_command("export", "whole", "--client", "north", "--to", "m.safetensors", cwd=volumes)
    assert done.returncode == 0, done.stderr
    done = orchard_command("predict", "m.safetensors", "data/south/lesion", "data/south/clear/3.nii.gz", cwd=volumes)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert [row["predicted"] for row in rows] == ["lesion"] * 20 + ["clear"]
    assert rows[-1]["sample"] == "data/south/clear/3.nii.gz"


def test_a_run_on_volumes_resumes_bit_for_bit(volumes: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "dataset": str(volumes / "data"), "size": 16, "images": {"depth": 16}, "epochs": 1, "batch_size": 8
    }  # fmt: skip
    whole = orchard.run(**settings, rounds=2)

    def stop(result: Any) -> None:
        if len(result.rounds) == 1:
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, orchard.Stopped)):
        orchard.run(**settings, rounds=2, out=tmp_path / "run", checkpoint_every=1, progress=stop)
    resumed = orchard.resume(tmp_path / "run")
    assert np.array_equal(resumed.scores(), whole.scores())
    for i in range(2):
        state, expected = (result.personalised(i).state_dict() for result in (resumed, whole))
        assert all(torch.equal(state[name], expected[name]) for name in expected)


# prediction


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The exported model of a run on 2-D DICOM images."""
    for client in ("north", "south"):
        for name in ("clear", "lesion"):
            write_images(tmp_path / "data" / client / name, 10, bright=name == "lesion", PixelSpacing=[1.5, 1])
    images = {"window": [-100, 300], "spacing": [1, 2]}
    data, run = tmp_path / "data", tmp_path / "run"
    orchard.run(dataset=str(data), size=16, images=images, model="mlp", rounds=1, epochs=1, out=run)
    export_model(tmp_path / "run", "0", tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_a_model_prepares_images_as_in_training(model: Path, tmp_path: Path) -> None:
    predictor = load_predictor(model)
    settings = MedicalSettings(window=(-100, 300), spacing=(1, 2))
    assert predictor.images == settings
    (batch,) = batches([tmp_path / "data/south"], predictor)
    assert len(batch.names) == 20
    for name, x in zip(batch.names, batch.x, strict=True):
        np.testing.assert_array_equal(x[0].numpy(), read_medical(Path(name), settings, 16))
    card = model.with_name("model.safetensors.md").read_text()
    assert "2-D images; intensities -100 … 300 become −1 … 1, what lies outside is clipped; pixels of 1×2 mm" in card
    assert "orchard predict model.safetensors scans..." in card
    with safe_open(model, "pt") as opened:
        about = json.loads(opened.metadata()["orchard"])
    assert about["images"] == {"window": [-100.0, 300.0], "spacing": [1.0, 2.0], "depth": None}


def test_what_a_model_cannot_be_given_is_named(model: Path, tmp_path: Path) -> None:
    Image.new("L", (8, 8)).save(tmp_path / "x.png")
    write_nifti(tmp_path / "v.nii", scan(False, 4, 5, 6))
    predictor = load_predictor(model)
    for name, message in (
        ("x.png", r"x\.png: this model was trained on DICOM or NIfTI files; give such"),
        ("v.nii", r"v\.nii: is a volume of 6 slices"),
    ):
        with pytest.raises(UserError, match=message):
            predict(predictor, batches([tmp_path / name], predictor), io.StringIO())
