"""A client that was never in a federation learns from what a finished run has left."""

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import orchard
from helpers import classes, method, small_arrays, small_experiment, small_run
from orchard.cli import app
from orchard.core.federation import Federation
from orchard.core.training import ClientContext, local_sgd
from orchard.data.client_arrays import ClientArrays
from orchard.data.site import site_data
from orchard.errors import UserError
from orchard.export.export import export_joined
from orchard.export.predict import load_predictor
from orchard.methods.registry import BUILT_IN
from orchard.runs.folder import RunFolder
from orchard.runs.joining import join
from orchard.runs.offer import Offer
from sites import write_npz
from test_own_tables import in_one_place, patients, plan_of, tables_at_sites


@pytest.fixture
def newcomer(tmp_path: Path) -> Path:
    """The data of a fifth client, of the same kind as those of the four of a small run."""
    return write_npz(tmp_path / "newcomer.npz", small_arrays(5)[4])


def content(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.name[0] != "."}


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_method_takes_in_a_newcomer_and_changes_nothing_of_the_run(
    name: str, newcomer: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    small_run(method=name, out=run)
    before = content(run)
    joined = join(run, newcomer, rounds=3)
    assert content(run) == before
    assert 0 <= joined.joined.round < 3
    assert joined.federation.clients == 5
    test = joined.client.test
    assert joined.joined.scores.test == joined.federation.task.measure(joined.module()(test.x).detach(), test.y)


def test_joining_separate_is_training_alone(newcomer: Path, tmp_path: Path) -> None:
    small_run(method="separate", out=tmp_path / "run")
    joined = join(tmp_path / "run", newcomer)
    assert torch.equal(joined.joined.model[0], joined.alone.model[0])
    assert joined.joined.scores == joined.alone.scores


def test_joining_fedavg_is_tuning_a_copy_of_the_last_average(newcomer: Path, tmp_path: Path) -> None:
    run = small_run(method="fedavg", out=tmp_path / "run")
    joined = join(tmp_path / "run", newcomer, rounds=1)
    experiment = small_experiment(method="fedavg", clients=5, rounds=1)
    data = site_data(newcomer, "newcomer", 4, run.task, experiment)
    federation = Federation(experiment, joined.federation.samples, (6,), classes(3))
    network = federation.network()
    tuned, _ = local_sgd(ClientContext(4, experiment, data.clients[0], network), 0, run.models[0][0])
    assert torch.equal(joined.joined.model[0], tuned)
    with torch.no_grad():
        right = run.personalised(0)(data.clients[0].test.x).argmax(1) == data.clients[0].test.y
    assert joined.received.test["accuracy"] == right.double().mean().item()


def test_joining_fedper_is_learning_a_head_for_the_frozen_body(newcomer: Path, tmp_path: Path) -> None:
    small_run(method=method("fedper", private=[""]), out=tmp_path / "private")  # all is head
    alone = join(tmp_path / "private", newcomer)
    assert torch.equal(alone.joined.model[0], alone.alone.model[0])


def two_groups(clients: int) -> list[ClientArrays]:
    """Clients see the same cases; every second one means another class by a label."""
    draw, means = np.random.default_rng(1), np.random.default_rng(0).normal(size=(3, 6))

    def one(shift: int) -> ClientArrays:
        y = draw.integers(3, size=90)
        x = (means[y] + 0.3 * draw.normal(size=(90, 6))).astype(np.float32)
        meant = (y + shift) % 3
        return ClientArrays(x[:60], meant[:60], x[60:], meant[60:])

    return [one(i % 2) for i in range(clients)]


@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize(
    ("settings", "rounds"),
    [
        (method("graft"), 4),
        (method("apple", initial="shared", steps="full", relationship_lr=0.02), 4),
        (method("fedfomo"), 2),  # later nobody may be better than its own model
    ],
)
def test_a_newcomer_finds_its_own_kind(settings: dict[str, object], rounds: int, group: int, tmp_path: Path) -> None:
    clients = two_groups(6)
    small_run(clients[:4], method=settings, rounds=8, out=tmp_path / "run")
    mine = write_npz(tmp_path / "mine.npz", clients[4 + group])
    joined = join(tmp_path / "run", mine, rounds=rounds)
    found = joined.diagnostics["relationships"]
    assert isinstance(found, list)
    same, others = (sum(found[i] for i in range(4) if (i % 2 == group) is kind) for kind in (True, False))
    assert same > others
    assert joined.joined.scores.test["accuracy"] > 0.9  # type: ignore[operator]
    if settings["name"] == "graft":
        assert others == 0


def test_an_offer_is_as_good_as_the_run(newcomer: Path, tmp_path: Path) -> None:
    small_run(method="apple", out=tmp_path / "run")
    Offer.read(tmp_path / "run").write(tmp_path / "offer")
    ones = [join(tmp_path / kind, newcomer) for kind in ("run", "offer")]
    assert torch.equal(*(one.joined.model[0] for one in ones))
    assert ones[0].diagnostics == ones[1].diagnostics
    assert ones[0].names == ones[1].names == ["client 0", "client 1", "client 2", "client 3", "newcomer"]


def test_an_offer_holds_no_relationship_and_no_personalised_model(tmp_path: Path) -> None:
    result = small_run(method="apple", out=tmp_path / "run")
    Offer.read(tmp_path / "run").write(tmp_path / "offer")
    offer = Offer.read(tmp_path / "offer")
    assert offer.server.keys() == {"cores"}
    assert not any(torch.equal(core, model) for core in offer.server["cores"] for model, _ in result.models)
    assert offer.experiment.dataset == "arrays"


# --- Tables ---


def table_of_another_site(tmp_path: Path) -> Path:
    file = tmp_path / "fifth.csv"
    patients(4).to_csv(file, index=False)
    return file


@pytest.mark.parametrize("table", [{}, {"scaling": "shared"}, {"target": "stay", "scaling": "shared"}])
def test_a_hospital_joins_a_consortium_whose_run_has_ended(tmp_path: Path, table: dict[str, object]) -> None:
    """What the server of separate sites offers is as good as a run in one place."""
    plan, fifth = plan_of(**table), table_of_another_site(tmp_path)
    consortium = tables_at_sites(tmp_path)
    consortium.run(plan)
    in_one_place(tmp_path, plan, out=tmp_path / "together")
    Offer.of(RunFolder(tmp_path / "server" / plan.run)).write(tmp_path / "offer")
    apart, together = join(tmp_path / "offer", fifth), join(tmp_path / "together", fifth)
    assert torch.equal(apart.joined.model[0], together.joined.model[0])
    assert apart.client.preparation == together.client.preparation
    shared = together.client.preparation == in_the_run(tmp_path / "together", fifth)
    assert shared is ("scaling" in table)
    export_joined(apart, tmp_path / "model.safetensors")
    assert load_predictor(tmp_path / "model.safetensors").task.name == apart.federation.task.name


def in_the_run(run: Path, data: Path) -> object:
    """How rows are prepared by the first client of a run."""
    held = RunFolder(run).header().distribution.preparations
    assert held
    return type(join(run, data, rounds=1).client.preparation).model_validate(held[0])  # type: ignore[union-attr]


# --- What is refused ---


def refused(run: Path, data: Path, **options: object) -> str:
    with pytest.raises(UserError) as refusal:
        join(run, data, **options)  # type: ignore[arg-type]
    return str(refusal.value)


def test_what_does_not_fit_is_refused_before_training(newcomer: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    small_run(out=run)
    wide = write_npz(tmp_path / "wide.npz", small_arrays(shape=(7,))[0])
    assert refused(run, wide) == f"{wide}: a sample is 7, but 6 in the run"
    more = write_npz(tmp_path / "more.npz", small_arrays(classes=5)[0])
    assert str(more) in refused(run, more)
    assert refused(run, newcomer, name="client 2") == "name = 'client 2': is one of the run's clients; choose another"
    assert refused(run, newcomer, rounds=0) == "rounds = 0: at least one"
    assert refused(tmp_path, newcomer) == f"{tmp_path}: is neither a run's folder nor an offer's"


def test_a_run_that_is_not_finished_offers_nothing(newcomer: Path, tmp_path: Path) -> None:
    with pytest.raises(orchard.Stopped):
        small_run(out=tmp_path / "run", stop=lambda: True)
    assert "the run is not finished" in refused(tmp_path / "run", newcomer)


def test_a_damaged_offer_is_refused_in_words(newcomer: Path, tmp_path: Path) -> None:
    small_run(out=tmp_path / "run")
    Offer.read(tmp_path / "run").write(tmp_path / "offer")
    (file,) = (tmp_path / "offer").glob("*.json")
    file.write_text(file.read_text().replace('"clients"', '"customers"'))
    assert "its checksum is wrong" in refused(tmp_path / "offer", newcomer)


# --- The command line ---


def test_joining_on_the_command_line(newcomer: Path, tmp_path: Path) -> None:
    small_run(method="graft", out=tmp_path / "run")
    offer, model = tmp_path / "offer", tmp_path / "clinic.safetensors"
    said = CliRunner().invoke(app, ["offer", str(tmp_path / "run"), "--to", str(offer)])
    assert said.output == f"written: {offer}; it holds what the server of graft holds, and no data\n"
    arguments = ["join", str(offer), "--data", str(newcomer), "--name", "clinic", "--rounds", "2", "--to", str(model)]
    said = CliRunner().invoke(app, arguments)
    lines = said.output.splitlines()
    assert lines[0].split() == ["clinic", "accuracy", "balanced", "accuracy", "AUROC"]
    assert [line.split()[0] for line in lines[1:4]] == ["as", "joined,", "alone,"]
    assert lines[4].startswith("on its 12 test samples, at the rounds that its ")
    assert lines[5].startswith("it turns most to client ")
    card = (tmp_path / "clinic.safetensors.md").read_text()
    assert "the others had finished training, and their models stayed as they were" in card
    assert "| true ↓ predicted →" in card  # on its own test samples
    assert load_predictor(model).task.name == "classification"


def test_a_file_that_cannot_be_written_is_refused_before_training(newcomer: Path, tmp_path: Path) -> None:
    small_run(out=tmp_path / "run")
    arguments = ["join", str(tmp_path / "run"), "--data", str(newcomer), "--to", "model.pkl"]
    said = CliRunner().invoke(app, arguments)
    assert isinstance(said.exception, UserError)
    assert str(said.exception) == "--to model.pkl: models are written as .safetensors, .pt2, .onnx"


def test_python_says_in_a_line_what_joining_was_worth(newcomer: Path, tmp_path: Path) -> None:
    small_run(method="graft", out=tmp_path / "run")
    joined = orchard.join(str(tmp_path / "run"), str(newcomer), rounds=1)
    mine, alone = (100 * one.scores.test["accuracy"] for one in (joined.joined, joined.alone))  # type: ignore[operator]
    assert repr(joined) == f"<Joined: newcomer, method graft, accuracy {mine:.1f} %, alone {alone:.1f} %>"
