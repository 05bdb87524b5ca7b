"""What `orchard methods` says of each method, and the page of the documentation made from it."""

from itertools import product
from pathlib import Path

import pytest
from typer.testing import CliRunner

import orchard
from orchard.cli import app
from orchard.methods.description import Parameter, as_page, describe
from orchard.methods.registry import BUILT_IN, method_settings
from orchard.settings import validated

PAGE = Path(__file__).parent.parent / "docs" / "methods.md"


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_method_says_what_it_does_and_what_travels_with_its_paper(name: str) -> None:
    one = describe(name)
    assert one.does.endswith(".")
    assert len(one.does) < 110
    assert all([one.travels, one.keeps])
    assert "https://arxiv.org/abs/" in one.paper or name in ("separate", "graft")
    assert "←" in one.paper or "=" in one.paper
    assert all(parameter.meaning and parameter.allowed for parameter in one.parameters)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_value_of_a_grid_is_one_that_the_method_takes(name: str) -> None:
    settings = method_settings(name)
    for values in product(*settings.grid.values()):
        validated(settings, {"name": name, **dict(zip(settings.grid, values, strict=True))})
    for parameter, tried in settings.grid.items():
        assert settings.model_fields[parameter].default in tried, "else tuning may end behind the default"


def test_parameters_come_with_default_range_and_meaning() -> None:
    assert describe("ditto").parameters == [
        Parameter("lam", "0.1", "≥ 0", "0.01, 0.1, 1.0", "λ, the pull towards the global model")
    ]
    allowed = {parameter.name: parameter.allowed for parameter in describe("apple").parameters}
    assert allowed["scheduler"] == "cos, exp"
    assert allowed["scheduler_fraction"] == "0 to 1"
    assert allowed["budget"] == "whole numbers, ≥ 1, none"
    assert {p.name: p.allowed for p in describe("scaffold").parameters} == {"global_lr": "> 0"}
    assert {p.name: p.default for p in describe("apfl").parameters} == {"alpha": "0.5", "adaptive": "true"}


def test_the_page_is_what_the_methods_say() -> None:
    assert PAGE.read_text("utf-8") == as_page(list(BUILT_IN)), "write it anew: make documents"


def test_the_command_lists_all_and_explains_one() -> None:
    listed = CliRunner().invoke(app, ["methods"]).stdout
    assert all(name in listed for name in BUILT_IN)
    assert "private: its directed relationships." in " ".join(listed.split())
    explained = CliRunner().invoke(app, ["methods", "fedprox"]).stdout
    assert "w_i ← E epochs" in explained
    assert "0.001, 0.01, 0.1, 1.0" in " ".join(explained.split())
    assert "orchard run --method fedprox --set method.mu=…" in explained
    assert "It has no parameters." in CliRunner().invoke(app, ["methods", "separate"]).stdout


def test_an_unknown_method_is_refused() -> None:
    refused = CliRunner().invoke(app, ["methods", "appel"])
    assert isinstance(refused.exception, orchard.UserError)
    assert "did you mean 'apple'?" in str(refused.exception)
