"""Privacy between sites: the noise is theirs alone, figures and counts stay, and a run goes on to the same bits."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from torch import Tensor

import orchard
from helpers import SMALL, small_arrays
from orchard.cli.display import print_result
from orchard.core.contract import Download
from orchard.data.site import site_data
from orchard.errors import RunFailed, UserError
from orchard.export.export import export_joined
from orchard.report.content import contents_of
from orchard.runs.folder import RunFolder
from orchard.sites.budget import said, spent
from orchard.sites.check import check
from orchard.sites.plan import Plan
from orchard.sites.report import SiteRun, export, report
from orchard.sites.worker import SiteWorker, lineage_of
from sites import SITES, Consortium, kit_of_north, small_plan, write_npz

NOISY: dict[str, Any] = {"noise_multiplier": 1.0}


def private_plan(run: str = "run", **changes: Any) -> Plan:
    return small_plan(run, privacy=NOISY, **changes)


def kept(consortium: Consortium) -> list[Tensor]:
    return [consortium.record(site)["last"]["vector"] for site in SITES]


def copy_keys(one: Consortium, other: Consortium) -> None:
    for site in SITES:
        folder = other.settings[site].records / "run"
        folder.mkdir(parents=True)
        (folder / "noise.key").write_bytes((one.settings[site].records / "run" / "noise.key").read_bytes())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    consortium = Consortium(tmp_path_factory.mktemp("private"))
    consortium.result = consortium.run(private_plan())  # type: ignore[attr-defined]
    return consortium


def test_the_noise_is_the_sites_own(finished: Consortium, tmp_path: Path) -> None:
    """Not that of a simulation, which everybody can repeat; and another in every run, unless the key is the same."""
    simulated = orchard.run(data=small_arrays(), **private_plan().experiment.given())
    assert not any(torch.equal(mine, model) for mine, (model, _) in zip(kept(finished), simulated.models, strict=True))
    again, same = Consortium(tmp_path / "again"), Consortium(tmp_path / "same")
    copy_keys(finished, same)
    for consortium in (again, same):
        consortium.run(private_plan())
    assert not any(map(torch.equal, kept(finished), kept(again)))
    assert all(map(torch.equal, kept(finished), kept(same)))
    key = finished.settings["north"].records / "run" / "noise.key"
    assert len(key.read_bytes()) == 32
    assert key.stat().st_mode & 0o077 == 0


def test_a_run_that_was_stopped_ends_as_without_that(finished: Consortium, tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    copy_keys(finished, consortium)
    consortium.run(private_plan(), stop_after=2)
    consortium.restart_sites()
    consortium.run(private_plan())
    assert all(map(torch.equal, kept(finished), kept(consortium)))


def test_no_figure_and_no_count_leaves_a_site(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    said: list[Mapping[str, Any]] = []

    def listen(site: str, answer: Any) -> Any:
        said.append(answer)
        return answer

    consortium.altered = listen
    result = consortium.run(private_plan(), stop_after=4)
    enrolments, updates = said[:4], said[4:]
    assert all(answer["counts"] == {} for answer in enrolments)
    assert all(answer["samples"]["train"] > 0 for answer in enrolments)
    figures = ("loss", "after_training", "after_aggregation", "after_finetuning")
    assert len(updates) == 4 + 4 * 4
    assert all(answer[figure] is None for answer in updates for figure in figures)
    assert result.evaluated_rounds() == 0
    assert len(result.rounds) == 3
    assert result.summary()["rounds"] == 3
    assert consortium.record("north")["history"][-1]["loss"] is None  # of the exchange in which nobody trains
    assert consortium.record("north")["history"][0]["loss"] > 0  # for the site itself


def test_whatever_a_round_is_made_of_its_noise_depends_on() -> None:
    def of(before: str = "ab", samples: Sequence[int] = (17, 22), round: int = 1, second: float = 2.0) -> str:
        return lineage_of(before, samples, Download(round, {"core 1": torch.tensor([1.0, second])}))

    assert of() == of()
    assert len({of(), of(before="cd"), of(samples=(17, 23)), of(round=2), of(second=2.5)}) == 5


def north(consortium: Consortium, plan: Plan) -> SiteWorker:
    """Return a process of the site north that has started a run."""
    worker = SiteWorker("north", lambda: consortium.settings["north"])
    worker.handle({"what": "enrol", "plan": plan.to_json(), "orchard": orchard.__version__})
    answer = worker.handle({"what": "start", "samples": [17, 22, 28, 34], "shape": [6]})
    assert "failure" not in answer
    return worker


def answer_of(worker: SiteWorker, round: int, value: float = 0.0) -> Tensor:
    """Return what a site uploads if the server sends it the same value in all places."""
    assert worker.started is not None
    sent = [[name, np.full(n, value, "<f4").tobytes()] for name, n in worker.started.federation.traffic.down.items()]
    answer = worker.handle({"what": "round", "round": round, "vectors": sent})
    assert "failure" not in answer, answer
    return torch.frombuffer(bytearray(answer["upload"][0][1]), dtype=torch.float32)


def test_a_site_restored_from_a_backup_never_gives_the_same_noise_for_another_gradient(tmp_path: Path) -> None:
    """Else a server that leaves out a round the second time takes one upload from the other, and no noise is left.

    Download and key are the same. The client's own state is not: with `fedper` its head, trained in the round between.
    """
    loud = small_plan(method="fedper", privacy={"noise_multiplier": 1e6})

    def third(home: str, rounds: Sequence[int]) -> Tensor:
        consortium = Consortium(tmp_path / home)
        records = consortium.settings["north"].records / "run"
        records.mkdir(parents=True)
        (records / "noise.key").write_bytes(b"k" * 32)
        worker = north(consortium, loud)
        return [answer_of(worker, r) for r in rounds][-1]

    one, same, other = third("a", [0, 1, 2]), third("b", [0, 1, 2]), third("c", [0, 2])
    assert torch.equal(one, same)
    # An upload is hardly anything but noise: of the same noise they would be as good as parallel.
    assert abs(float(torch.cosine_similarity(one, other, dim=0))) < 0.5


def test_of_two_processes_of_a_site_none_answers_a_round_that_the_other_has_answered(tmp_path: Path) -> None:
    """A server may deploy the same plan twice; each process remembers what it wrote last itself."""
    consortium = Consortium(tmp_path)
    one, other = (north(consortium, private_plan(method="fedavg")) for _ in range(2))
    answer_of(one, 0)
    first = answer_of(other, 1)
    assert torch.equal(answer_of(one, 1, value=0.5), first)
    assert not torch.equal(answer_of(one, 2, value=0.5), first)


def test_a_round_that_failed_is_not_tried_with_anything_else(tmp_path: Path) -> None:
    """Whether training diverges depends on the data, and each try would have noise of its own."""
    diverging = small_plan(method="fedavg", lr=1e38, privacy={"noise_multiplier": 1e3})
    worker = north(Consortium(tmp_path), diverging)

    def failure(value: float, round: int = 0) -> object:
        assert worker.started is not None
        down = worker.started.federation.traffic.down
        sent = [[name, np.full(n, value, "<f4").tobytes()] for name, n in down.items()]
        return worker.handle({"what": "round", "round": round, "vectors": sent})["failure"]

    assert failure(0.0) == "training not finite"
    assert failure(0.5) == "round spent"
    assert failure(0.0) == "training not finite"  # the same once more tells nothing new
    assert failure(0.5, round=1) == "training not finite"
    worker.handle({"what": "enrol", "plan": private_plan(method="fedavg").to_json(), "orchard": orchard.__version__})
    worker.handle({"what": "start", "samples": [17, 22, 28, 34], "shape": [6]})
    assert failure(0.0, round=2) == "plan changed"  # nothing is recorded, but something is spent


def test_without_its_key_a_site_does_not_go_on(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    consortium.run(private_plan(), stop_after=2)
    (consortium.settings["east"].records / "run" / "noise.key").unlink()
    consortium.restart_sites()
    result = consortium.run(private_plan())
    assert result.rounds[-1].failures == {2: "east, round 4: noise key missing"}


def site_run_of(consortium: Consortium, site: str) -> SiteRun:
    return SiteRun(consortium.record(site), private_plan(), consortium.settings[site].data)


def test_the_exported_model_is_the_last_and_its_card_says_what_is_promised(
    finished: Consortium, tmp_path: Path
) -> None:
    run = site_run_of(finished, "north")
    with pytest.raises(UserError, match="that choice would show in the model; take the last round"):
        export(run, tmp_path / "model.safetensors", "validation")
    card = export(run, tmp_path / "model.safetensors").read_text("utf-8")
    assert "ε = 13.5 at δ = 1e-05" in card
    assert "What it says about single records" in card
    assert "several records of one person" in card
    assert "who knows the seed" not in card  # the site's noise is a secret
    assert "accuracy" not in card
    assert "17 for train, 3 for validation" in card
    assert "| a |" not in card  # no count of a class
    assert "noise_multiplier = 1.0" in card
    assert "that after round 3" in card
    assert any(line.startswith("privacy: ε = 13.5, n = 17") for line in report(run))


def test_check_says_what_is_promised_and_that_no_figure_leaves(tmp_path: Path) -> None:
    Consortium(tmp_path)
    kit, experiment = kit_of_north(tmp_path / "north-kit"), tmp_path / "experiment.toml"
    table = {"method": "apple", "model": "mlp", "rounds": 3, "epochs": 2, "batch_size": 8, "privacy": NOISY}
    experiment.write_text(tomli_w.dumps({**table, "deploy": {"classes": ["a", "b", "c"]}}))
    said = list(check(kit, experiment))
    assert "  once: the shape of a sample, and the number of samples in each part" in said
    assert (
        "  each round: 'core' (8,012 bytes), made of noised gradients, and the names of the vectors it selects next"
        in said
    )
    stays = "samples, directed relationships, the personalised model, figures, logs"
    assert f"What does not: {stays}." in said
    assert any(line.startswith("Privacy: differential privacy for each record") and "ε = 13.5" in line for line in said)
    assert "  other runs on the same data: their ε add up" in said
    assert any(line.startswith("note: privacy, for each record") for line in said)
    assert not list((tmp_path / "north" / "records").iterdir())  # no key was made


def test_a_site_may_limit_what_all_its_runs_spend_together(tmp_path: Path) -> None:
    """Each of these runs has ε = 13.5 at north; a run that goes on is not counted twice."""
    consortium = Consortium(tmp_path)
    consortium.settings["north"] = consortium.settings["north"].changed(epsilon=20.0)
    with pytest.raises(RunFailed, match=r"north .privacy needed here."):
        consortium.run(small_plan())
    with pytest.raises(RunFailed, match=r"north .delta not below one in n."):
        consortium.run(small_plan(privacy={"epsilon": 1.0, "delta": 0.1}))
    consortium.run(private_plan(), stop_after=2)
    consortium.restart_sites()
    consortium.run(private_plan())
    with pytest.raises(RunFailed, match=r"north .privacy spent here."):
        consortium.run(private_plan(run="again"))
    consortium.settings["north"] = consortium.settings["north"].changed(epsilon=27.1)
    consortium.run(private_plan(run="again"))
    limited = consortium.settings["north"]
    assert spent(limited.records) == pytest.approx(2 * 13.5, abs=0.1)
    assert list(said(private_plan(run="third"), 17, limited)) == [
        "Runs recorded here have spent ε = 27; with this one it is 40.6.",
        "This site allows ε = 27.1 for all runs together, and none without [privacy].",
    ]


def test_a_label_does_not_decide_into_which_part_other_records_go(tmp_path: Path) -> None:
    """Where Orchard divides a site's data by itself; else one record would show in the training of several."""

    def divided(labels: Sequence[int], plan: Plan) -> list[list[float]]:
        file = tmp_path / "data.npz"
        np.savez(file, x=np.arange(len(labels), dtype=np.float32)[:, None], y=np.array(labels))
        (client,) = site_data(file, "north", 0, plan.task, plan.experiment).clients
        return [part.x[:, 0].tolist() for part in client.parts()]

    labels = [0, 1, 2] * 20
    changed = [2, *labels[1:]]
    parts = divided(labels, private_plan())
    assert parts == divided(changed, private_plan())
    assert [len(part) for part in parts] == [40, 8, 12]
    assert divided(labels, small_plan()) != divided(changed, small_plan())


def test_a_newcomer_is_private_too(tmp_path: Path) -> None:
    """It has noise of its own, which nobody can repeat, and takes the model of its last round."""
    changes: dict[str, Any] = {**SMALL, "method": "fedavg-local", "privacy": NOISY}
    orchard.run(data=small_arrays(), out=tmp_path / "run", **changes)
    file = write_npz(tmp_path / "newcomer.npz", small_arrays(5)[4])
    one, other = (orchard.join(tmp_path / "run", file, rounds=2) for _ in range(2))
    assert one.joined.round == other.joined.round == 1
    assert not torch.equal(one.joined.model[0], other.joined.model[0])
    card = export_joined(one, tmp_path / "model.safetensors").read_text("utf-8")
    assert "The model is that after round 2" in card
    assert "accuracy" not in card
    assert "What it says about single records" in card


def test_the_server_has_no_figure_to_show(finished: Consortium, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(finished.home / "server" / "run")
    with pytest.raises(UserError, match=r"its figures stay at the sites, under \[privacy\]"):
        contents_of([folder])
    summary = folder.read("summary.json")
    assert summary["bmcta"] is None
    assert [round(epsilon, 1) for epsilon in summary["privacy"]["epsilon"]] == [13.5, 10.7, 9.9, 9.2]
    print_result(folder.result(), folder.path)
    assert "figures stay at the sites" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"purpose": "statistics"}, "statistics have no noise"),
        ({"fraction": 0.5}, "is taken of every class, by the labels"),
        ({"task": "regression"}, r"'a' would be standardised by an exact mean.*\[scale\] \"a\" = "),
        (
            {"table": {"target": "ill", "columns": {"age": "number", "sex": ["f", "m"]}}},
            "'age' would be standardised by an exact mean",
        ),
    ],
)
def test_what_has_no_noise_is_refused(changes: dict[str, Any], why: str) -> None:
    experiment = {"privacy": NOISY, **changes}
    purpose = experiment.pop("purpose", "training")
    with pytest.raises(UserError, match=why):
        small_plan(**experiment).changed(purpose=purpose)
