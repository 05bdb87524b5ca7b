"""A FLARE job: configuration only, never code."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from orchard.sites.kit import CONTROLLER, EXECUTOR
from orchard.sites.members import FILE as MEMBERS
from orchard.sites.plan import FILE as PLAN
from orchard.sites.plan import Plan
from orchard.sites.revocation import FILE as REVOKED

TASK = "orchard"
MESSAGE = "message"
"""The key of our message in a FLARE message."""
PARCELS = "orchard_parcels"
"""The FLARE topic for fetching vectors."""
TOPIC = "orchard"
PRESENT = "present.json"
RESULTS = "orchard"
HEADER = ("experiment.toml", "federation.json", "environment.json")
"""The files that describe a run; the coordinator may read them from the start."""
STATISTICS = "statistics.json"
"""What the sites have told of their data, where a job asks for that."""
TEXTS = (*HEADER, "metrics.jsonl", "summary.json", STATISTICS)
"""All files that the coordinator may read; it accepts no others."""
POLL = 0.1
"""Seconds between a site's requests for tasks."""
START = 600.0
"""Seconds that a site waits for the server's job process to start."""


def write_job(folder: Path, plan: Plan, present: Sequence[str], kit: Path | None = None) -> Path:
    """Write a job for the sites in `present`; FLARE runs it only with all of them.

    From the coordinator's kit it takes the members of the day, and the revoked certificates.
    """
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    server = {
        "format_version": 2,
        "server": {"task_request_interval": POLL},
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
        "workflows": [{"id": "rounds", "path": CONTROLLER, "args": {}}],
    }
    client = {
        "format_version": 2,
        "default_task_fetch_interval": POLL,
        "max_runner_sync_timeout": START,
        "executors": [{"tasks": [TASK], "executor": {"path": EXECUTOR, "args": {}}}],
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
    }
    meta = {
        "name": plan.run,
        "resource_spec": {},
        "deploy_map": {"app": ["server", *present]},
        "min_clients": len(present),
        "mandatory_clients": list(present),
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=2), "utf-8")
    (config / "config_fed_server.json").write_text(json.dumps(server, indent=2), "utf-8")
    (config / "config_fed_client.json").write_text(json.dumps(client, indent=2), "utf-8")
    (config / PLAN).write_text(plan.to_json(), "utf-8")
    (config / PRESENT).write_text(json.dumps(list(present)), "utf-8")
    for name in (MEMBERS, REVOKED):
        if kit is not None and (kit / "local" / name).is_file():
            shutil.copyfile(kit / "local" / name, config / name)
    return folder
