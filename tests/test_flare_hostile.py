"""Outsiders, a hostile site, and a coordinator who asks for too much, against real processes."""

import json
import secrets
import shutil
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat
from cryptography.x509.oid import NameOID

pytest.importorskip("nvflare")

from nvflare.fuel.flare_api.api_spec import AuthorizationError
from nvflare.fuel.flare_api.flare_api import new_secure_session

from federation import COORDINATOR, Federation, digits, ended
from orchard.errors import RunFailed, UserError
from orchard.experiment import load_experiment
from orchard.runs.folder import RunFolder
from orchard.sites.connection import FINISHED, Connection
from orchard.sites.job import write_job
from orchard.sites.plan import Agreement, Plan
from orchard.sites.provision import make_kits
from orchard.sites.record import SiteRecord

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # of libraries that FLARE uses


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server and two sites that wait for work."""
    home = tmp_path_factory.mktemp("hostile")
    with Federation(home, ["north", "south"], digits(2)) as federation:
        policy = federation.kits / "localhost" / "local" / "authorization.json"
        rights = json.loads(policy.read_text())
        # A server that would let everything through: the sites must not rely on it.
        rights["permissions"]["project_admin"] = "any"
        resources = federation.kits / "localhost" / "local" / "resources.json"
        allowed = json.loads(resources.read_text())
        allowed["class_allow_list"] = ["*"]
        policy.write_text(json.dumps(rights))
        resources.write_text(json.dumps(allowed))
        federation.start_all()
        with Connection(federation.kits / COORDINATOR) as server:
            federation.wait(lambda: len(server.sites()) == 2, "the sites")
        yield federation


@pytest.fixture
def server(federation: Federation) -> Iterator[Connection]:
    with Connection(federation.kits / COORDINATOR) as connection:
        yield connection


# --- Outsiders ---


def is_let_in(federation: Federation, startup: Path | None) -> bool:
    """Tell whether the server says anything to one who comes with a kit's certificate, or with none."""
    context = ssl.create_default_context(cafile=str(federation.kits / "north" / "startup" / "rootCA.pem"))
    context.check_hostname = False
    if startup:
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
    try:
        plain = socket.create_connection(("localhost", federation.consortium.port), timeout=10)
        with plain, context.wrap_socket(plain) as secured:
            secured.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return secured.recv(1000) != b""
    except OSError:
        return False


def test_a_member_is_let_in(federation: Federation) -> None:
    assert is_let_in(federation, federation.kits / "north" / "startup")


def test_who_has_only_the_authoritys_certificate_is_refused(federation: Federation) -> None:
    assert not is_let_in(federation, None)


def test_who_comes_with_a_certificate_of_their_own_making_is_refused(federation: Federation, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "north")])
    today = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, today, today + timedelta(days=1))
    (tmp_path / "client.crt").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    (tmp_path / "client.key").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    assert not is_let_in(federation, tmp_path)


def test_who_comes_and_says_nothing_keeps_nobody_out(federation: Federation) -> None:
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(socket.create_connection(("localhost", federation.consortium.port), timeout=10))
        assert is_let_in(federation, federation.kits / "north" / "startup")


@pytest.fixture(scope="module")
def strangers(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kits that another authority made, for the same names and the same server."""
    kits = tmp_path_factory.mktemp("strangers") / "kits"
    make_kits(federation.consortium, kits)
    return kits


def test_who_has_a_certificate_of_another_authority_is_refused(federation: Federation, strangers: Path) -> None:
    assert not is_let_in(federation, strangers / "north" / "startup")


def test_a_coordinators_kit_of_another_consortium_is_refused(federation: Federation, strangers: Path) -> None:
    with pytest.raises((RunFailed, UserError)), Connection(strangers / COORDINATOR, patience=0) as stranger:
        stranger.sites()


def test_a_site_cannot_pass_for_the_coordinator(federation: Federation, tmp_path: Path) -> None:
    kit = shutil.copytree(federation.kits / COORDINATOR, tmp_path / "kit")
    for name in ("client.crt", "client.key"):
        shutil.copyfile(federation.kits / "north" / "startup" / name, kit / "startup" / name)
    with pytest.raises((RunFailed, UserError)), Connection(kit, patience=0) as pretender:
        pretender.sites()


# --- A coordinator who asks for too much ---


READING = {
    "cat": lambda session, target: session.cat_target(target, file="local/resources.json"),
    "head": lambda session, target: session.head_target(target, file="local/resources.json"),
    "tail": lambda session, target: session.tail_target(target, file="local/resources.json"),
    "grep": lambda session, target: session.grep_target(target, pattern="class", file="local/resources.json"),
}


@pytest.mark.parametrize("command", READING)
def test_a_remote_file_read_is_refused_by_the_site(federation: Federation, command: str) -> None:
    session = new_secure_session(COORDINATOR, str(federation.kits / COORDINATOR))
    try:
        assert "class_allow_list" in READING["cat"](session, "server")  # which allows it here
        with pytest.raises(AuthorizationError, match="not authorized"):
            READING[command](session, "north")
    finally:
        session.close()


def small_job(folder: Path) -> Path:
    experiment = load_experiment(
        overrides={"dataset": "digits", "clients": 2, "partition": "given", "model": "mlp", "rounds": 1}
    )
    agreement = Agreement(classes=[str(k) for k in range(10)])
    return write_job(
        folder, Plan(run="r", sites=["north", "south"], experiment=experiment, agreement=agreement), ["north", "south"]
    )


def outcome(federation: Federation, server: Connection, folder: Path) -> tuple[str, str]:
    """Submit a job as it is; return how it ended, and what each site said to it."""
    job: str = server._call("submit", str(folder), secrets.token_hex(16))
    federation.wait(lambda: server.status(job).startswith(FINISHED), "the job to end")
    meta: dict[str, Any] = server._call("meta", job)
    return str(meta["status"]), str(meta.get("job_deploy_detail"))


def test_a_job_with_code_is_refused_by_the_sites(federation: Federation, server: Connection, tmp_path: Path) -> None:
    folder = small_job(tmp_path / "job")
    (folder / "app" / "custom").mkdir()
    evil = f"import pathlib\npathlib.Path({str(tmp_path / 'proof')!r}).write_text('was here')\n"
    (folder / "app" / "custom" / "evil.py").write_text(evil)
    status, said = outcome(federation, server, folder)
    assert status == "FINISHED:FAILED_TO_RUN"
    assert said.count("BYOC not permitted") == 2
    assert not (tmp_path / "proof").exists()


def test_a_class_outside_the_list_is_refused_by_the_sites(
    federation: Federation, server: Connection, tmp_path: Path
) -> None:
    folder = small_job(tmp_path / "job")
    config = folder / "app" / "config" / "config_fed_client.json"
    content = json.loads(config.read_text())
    content["components"] = [{"id": "x", "path": "nvflare.app_common.np.np_trainer.NPTrainer", "args": {}}]
    config.write_text(json.dumps(content))
    status, _ = outcome(federation, server, folder)
    assert status != "FINISHED:COMPLETED"
    assert "is not in allow_list" in federation.log("north")


# --- A hostile site, and a wire that is read ---


def run_beside_a_hostile_site(kind: str, reason: str, home: Path) -> tuple[str, int]:
    """Run three rounds, of which the hostile site fails two; return the server's log, and its most memory in bytes."""
    peak = 0
    with Federation(home, ["north", "south", "east"], digits(3), message_mb=8) as federation:
        (federation.kits / "east" / "local" / "comm_config.json").unlink()  # it keeps to no limit of its own
        federation.start("localhost")
        federation.wait(lambda: "Server started" in federation.log("localhost"), "the server to start")
        with Connection(federation.kits / COORDINATOR) as server:
            assert server.sites() == {}
        federation.start("north", "south")
        federation.start("east", HOSTILE=kind)
        run = federation.run(rounds=3, epochs=1, deploy={"round_seconds": 12})

        def is_over() -> bool:
            nonlocal peak
            peak = max(peak, federation.memory("localhost"))
            return run.poll() is not None

        federation.wait(is_over, "the run to end")
        ended(run)
        result = RunFolder(home / "run").result()
        assert [set(entry.failures) for entry in result.rounds] == [set(), {2}, {2}]
        assert result.rounds[1].failures[2] == f"east, round 2: {reason}"
        assert all(entry.after_training[0] and entry.after_training[1] for entry in result.rounds)
        return federation.log("localhost"), peak


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("not finite", "rejected: not finite"),
        ("scaled", "rejected: the length of 'core' is 50 times the median"),
        ("wrong length", "rejected: wrong length"),
        ("wrong sender", "rejected: wrong sender"),
        ("hang", "deadline"),
        ("die", "absent"),  # after it has ended three jobs
    ],
)
def test_a_hostile_site_is_rejected_and_the_others_go_on(kind: str, reason: str, tmp_path: Path) -> None:
    run_beside_a_hostile_site(kind, reason, tmp_path)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("ten gigabytes", "Blob size 10737418240 exceeds configured limit 8388608"),
        ("ten gigabytes undeclared", "received more data than configured limit 8388608"),
    ],
)
def test_ten_gigabytes_are_refused_and_never_held(kind: str, said: str, tmp_path: Path) -> None:
    log, memory = run_beside_a_hostile_site(kind, "deadline", tmp_path)
    assert said in log
    assert 0 < memory < 2**30


def test_no_byte_of_the_relationships_leaves_a_site(tmp_path: Path) -> None:
    tap = tmp_path / "tap"
    tap.mkdir()
    with Federation(tmp_path, ["north", "south", "east"], digits(3)) as federation:
        federation.start_all(TAP=str(tap))
        ended(federation.run(rounds=3, epochs=1))
        records = [_record(federation, site) for site in federation.sites]
        server = [tap, federation.home / "storage", federation.kits / "localhost", federation.home / "run"]
        seen = b"\0".join(file.read_bytes() for place in server for file in sorted(place.rglob("*")) if file.is_file())
    for record in records:
        core = record["client"]["core"].numpy().tobytes()
        assert core[:4096] in seen  # what travels is found: nothing is compressed or encrypted in here
        for entry in record["history"]:
            for form, secret in forms(np.array(entry["diagnostics"]["relationships"])):
                assert secret not in seen, form


def _record(federation: Federation, site: str) -> dict[str, Any]:
    (folder,) = (federation.home / site / "records").glob("sites-*")
    record = SiteRecord(folder, {}).newest()
    assert record is not None
    return record


def forms(p: np.ndarray[Any, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield the relationships as they could be written: pairs of numbers, since one alone may come by chance."""
    for dtype in ("<f4", ">f4", "<f8", ">f8"):
        content = p.astype(dtype).tobytes()
        size = np.dtype(dtype).itemsize
        for start in range(len(p) - 1):
            yield dtype, content[start * size : (start + 2) * size]
    for dtype in ("<f2", ">f2"):
        yield dtype, p.astype(dtype).tobytes()
    for number in p:
        for text in (repr(float(number)), repr(float(np.float32(number))), f"{number:.8f}", f"{number:.6e}"):
            yield "text", text.encode()
    assert torch.from_numpy(p).isfinite().all()
