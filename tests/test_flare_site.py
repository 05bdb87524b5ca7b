"""A site's own commands: what it checks before a run, and what it alone can look at after one."""

from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from PIL import Image
from safetensors.torch import load_file

import orchard
from helpers import classes, small_arrays, small_experiment
from orchard.core.models import build
from orchard.core.vector import Network
from orchard.data.site import site_data
from orchard.errors import UserError
from orchard.experiment import load_experiment
from orchard.sites.check import check
from orchard.tasks.classification import Classification
from orchard.tasks.multilabel import Multilabel
from processes import orchard_command
from sites import SITES, Consortium, kit_of_north, small_plan, write_npz

EXPERIMENT = {"method": "apple", "model": "mlp", "rounds": 3, "epochs": 2, "batch_size": 8, "lr": 0.05}


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """As much of a site's kit as the site's own commands need."""
    return kit_of_north(tmp_path / "north-kit")


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    file = tmp_path / "experiment.toml"
    file.write_text(tomli_w.dumps({**EXPERIMENT, "deploy": {"classes": ["a", "b", "c"]}}))
    return file


def test_check_tries_everything_and_says_what_would_leave(tmp_path: Path, kit: Path, experiment: Path) -> None:
    Consortium(tmp_path)
    done = orchard_command("site", "check", str(kit), str(experiment), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "site: north, one of 4 of the consortium lungs" in done.stdout
    assert "data, train: 17 samples" in done.stdout
    assert "a training step on 8 samples works" in done.stdout
    assert "each round: 'core' (8,012 bytes), the names of the vectors it selects next," in done.stdout
    assert "What does not: samples, directed relationships, the personalised model, logs." in done.stdout
    assert not list((tmp_path / "north" / "records").iterdir())


@pytest.mark.parametrize(
    ("method", "vectors"),
    [
        ("separate", "no vector"),
        ("fedavg", "'model' (8,012 bytes)"),
        ("scaffold", "'model' (8,012 bytes), 'control' (8,012 bytes)"),
        ("fedper", "'body' (5,600 bytes)"),  # without the last layer, of 200 × 3 weights and 3 biases
        ("heurfedamp", "'model' (8,012 bytes)"),
        ("fedfomo", "'model' (8,012 bytes)"),
        ("apple", "'core' (8,012 bytes)"),
        ("graft", "'core' (8,012 bytes)"),
    ],
)
def test_check_names_the_vectors_that_leave(
    method: str, vectors: str, tmp_path: Path, kit: Path, experiment: Path
) -> None:
    Consortium(tmp_path)
    experiment.write_text(tomli_w.dumps({**EXPERIMENT, "method": method, "deploy": {"classes": ["a", "b", "c"]}}))
    assert f"  each round: {vectors}, the names of the vectors it selects next," in list(check(kit, experiment))


def test_check_gives_advice_but_not_on_classes_that_other_sites_hold(
    tmp_path: Path, kit: Path, experiment: Path
) -> None:
    Consortium(tmp_path)
    agreed = {**EXPERIMENT, "batch_size": 64, "deploy": {"classes": ["a", "b", "c", "d"]}}
    experiment.write_text(tomli_w.dumps(agreed))
    notes = [line for line in check(kit, experiment) if line.startswith("note: ")]
    assert [note.split(":")[1] for note in notes] == [
        " batch_size = 64",
        " fewer than 20 test samples at the client (north has 12)",
    ]


LEAVES = "the model that leaves is this site's personalised model"
MODEL = "the personalised model"
SENT = "the personalised model is the one that the server sends to all"


@pytest.mark.parametrize(
    ("method", "seen"),
    [
        ("fedfomo", LEAVES),
        ("heurfedamp", LEAVES),
        ("fedavg-local", LEAVES),
        ("fedavg", SENT),
        ("separate", ""),
        ("fedavg-ft", ""),
        ("apfl", ""),
        ("apple", ""),
        ("graft", ""),
        ("cfl", LEAVES),
        ("ifca", LEAVES),
    ],
)
def test_check_says_where_the_personalised_model_is_not_the_sites_alone(
    method: str, seen: str, tmp_path: Path, kit: Path, experiment: Path
) -> None:
    Consortium(tmp_path)
    agreed = {**EXPERIMENT, "method": method, "deploy": {"classes": ["a", "b", "c"]}}
    experiment.write_text(tomli_w.dumps(agreed))
    said = list(check(kit, experiment))
    assert not seen or f"  with {method} {seen}" in said
    private = (
        []
        if method in ("graft", "cfl", "ifca")
        else ["directed relationships"]
        if seen
        else ["directed relationships", MODEL]
    )
    assert said[-1] == f"What does not: {', '.join(['samples', *private, 'logs'])}."


@pytest.mark.parametrize(
    ("method", "learned"),
    [
        ("graft", "the server works out from the cores who opposes whom"),
        ("cfl", "the server works out who pulls against whom"),
        ("ifca", "the server learns which of its models fits the site best"),
    ],
)
def test_check_says_what_pools_and_clusters_tell(
    method: str, learned: str, tmp_path: Path, kit: Path, experiment: Path
) -> None:
    Consortium(tmp_path)
    experiment.write_text(tomli_w.dumps({**EXPERIMENT, "method": method, "deploy": {"classes": ["a", "b", "c"]}}))
    said = list(check(kit, experiment))
    assert any(line.startswith(f"  with {method} {learned}") for line in said)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('data = "nowhere.npz"\nrecords = "../north/records"', "no such file"),
        ('data = "../north/data.npz"', "records: is missing"),
        ('data = "../north/data.npz"\nrecords = "records"', "must lie outside of the kit"),
        ('data = "../north/data.npz"\nrecord = "x"', "record: unknown key; did you mean 'records'?"),
        ("", "data"),
    ],
)
def test_check_refuses_settings_that_do_not_fit(
    settings: str, message: str, tmp_path: Path, kit: Path, experiment: Path
) -> None:
    Consortium(tmp_path)
    (kit / "local" / "site.toml").write_text(settings)
    done = orchard_command("site", "check", str(kit), str(experiment), cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_check_refuses_a_network_that_the_site_does_not_allow(tmp_path: Path, kit: Path) -> None:
    Consortium(tmp_path)
    file = tmp_path / "experiment.toml"
    file.write_text(tomli_w.dumps({**EXPERIMENT, "model": "os:abort", "deploy": {"classes": ["a", "b", "c"]}}))
    done = orchard_command("site", "check", str(kit), str(file), cwd=tmp_path)
    assert done.returncode == 2
    assert "model not allowed here" in done.stderr


@pytest.mark.parametrize("command", ["check", "report", "export"])
@pytest.mark.parametrize(
    ("written", "found", "advice"),
    [
        (None, 1, "use the Orchard that wrote it, or start again"),
        ('{"format": 3, "orchard": "0.9.0"}', 3, "update Orchard"),
    ],
)
def test_a_kit_of_another_format_is_refused_in_one_sentence(
    command: str, written: str | None, found: int, advice: str, tmp_path: Path, kit: Path, experiment: Path
) -> None:
    Consortium(tmp_path)
    file = kit / "local" / "kit.json"
    file.unlink() if written is None else file.write_text(written)
    rest = {"check": [str(experiment)], "report": [], "export": ["--to", "model.safetensors"]}
    done = orchard_command("site", command, str(kit), *rest[command], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    reads = f"Orchard {orchard.__version__} reads format 2"
    said = f"is a startup kit (made by: orchard deploy init) of format {found}, but {reads}; {advice}"
    assert done.stderr == f"orchard: {kit}: {said}\n"


def test_report_shows_what_the_site_alone_knows(tmp_path: Path, kit: Path) -> None:
    Consortium(tmp_path).run(small_plan())
    together = orchard.run(small_experiment(), small_arrays())
    assert together.relationships is not None
    done = orchard_command("site", "report", str(kit), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "3 of 3 rounds of apple" in done.stdout
    for site, strength in zip(SITES, together.relationships[-1, 0], strict=True):
        assert f"{site:24} {strength:+.4f}" in done.stdout


def test_export_gives_the_model_that_a_simulation_gives(tmp_path: Path, kit: Path) -> None:
    Consortium(tmp_path).run(small_plan())
    together = orchard.run(small_experiment(), small_arrays())
    file = tmp_path / "model.safetensors"
    done = orchard_command("site", "export", str(kit), "--to", str(file), "--round", "last", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    module = build("mlp", (6,), classes(3), seed=0)
    module.load_state_dict(load_file(file))
    assert torch.equal(Network(module).vector, together.models[0][0])
    card = (tmp_path / "model.safetensors.md").read_text()
    assert "by 4 clients together" in card
    assert "| test data | 12 |" in card
    assert "| true ↓ predicted → | a | b | c |" in card


def test_export_before_the_first_round_is_refused(tmp_path: Path, kit: Path) -> None:
    Consortium(tmp_path)
    done = orchard_command("site", "export", str(kit), "--to", "model.safetensors", cwd=tmp_path)
    assert done.returncode == 2
    assert "holds no whole record of a run yet" in done.stderr


# --- A site's data ---


def images(folder: Path, held: dict[str, int]) -> Path:
    draw = np.random.default_rng(0)
    for name, count in held.items():
        (folder / name).mkdir(parents=True)
        for k in range(count):
            Image.fromarray(draw.integers(0, 256, (28, 28), dtype=np.uint8)).save(folder / name / f"{k}.png")
    return folder


def test_a_folder_of_images_takes_its_labels_from_the_classes_agreed_upon(tmp_path: Path) -> None:
    folder = images(tmp_path / "xrays", {"normal": 30, "tumour": 20})
    agreed = Classification(("cyst", "normal", "stone", "tumour"))
    held = site_data(folder, "north", 0, agreed, load_experiment())
    assert held.distribution().totals().tolist() == [[0, 30, 0, 20]]
    assert held.class_counts()["test"] == [[0, 6, 0, 4]]
    assert held.task == agreed


def test_a_class_that_nobody_agreed_upon_is_refused(tmp_path: Path) -> None:
    folder = images(tmp_path / "xrays", {"normal": 5, "tumor": 5})
    with pytest.raises(UserError, match="'tumor' is none of those agreed upon: normal, tumour"):
        site_data(folder, "north", 0, Classification(("normal", "tumour")), load_experiment())


def test_a_folder_for_each_class_is_for_classification_alone(tmp_path: Path) -> None:
    folder = images(tmp_path / "xrays", {"normal": 5, "tumour": 5})
    with pytest.raises(UserError, match=r"holds <class>.*, which is for classification"):
        site_data(folder, "north", 0, Multilabel(("normal", "tumour")), load_experiment())


def test_a_label_beyond_the_classes_is_refused(tmp_path: Path) -> None:
    file = write_npz(tmp_path / "data.npz", small_arrays()[0])
    with pytest.raises(UserError, match="label 2, but there are 2 classes from 0"):
        site_data(file, "north", 0, Classification(("a", "b")), small_experiment())


def test_parts_of_a_folder_stay_as_they_are(tmp_path: Path) -> None:
    for part, count in (("train", 8), ("val", 3), ("test", 4)):
        images(tmp_path / "xrays" / part, {"normal": count, "tumour": count})
    held = site_data(tmp_path / "xrays", "north", 0, Classification(("normal", "tumour")), load_experiment())
    assert held.class_counts() == {"train": [[8, 8]], "validation": [[3, 3]], "test": [[4, 4]]}
