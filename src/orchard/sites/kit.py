"""Startup kits: their format, and the only two classes that a job may use."""

import json
from pathlib import Path

from orchard import __version__
from orchard.runs.files import check_format

FORMAT = 2
FILE = "local/kit.json"
CONTROLLER = "orchard.sites.controller.RunController"
"""What FLARE runs at the server."""
EXECUTOR = "orchard.sites.executor.SiteExecutor"
"""What FLARE runs at a site."""


def mark_kit(kit: Path) -> None:
    """Write the format of a new kit into it."""
    (kit / FILE).write_text(json.dumps({"format": FORMAT, "orchard": __version__}) + "\n", "utf-8")


def check_kit(kit: Path) -> None:
    """Raise if a kit has another format: it would allow other classes."""
    if (kit / "local").is_dir() and (kit / "startup").is_dir():
        try:
            found = json.loads((kit / FILE).read_text("utf-8")).get("format")
        except (OSError, ValueError, AttributeError):
            found = None
        check_format(found, FORMAT, "startup kit (made by: orchard deploy init)", kit)
