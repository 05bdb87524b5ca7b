"""Every setting and every command is on a page of the documentation, with what it means."""

from pathlib import Path

import pytest
import typer

from orchard.cli import app
from orchard.cli.reference import GROUPS, commands_page, settings_page
from orchard.data.partitions import PARTITIONS
from orchard.fields import Described, described
from orchard.settings import Settings

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize(
    "group", [*(group for _, _, group in GROUPS), *PARTITIONS.values()], ids=lambda one: one.__name__
)
def test_every_setting_says_what_it_means(group: type[Settings]) -> None:
    assert all(one.meaning and one.default and one.allowed for one in described(group))


def test_settings_come_with_default_and_allowed_values() -> None:
    every = {one.name: one for _, _, group in GROUPS for one in described(group)}
    assert every["fraction"] == Described(
        "fraction", "1.0", "> 0, ≤ 1", "share of the training data used; tests stay whole"
    )
    assert every["method"].default == "graft"
    assert every["out"].allowed == "a path, none"
    assert every["scaling"].allowed == "own, shared"
    assert every["target"].default == "must be set"
    assert every["window"].allowed == "a list of numbers, none"


def test_the_pages_are_what_the_code_says() -> None:
    assert (DOCS / "settings.md").read_text("utf-8") == settings_page(), "write it anew: make documents"
    assert (DOCS / "commands.md").read_text("utf-8") == commands_page(), "write it anew: make documents"


def test_every_command_has_its_usage_and_options() -> None:
    page = commands_page()
    for name in typer.main.get_command(app).commands:  # type: ignore[attr-defined]
        assert f"\n## orchard {name}" in page
    assert "\n## orchard site export\n" in page
    assert "- `--client <str>`: The client's number, from 0, or its name. [required]\n" in page
