"""Every setting and every command, as two pages of the documentation.

``python -m orchard.cli.reference docs`` writes `settings.md` and `commands.md`.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from orchard.cli import app
from orchard.data.catalogue import DEFAULTS, TABLE_DEFAULTS
from orchard.data.medical.scans import MedicalSettings
from orchard.data.partitions import PARTITIONS, Ownership
from orchard.data.shifts import ShiftSettings
from orchard.data.tables.settings import TableSettings
from orchard.experiment import Experiment, RunOptions
from orchard.fields import Described, described
from orchard.privacy.settings import Privacy
from orchard.settings import Settings
from orchard.sites.consortium import Consortium
from orchard.sites.plan import Agreement
from orchard.sites.settings import SiteSettings
from orchard.text import markdown_table

SETTINGS_OPEN = """# Settings

Every setting, with the values that are allowed; `make documents` writes this page from the classes that check them. A
file has them as TOML, the command line as `--set NAME=VALUE`, Python as `orchard.run(NAME=VALUE)`; those of a table are
`--set TABLE.NAME=VALUE`. [Using Orchard](usage.md#an-experiment-in-a-file) shows such a file.
"""
COMMANDS_OPEN = """# Commands

What `orchard COMMAND --help` says; `make documents` writes this page from it. [Using Orchard](usage.md#commands) shows
what they are for.
"""

GROUPS: Sequence[tuple[str, str, type[Settings]]] = (
    ("Experiment", "They decide the result of a run.", Experiment),
    ("Run options", "They do not decide the result, but for the last bits.", RunOptions),
    ("[table]", "What each column of a table is for: see [data.md](data.md#tables).", TableSettings),
    ("[images]", "How DICOM and NIfTI files are read: see [data.md](data.md#medical-images).", MedicalSettings),
    ("[shift]", "How groups of clients differ: see [data.md](data.md#who-holds-what).", ShiftSettings),
    ("[privacy]", "Differential privacy for each record: see [privacy.md](privacy.md).", Privacy),
    ("[deploy]", "What sites agree on, in the experiment's file: see [deploy.md](deploy.md).", Agreement),
    ("consortium.toml", "Who takes part, written by the coordinator: see [deploy.md](deploy.md).", Consortium),
    ("site.toml", "What a site decides for itself: see [deploy.md](deploy.md).", SiteSettings),
)


def settings_page() -> str:
    """Return a table of each group of settings, and of the defaults that datasets change."""
    lines = [SETTINGS_OPEN]
    for title, about, group in GROUPS:
        lines += [f"## {title}", "", about, "", *_table((one.name, one) for one in described(group)), ""]
    lines += ["## [partition]", "", "Who holds what: see [data.md](data.md#who-holds-what).", "", *_partitions(), ""]
    lines += ["## [method]", "", "Each method has its own: see [Methods](methods.md).", ""]
    lines += ["## Defaults of data", "", "Where data are small, other defaults hold.", "", *_defaults()]
    return "\n".join(lines) + "\n"


def _table(settings: Iterable[tuple[str, Described]]) -> list[str]:
    rows = [(f"`{name}`", one.default, one.allowed, one.meaning) for name, one in settings]
    return markdown_table(("setting", "default", "allowed", "meaning"), rows)


def _partitions() -> list[str]:
    shared = described(Ownership)
    own = [(f"{one.name}` of `{name}", one) for name, kind in PARTITIONS.items() for one in described(kind)]
    which = Described("name", "practical", ", ".join(PARTITIONS), "which partition")
    return _table([*((one.name, one) for one in (which, *shared)), *(row for row in own if row[1] not in shared)])


def _defaults() -> list[str]:
    every = {**{f"`{name}`": values for name, values in DEFAULTS.items()}, "a table": TABLE_DEFAULTS}
    return markdown_table(("data", "defaults"), [(name, ", ".join(_plain(values))) for name, values in every.items()])


def _plain(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield each setting as TOML; those of a table with a dot."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _plain({f"{name}.{inner}": one for inner, one in value.items()})
        else:
            yield f"`{name} = {json.dumps(value)}`"


def commands_page() -> str:
    """Return usage, arguments and options of each command."""
    top = typer.main.get_command(app)
    lines = [COMMANDS_OPEN]
    for command, context in commands_in(top, typer.Context(top, info_name="orchard")):
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        lines += [f"## {context.command_path}", "", f"{command.help}", "", "```", usage, "```", ""]
        records = [parameter.get_help_record(context) for parameter in command.params]
        lines += [*(f"- `{names}`: {meaning.replace('  [', ' [')}" for names, meaning in filter(None, records)), ""]
    return "\n".join(lines)


def commands_in(command: Any, context: typer.Context) -> Iterator[tuple[Any, typer.Context]]:
    """Return all commands, those of groups too."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands_in(inner, typer.Context(inner, info_name=name, parent=context))
    if not hasattr(command, "commands"):
        yield command, context


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "settings.md").write_text(settings_page(), "utf-8")
    (folder / "commands.md").write_text(commands_page(), "utf-8")
