"""Startup kits: FLARE makes keys and certificates, and what a party allows is then narrowed to what Orchard needs.

Jobs cannot carry code (`byoc`), name no classes but Orchard's two, and open no shell; logs stay where they are
written. The authority's folder holds the key with which more kits can be made: whoever has it can let anybody in.
"""

import json
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w

from orchard.consortium import FILE as CONSORTIUM
from orchard.consortium import Consortium
from orchard.errors import Refusal
from orchard.site.settings import FILE as SITE

CONTROLLER = "orchard.deploy.controller.RunController"
EXECUTOR = "orchard.site.executor.SiteExecutor"
SERVER = "local/server.toml"
PRIVATE = 0o600
HEARTBEATS = 60
"""Seconds without a sign of life after which a site counts as gone."""
CHUNK = 2**19
"""Bytes of a message that travel at a time. Every message has a block of this size, however short it is."""

RIGHTS = {
    "server": (
        "submit_job",
        "check_status",
        "list_jobs",
        "get_job_meta",
        "abort_job",
        "download_job",
        "app_command",
    ),
    "site": ("submit_job", "check_status", "abort_job"),
}
"""All that the coordinator may ask of a server and of a site; there are no other people. Whatever is not named is
refused: code in jobs (byoc), remote shell commands, reading errors and logs, restarting a site or locking it out."""

SITE_TEMPLATE = """# What this site decides for itself. Paths are seen from the kit's folder.
data = "../data.npz"        # an .npz, or a folder of images
records = "../{site}-records"  # what a crash must not lose: this site's state, relationships and personalised model
device = "cpu"
models = []                 # networks of your own that a run may name, e.g. ["hospital_nets:small_cnn"]
"""


@dataclass(frozen=True)
class Kits:
    """What was made."""

    made: list[Path]
    kept: list[Path]
    authority: Path
    expires: datetime


def make_kits(consortium: Consortium, out: Path) -> Kits:
    """Make the kits that are not there yet; those that are stay as they are."""
    authority = out / "authority"
    names = [consortium.server, *consortium.sites, consortium.coordinator]
    missing = [name for name in names if not (out / name).exists()]
    try:
        authority.mkdir(parents=True, exist_ok=True, mode=0o700)
        authority.chmod(0o700)
        made = _provisioned(consortium, authority)
        for name in missing:
            _narrow(made / name, name, consortium)
            new = out / f".{name}.new"  # a kit that is cut off in the making must not pass for one
            shutil.rmtree(new, ignore_errors=True)
            for place in (made / name, new):  # before there is a key in it, and as copying leaves it
                place.mkdir(exist_ok=True, mode=0o700)
                place.chmod(0o700)
            shutil.copytree(made / name, new, dirs_exist_ok=True)
            new.rename(out / name)
        expires = min(map(_expiry, [*made.rglob("*.crt"), *made.rglob("rootCA.pem")]))
        shutil.rmtree(made)
        for secret in [*authority.rglob("*.json"), *authority.rglob("*.key")]:
            secret.chmod(PRIVATE)
        # The coordinator's list of sites is the one that is asked, so it follows the file.
        _write_consortium(out / consortium.coordinator, consortium)
    except OSError as error:
        raise Refusal(f"{error.filename or out}: cannot be written: {error.strerror or error}") from None
    kept = [out / name for name in names if name not in missing]
    return Kits([out / name for name in missing], kept, authority, expires)


def _write_consortium(kit: Path, consortium: Consortium) -> None:
    (kit / CONSORTIUM).write_text(tomli_w.dumps(consortium.model_dump()), "utf-8")


def _provisioned(consortium: Consortium, authority: Path) -> Path:
    """Let FLARE make keys, certificates and start scripts; return where they are."""
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.entity import Project, participant_from_dict
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.signature import SignatureBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    parties: list[dict[str, Any]] = [
        {"name": consortium.server, "type": "server", "org": "server", "fed_learn_port": consortium.port}
        | {"admin_port": consortium.port},
        {"name": consortium.coordinator, "type": "admin", "org": "server", "role": "project_admin"},
        *({"name": site, "type": "client", "org": site.lower().replace("-", "_")} for site in consortium.sites),
    ]
    project = Project(consortium.name, "", props={"api_version": 3, "name": consortium.name, "participants": parties})
    for party in parties:
        project.add_participant(participant_from_dict(party))
    builders = [
        WorkspaceBuilder(["master_template.yml"]),
        StaticFileBuilder(config_folder="config", require_signed_jobs=True),
        CertBuilder(root_valid_days=consortium.days),
        SignatureBuilder(),
    ]
    words = _Words()
    context = Provisioner(str(authority.resolve()), builders).provision(project, logger=words)
    if context.get(CtxKey.BUILD_ERROR):
        raise Refusal("the kits could not be made: " + "; ".join(words.errors))
    return Path(context[CtxKey.CURRENT_PROD_DIR])


class _Words:
    """Takes in what FLARE would print."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def info(self, text: str) -> None:
        """Leave out."""

    debug = warning = info

    def error(self, text: str) -> None:
        """Keep for the message."""
        self.errors.append(text)


def _expiry(certificate: Path) -> datetime:
    from cryptography import x509

    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc.astimezone(UTC)


# --- What a party allows ---


def _narrow(kit: Path, name: str, consortium: Consortium) -> None:
    """Write what this party allows in place of FLARE's defaults."""
    for default in (kit / "local").glob("*.default"):
        default.rename(default.with_suffix(""))
    for sample in (kit / "local").glob("*.sample"):
        sample.unlink()
    for key in (kit / "startup").glob("*.key"):
        key.chmod(PRIVATE)
    if name == consortium.coordinator:
        (kit / "startup" / "system_info.ipynb").unlink(missing_ok=True)
        return
    resources = json.loads((kit / "local" / "resources.json").read_text("utf-8"))
    server = name == consortium.server
    rights = {**dict.fromkeys(RIGHTS["server" if server else "site"], "any"), "byoc": "none", "shell_commands": "none"}
    policy = {"format_version": "1.0", "permissions": {"project_admin": rights}}
    _write_json(kit / "local" / "authorization.json", policy)
    resources |= {"class_list_enforcement_mode": "enforce", "class_allow_list": [CONTROLLER if server else EXECUTOR]}
    if server:
        _server_resources(resources, f"{consortium.storage}/{consortium.name}")
        _set_environment(kit / "startup" / "sub_start.sh")
        (kit / SERVER).write_text(tomli_w.dumps({"storage": f"{consortium.storage}/{consortium.name}"}), "utf-8")
    else:
        resources["allow_log_streaming"] = False
        resources["components"] = [c for c in resources["components"] if c["id"] != "site_log_streamer"]
        (kit / SITE).write_text(SITE_TEMPLATE.format(site=name), "utf-8")
        _write_consortium(kit, consortium)
    _write_json(kit / "local" / "resources.json", resources)
    messages = {"streaming_max_blob_size": consortium.message_mb * 2**20, "streaming_chunk_size": CHUNK}
    _write_json(kit / "local" / "comm_config.json", messages)


def _server_resources(resources: dict[str, Any], storage: str) -> None:
    """Keep jobs and snapshots where they last, take no logs, and notice soon that a site is gone."""
    resources["servers"][0]["heart_beat_timeout"] = HEARTBEATS
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = f"{storage}/snapshots"
    resources["components"] = [c for c in resources["components"] if c["id"] != "log_receiver"]
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = f"{storage}/jobs"
        if component["id"] == "job_scheduler":
            component["args"]["max_jobs"] = 1


def _set_environment(script: Path) -> None:
    """Do not wait for long for a site that is gone, and use the memory of messages again.

    Models are above the first size and go back to the system at once; what they are cut up into for the way is below
    it and stays with the process, for which asking the system again each time would take most of a round.
    """
    settings = {
        "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": HEARTBEATS // 2,
        "MALLOC_MMAP_THRESHOLD_": 2 * CHUNK,
        "MALLOC_TRIM_THRESHOLD_": 32 * CHUNK,
        "MALLOC_ARENA_MAX": 2,
    }
    lines = "".join(f"export {name}={value}\n" for name, value in settings.items())
    text = script.read_text("utf-8")
    script.write_text(text.replace("start_python() {", f"{lines}\nstart_python() {{", 1), "utf-8")


def _write_json(file: Path, content: object) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
