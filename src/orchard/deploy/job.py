"""A job as FLARE takes it: configuration only, never code."""

import json
from collections.abc import Sequence
from pathlib import Path

from orchard.deploy.provision import CONTROLLER, EXECUTOR
from orchard.plan import FILE as PLAN
from orchard.plan import Plan

TASK = "orchard"
TOPIC = "orchard"
PRESENT = "present.json"
RESULTS = "orchard"
BEGINNING = ("experiment.toml", "federation.json", "environment.json")
"""The files of a run folder that say what is run, which its coordinator may have from the start."""
TEXTS = (*BEGINNING, "metrics.jsonl", "summary.json")
"""All that its coordinator may have, and takes: no file of any other name."""
POLL = 0.1
"""Seconds between a site's questions whether there is something to do."""
START = 600.0
"""Seconds that a site waits for the server's process of a job to come up."""


def write_job(folder: Path, plan: Plan, present: Sequence[str]) -> Path:
    """Write a job for the sites that are there; without any of them it does not run."""
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
    return folder
