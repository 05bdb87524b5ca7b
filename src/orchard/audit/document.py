"""Audits that are kept together in one file, and the page of the documentation that is made from it.

python -m orchard.audit.document results docs/audit.md
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from orchard.audit.findings import Audit, parsed
from orchard.audit.table import ABOUT, notes_of, table_of
from orchard.runs.files import to_json
from orchard.text import markdown_table
from orchard.whole import write_durably

NAME = "audit.json"


def keep(folder: Path, audits: Sequence[tuple[str, Audit]]) -> Path:
    """Put audits into a folder's file, beside those of other runs; return the file."""
    file = folder / NAME
    others = json.loads(file.read_text("utf-8")) if file.exists() else {}
    content = {**others, **{label: asdict(found) for label, found in audits}}
    write_durably(file, to_json(content, indent=1) + "\n")
    return file


def document(folder: Path) -> str:
    """Return the page: what is written by hand, and the table of the audits that are kept."""
    file = folder / NAME
    audits = [(label, parsed(content, file)) for label, content in json.loads(file.read_text("utf-8")).items()]
    private = sorted((one for one in audits if one[1].epsilon), key=lambda one: (one[1].method, one[1].epsilon))
    parts = {
        "TABLE": markdown_table(*table_of([one for one in audits if not one[1].epsilon])),
        "PRIVATE": markdown_table(*table_of(private)),
        "ABOUT": [ABOUT],
        "NOTES": [f"- {note}" for note in notes_of(audits)],
    }
    text = (folder / "audit.md").read_text("utf-8")
    for name, lines in parts.items():
        text = text.replace(f"{{{name}}}", "\n".join(lines))
    return text


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(document(Path(sys.argv[1])), "utf-8")
