"""Startup kits: their format, the classes that they name, and what a server keeps and its processes need."""

import json
import logging
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from orchard import __version__
from orchard.errors import UserError
from orchard.runs.files import check_format

Owner = Literal["site", "server", "coordinator"]

FORMAT = 2
FILE = "local/kit.json"
WHOSE: dict[Owner, str] = {"site": "fed_client.json", "server": "fed_server.json", "coordinator": "fed_admin.json"}
"""The file in a kit's `startup` that says whose it is."""
CONTROLLER = "orchard.sites.controller.RunController"
"""What FLARE runs at the server."""
EXECUTOR = "orchard.sites.executor.SiteExecutor"
"""What FLARE runs at a site."""
ADMISSION = "orchard.sites.admission.Admission"
"""What FLARE runs at the server besides."""
SERVER = "local/server.toml"
"""Where the kit of a server says where its storage is."""
HEARTBEATS = 60
"""Seconds without a heartbeat after which a site counts as gone."""
CHUNK = 2**19
"""Bytes per chunk of a message. Even a short message takes a whole chunk of memory."""
SERVER_ENVIRONMENT = {
    "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": str(HEARTBEATS // 2),
    "MALLOC_MMAP_THRESHOLD_": str(2 * CHUNK),
    "MALLOC_TRIM_THRESHOLD_": str(32 * CHUNK),
    "MALLOC_ARENA_MAX": "2",
}
"""Variables of a server's processes: they shorten the wait for a lost site, and tune malloc for messages.

Models are above the mmap threshold, so their memory goes back to the system at once. The chunks that they are sent in
are below it and stay with the process: requesting them again each time would take most of a round.
"""


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


def check_kind(kit: Path, kind: Owner) -> None:
    """Raise unless a folder is the startup kit of such a party."""
    check_kit(kit)
    found = next((other for other, file in WHOSE.items() if (kit / "startup" / file).is_file()), None)
    if found is None:
        raise UserError(f"{kit}: is not a startup kit (made by: orchard deploy init)")
    if found != kind:
        raise UserError(f"{kit}: is the startup kit of a {found}; a {kind}'s is needed here")


def true_kit(workspace: Path) -> Path:
    """Return the kit whose files a folder has links to: see `party.py`. A kit is its own."""
    return (workspace / FILE).resolve().parents[1]


def storage_of(kit: Path) -> Path:
    """Return the folder in which the server of a kit keeps its runs."""
    return Path(tomllib.loads((kit / SERVER).read_text("utf-8"))["storage"])


def need_flare() -> None:
    """Raise if FLARE is not installed; silence its log, which is meant for its developers."""
    if find_spec("nvflare") is None:
        raise UserError("silos on separate machines need: pip install 'orchard[deploy]'")
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)
