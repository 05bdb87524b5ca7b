"""Startup kits: FLARE makes keys and certificates; permissions are then reduced to what Orchard needs.

Jobs cannot carry code (`byoc`), use other classes than Orchard's two, or open a shell; logs stay on their machine.
The authority's folder holds the key that signs kits: anyone who has it can admit new parties.
"""

import json
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w

from orchard.errors import UserError
from orchard.sites.authority import Issued, hand_out, issued, revocations
from orchard.sites.consortium import FILE as CONSORTIUM
from orchard.sites.consortium import Consortium
from orchard.sites.kit import (
    ADMISSION,
    CHUNK,
    CONTROLLER,
    EXECUTOR,
    HEARTBEATS,
    SERVER,
    SERVER_ENVIRONMENT,
    check_kit,
    mark_kit,
)
from orchard.sites.members import FILE as MEMBERS
from orchard.sites.members import write_members
from orchard.sites.revocation import Revoked
from orchard.sites.settings import FILE as SITE

PRIVATE = 0o600

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
"""All that the coordinator, who is the only user, may ask of a server and of a site. Everything else is denied: code in
jobs (byoc), remote shell commands, reading errors and logs, restarting a site or locking it out."""

SITE_TEMPLATE = """# What this site decides for itself. Paths are seen from the kit's folder.
data = "../data.npz"        # an .npz, a table, or a folder of images
records = "../{site}-records"  # what a crash must not lose: this site's state, relationships and personalised model
device = "cpu"
threads = 1                 # compute threads; with more, the last bits of results differ
rounds_kept = 20            # how old a backup of the server may be, in rounds; each keeps one upload on disk
consent = true              # train with a new member only after: orchard site accept
models = []                 # networks of your own that a run may name, e.g. ["hospital_nets:small_cnn"]
statistics = false          # may the coordinator ask for counts and means? orchard site stats shows them
"""


@dataclass(frozen=True)
class Kits:
    """The kits that were made or kept, the authority's folder, and when the first certificate expires."""

    made: list[Path]
    kept: list[Path]
    authority: Path
    expires: datetime
    old: list[Issued]
    """Certificates of parties that take part no more, but which still count."""
    revoked: list[Revoked]


def make_kits(consortium: Consortium, out: Path) -> Kits:
    """Make the missing kits. Existing ones stay as they are, but for lists: the coordinator's of sites, the revoked."""
    authority = out / "authority"
    names = [consortium.server, *consortium.sites, consortium.coordinator]
    missing = [name for name in names if not (out / name).exists()]
    for name in set(names) - set(missing):
        check_kit(out / name)
    try:
        authority.mkdir(parents=True, exist_ok=True, mode=0o700)
        authority.chmod(0o700)
        made = _provisioned(consortium, authority)
        counting = issued(authority)
        members = {site: counting[site].fingerprint for site in consortium.sites}
        for name in missing:
            _restrict(made / name, name, consortium)
            if name in members:
                write_members(made / name / "local" / MEMBERS, members)
            new = out / f".{name}.new"  # an interrupted copy must not look like a kit
            shutil.rmtree(new, ignore_errors=True)
            for place in (made / name, new):  # before keys are in it; copytree copies the mode too
                place.mkdir(exist_ok=True, mode=0o700)
                place.chmod(0o700)
            shutil.copytree(made / name, new, dirs_exist_ok=True)
            new.rename(out / name)
        expires = min(map(_expiry, [*made.rglob("*.crt"), *made.rglob("rootCA.pem")]))
        shutil.rmtree(made)
        for secret in [*authority.rglob("*.json"), *authority.rglob("*.key")]:
            secret.chmod(PRIVATE)
        # The coordinator's commands read the sites from its kit, so an existing kit is updated too.
        _write_consortium(out / consortium.coordinator, consortium)
        write_members(out / consortium.coordinator / "local" / MEMBERS, members)
        revoked, text = revocations(authority)
        if text:
            hand_out(out, text)
    except OSError as error:
        raise UserError(f"{error.filename or out}: cannot be written: {error.strerror or error}") from None
    kept = [out / name for name in names if name not in missing]
    old = [entry for name, entry in counting.items() if name not in names]
    return Kits([out / name for name in missing], kept, authority, expires, old, revoked.revoked)


def _write_consortium(kit: Path, consortium: Consortium) -> None:
    (kit / CONSORTIUM).write_text(tomli_w.dumps(consortium.model_dump()), "utf-8")


def _provisioned(consortium: Consortium, authority: Path) -> Path:
    """Let FLARE make keys, certificates and start scripts; return their folder."""
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
    words = _ErrorLog()
    context = Provisioner(str(authority.resolve()), builders).provision(project, logger=words)
    if context.get(CtxKey.BUILD_ERROR):
        raise UserError("the kits could not be made: " + "; ".join(words.errors))
    return Path(context[CtxKey.CURRENT_PROD_DIR])


class _ErrorLog:
    """A logger that keeps FLARE's errors and drops everything else."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def info(self, text: str) -> None:
        """Drop a message."""

    debug = warning = info

    def error(self, text: str) -> None:
        """Keep an error."""
        self.errors.append(text)


def _expiry(certificate: Path) -> datetime:
    from cryptography import x509

    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc.astimezone(UTC)


# --- Permissions ---


def _restrict(kit: Path, name: str, consortium: Consortium) -> None:
    """Replace FLARE's defaults by this party's permissions and settings."""
    for default in (kit / "local").glob("*.default"):
        default.rename(default.with_suffix(""))
    for sample in (kit / "local").glob("*.sample"):
        sample.unlink()
    for key in (kit / "startup").glob("*.key"):
        key.chmod(PRIVATE)
    mark_kit(kit)
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
    """Store jobs and snapshots in `storage`, accept no logs, run one job at a time, and detect lost sites soon."""
    resources["servers"][0]["heart_beat_timeout"] = HEARTBEATS
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = f"{storage}/snapshots"
    resources["components"] = [c for c in resources["components"] if c["id"] != "log_receiver"]
    resources["components"].append({"id": "admission", "path": ADMISSION, "args": {}})
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = f"{storage}/jobs"
        if component["id"] == "job_scheduler":
            component["args"]["max_jobs"] = 1


def _set_environment(script: Path) -> None:
    """Let FLARE's own script set what a server's processes need."""
    lines = "".join(f"export {name}={value}\n" for name, value in SERVER_ENVIRONMENT.items())
    text = script.read_text("utf-8")
    script.write_text(text.replace("start_python() {", f"{lines}\nstart_python() {{", 1), "utf-8")


def _write_json(file: Path, content: object) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
