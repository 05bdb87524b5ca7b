"""Startup kits: their format, the only two classes that a job may use, and where the server keeps what it has."""

import json
import tomllib
from pathlib import Path

from orchard import __version__
from orchard.runs.files import check_format

FORMAT = 2
FILE = "local/kit.json"
CONTROLLER = "orchard.sites.controller.RunController"
"""What FLARE runs at the server."""
EXECUTOR = "orchard.sites.executor.SiteExecutor"
"""What FLARE runs at a site."""
ADMISSION = "orchard.sites.admission.Admission"
"""What FLARE runs at the server besides."""
SERVER = "local/server.toml"


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


def storage_of(kit: Path) -> Path:
    """Return the folder in which the server of a kit keeps its runs."""
    return Path(tomllib.loads((kit / SERVER).read_text("utf-8"))["storage"])
