"""What people are told about privacy: before a run, at a site, in a card, and on the page of the documentation."""

import json
from pathlib import Path
from typing import Any

import pytest

import orchard
from helpers import SMALL, classes, small_arrays, small_experiment
from orchard.core.federation import Federation
from orchard.export.export import export_model
from orchard.privacy.accounting import account_of
from orchard.privacy.settings import Privacy
from orchard.privacy.statement import before_a_run, promise, warnings
from orchard.report.content import contents_of
from orchard.report.privacy import Cost, cost_rows, document, keep, measured, noise_rows
from orchard.report.story import story
from orchard.runs.comparison import Spread
from orchard.runs.folder import RunFolder
from test_documents import ROOT


def test_every_client_is_told_what_it_spends_and_what_that_costs() -> None:
    experiment = small_experiment(privacy={"noise_multiplier": 1.0})
    said = before_a_run(experiment, {"north": 17, "south": 34}, 100).splitlines()
    assert said[0] == "privacy, for each record of a client, over the whole run at δ = 1e-05:"
    assert said[1] == "  north: ε = 13.5, n = 17, q = 0.471, 18 steps with σ = 1"
    assert said[2] == "  south: ε = 9.24, n = 34, q = 0.235, 30 steps with σ = 1"
    # √100·1/8: the deviation of the noise on a step, in units of clip.
    assert said[3].startswith(
        "  the noise on a step is 1.2 times as long as its gradient can be (north); accuracy is lost"
    )
    assert said[4] == "  ε = 13.5 promises little; most deployments choose 10 or less"
    assert "expect little more than guessing" in before_a_run(experiment, {"north": 17}, 100_000)
    large = small_experiment(privacy={"noise_multiplier": 1.0, "delta": 0.05})
    assert "  δ should be far below 1/n, and is not at b" in warnings(
        {"a": account_of(large, 17), "b": account_of(large, 34)}, 100
    )
    assert before_a_run(small_experiment(), {"north": 17}, 100) == ""


def test_other_queries_are_told_too() -> None:
    def line(method: str) -> str:
        experiment = small_experiment(method=method, privacy={"noise_multiplier": 1.0})
        return before_a_run(experiment, {"north": 17}, 100).splitlines()[1]

    assert line("apfl").endswith("18 steps with σ = 1, 2 gradients in each")
    assert line("fedfomo").endswith("σ = 1, 15 losses on validation data")
    assert line("graft").endswith("σ = 1, 6 losses on training data")


def test_advice_before_a_run_tells_it() -> None:
    found = orchard.check(data=small_arrays(), **{**SMALL, "privacy": {"noise_multiplier": 1.0}})
    assert found[0].startswith("privacy, for each record of a client")
    assert "exact means" not in found[0]


def test_the_report_tells_it(tmp_path: Path) -> None:
    orchard.run(data=small_arrays(), out=tmp_path / "run", **{**SMALL, "privacy": {"noise_multiplier": 1.0}})
    (content,) = contents_of([RunFolder(tmp_path / "run")])
    said = story(content, content.methods[0])
    assert "Their models are differentially private, record by record: noise of 1 times the clipping norm." in said
    assert any(sentence.startswith("The figures here are exact") for sentence in said)


def test_the_card_of_a_simulated_client_says_what_is_promised(tmp_path: Path) -> None:
    changes: dict[str, Any] = {**SMALL, "method": "fedavg-local", "privacy": {"noise_multiplier": 1.0}}
    orchard.run(data=small_arrays(), out=tmp_path / "run", **changes)
    _, card = export_model(tmp_path / "run", "0", tmp_path / "model.safetensors")
    text = card.read_text("utf-8")
    assert "ε = 13.5 at δ = 1e-05 over the whole run" in text
    assert "- figures on validation and test data, which are exact, and a round that is chosen by them" in text
    assert "- this model in the hands of somebody who knows the seed" in text
    assert "other runs on the same data: their ε add up" in text
    promised = promise(account_of(small_experiment(**changes), 17), Privacy(noise_multiplier=1.0))
    assert "by a factor of exp(ε) = " in promised
    assert promised in text


def cost(method: str, epsilon: float | None, *accuracies: float) -> Cost:
    multiplier = None if epsilon is None else (4 / epsilon, 8 / epsilon)
    return Cost("digits", method, epsilon, Spread.of(list(accuracies)), (100, 200), multiplier, (0, 1))


def test_costs_are_kept_and_tabled(tmp_path: Path) -> None:
    file = tmp_path / "privacy.json"
    keep(file, [cost("fedavg-local", None, 0.9, 0.9), cost("fedavg-local", 8.0, 0.5, 0.5)])
    keep(file, [cost("fedavg-local", 8.0, 0.7, 0.8), cost("fedavg-local", 1.0, 0.2, 0.2)])
    costs = measured(file)
    assert cost_rows(costs) == [
        ["federation", "method", "ε = 1", "ε = 8", "without"],
        ["`digits`", "`fedavg-local`", "20.00 ± 0.00", "75.00 ± 7.07", "90.00 ± 0.00"],
    ]
    assert noise_rows(costs) == [
        ["federation", "training samples", "σ at ε = 1", "σ at ε = 8"],
        ["`digits`", "100 to 200", "4.0 to 8.0", "0.5 to 1.0"],
    ]


def test_the_page_is_made_of_what_is_stored() -> None:
    page = document(ROOT / "results")
    assert page == (ROOT / "docs" / "privacy.md").read_text("utf-8")
    assert "{" not in page.replace("privacy={", "")
    assert json.loads((ROOT / "results" / "privacy.json").read_text("utf-8"))


@pytest.mark.parametrize("model", ["mlp", "logistic"])
def test_the_number_of_parameters_decides_how_long_the_noise_is(model: str) -> None:
    experiment = small_experiment(model=model, privacy={"noise_multiplier": 1.0})
    parameters = Federation(experiment, (17, 17), (6,), classes(3)).parameters
    times = (parameters**0.5) / 8
    assert f"the noise on a step is {times:.1f} times" in before_a_run(experiment, {"north": 17}, parameters)
