"""What audits of the runs of a report found."""

from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

from orchard.audit.findings import read_audit
from orchard.audit.table import ABOUT, labels_of, notes_of, table_of
from orchard.report.views import Leaks
from orchard.runs.folder import RunFolder
from orchard.text import readable


def leaks_of(folders: Sequence[RunFolder]) -> Leaks | None:
    """Return what the audits of those runs found that were audited; None if none was."""
    audited = [(folder.path, found) for folder in folders if (found := read_audit(folder.path))]
    if not audited:
        return None
    labels = map(readable, labels_of([path for path, _ in audited], [found for _, found in audited]))
    named = list(zip(labels, (found for _, found in audited), strict=True))
    head, rows = table_of(named)
    files = [(label, path / "audit" / "recovered.png") for (label, _), (path, _) in zip(named, audited, strict=True)]
    pictures = [(label, _address(file)) for label, file in files if file.is_file()]
    return Leaks(head, rows, [ABOUT, *map(readable, notes_of(named))], pictures)


def _address(picture: Path) -> str:
    return f"data:image/png;base64,{b64encode(picture.read_bytes()).decode()}"
