"""Sites in this process: each with its own file, settings and record, reached by messages as on separate machines."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch

from helpers import small_arrays, small_experiment
from orchard.data.client_arrays import ClientArrays
from orchard.engines.flare.messages import Message
from orchard.experiment import Experiment
from orchard.runs.result import Result
from orchard.sites.consortium import FILE as CONSORTIUM
from orchard.sites.consortium import Consortium as Agreed
from orchard.sites.coordinator import coordinate, engine_for
from orchard.sites.kit import mark_kit
from orchard.sites.plan import Agreement, Plan
from orchard.sites.record import SiteRecord
from orchard.sites.settings import SiteSettings
from orchard.sites.worker import SiteWorker

SITES = ["north", "south", "east", "west"]


def write_npz(path: Path, arrays: ClientArrays) -> Path:
    given = {name: array for name, array in vars(arrays).items() if isinstance(array, np.ndarray)}
    np.savez(path, **given)  # type: ignore[arg-type]
    return path


def kit_of_north(kit: Path, home: str = "../north") -> Path:
    """Make as much of a site's kit as the commands need that go without FLARE; its data and records are in `home`."""
    for name in ("startup", "local"):
        (kit / name).mkdir(parents=True)
    mark_kit(kit)
    server = {"service": {"target": "hub.example.org:8002"}}
    (kit / "startup" / "fed_client.json").write_text(json.dumps({"servers": [server], "client": {"fqsn": "north"}}))
    (kit / "startup" / "rootCA.pem").write_text("the authority's certificate")
    agreed = Agreed(name="lungs", server="hub.example.org", coordinator="a@b.example", sites=SITES)
    (kit / CONSORTIUM).write_text(tomli_w.dumps(agreed.model_dump()))
    (kit / "local" / "site.toml").write_text(f'data = "{home}/data.npz"\nrecords = "{home}/records"\n')
    return kit


def small_plan(run: str = "run", agreement: Mapping[str, object] | None = None, **changes: object) -> Plan:
    experiment: Experiment = small_experiment(**changes)
    agreed = Agreement.model_validate({"classes": ["a", "b", "c"], **(agreement or {})})
    return Plan(run=run, sites=SITES, experiment=experiment, agreement=agreed)


class Consortium:
    """A server's folder and the folders of its sites; `carry` is the wire between them."""

    def __init__(self, home: Path, arrays: Sequence[ClientArrays] | None = None) -> None:
        self.home = home
        self.settings = {}
        for site, given in zip(SITES, arrays or small_arrays(), strict=True):
            (home / site).mkdir(parents=True)
            data = write_npz(home / site / "data.npz", given)
            self.settings[site] = SiteSettings(data=data, records=home / site / "records")
        self.altered: Callable[[str, Message], Message | str] = lambda site, answer: answer
        self.restart_sites()

    def restart_sites(self) -> None:
        self.workers = {site: SiteWorker(site, lambda site=site: self.settings[site]) for site in SITES}  # type: ignore[misc]

    def carry(self, requests: Mapping[str, Message]) -> dict[str, Message | str]:
        return {
            site: self.altered(site, self.workers[site].handle(request)) for site, request in sorted(requests.items())
        }

    def run(self, plan: Plan, present: Sequence[str] = SITES, stop_after: int | None = None) -> Result:
        """Let the server run until it is done or told to stop after so many exchanges."""
        seen: list[Result] = []  # the figures before the first exchange, then those after each

        def stop() -> bool:  # asked after an exchange, before its figures are shown
            return stop_after is not None and len(seen) >= stop_after

        engine = engine_for(plan, list(present), self.carry)
        coordinate(plan, self.home / "server" / plan.run, engine, seen.append, stop)
        return seen[-1]

    def record(self, site: str, run: str = "run") -> dict[str, Any]:
        found = SiteRecord(self.settings[site].records / run, {}).newest()
        assert found is not None
        return found


def figures(result: Result) -> list[Any]:
    """All that a server may see of a run: no private figures, no times."""
    private = ("relationships", "alpha", "cluster", "time", "seconds")
    return [{k: v for k, v in entry.as_json().items() if k not in private} for entry in result.rounds]


def same_models(consortium: Consortium, result: Result) -> bool:
    """Tell whether each site holds, bit for bit, the model that its client has in a simulation."""
    kept = [consortium.record(site)["last"] for site in SITES]
    return all(torch.equal(mine["vector"], model[0]) for mine, model in zip(kept, result.models, strict=True))
