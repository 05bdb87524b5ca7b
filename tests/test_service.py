"""Parties as services: started, stopped and asked how they are, by processes like those of systemd and containers."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import tomli_w
from filelock import FileLock

from orchard.errors import RunFailed, UserError
from orchard.sites.trail import Trail, verify

pytest.importorskip("nvflare")

from federation import COORDINATOR, Federation, digits, ended, free_port
from orchard.sites.party import Party, party_of
from orchard.sites.service import STATE, health, start, stop
from sites import kit_of_north

NOBODY = 65534


@pytest.fixture
def party(tmp_path: Path) -> Party:
    """A site whose kit has all that the service reads."""
    kit = kit_of_north(tmp_path / "kit", home="..")
    return party_of(kit, "site")


def test_a_kit_says_which_party_it_is(party: Party) -> None:
    assert (party.name, party.port, party.home) == ("north", 8002, party.kit.parent / "records" / ".flare")
    with pytest.raises(UserError, match="is the startup kit of a site; a server's is needed here"):
        party_of(party.kit, "server")


def test_flare_sees_the_kit_through_links_and_writes_elsewhere(party: Party) -> None:
    for _ in range(2):  # as after a crash
        party.make_home()
        party.link_kit()
    assert (party.home / "startup" / "fed_client.json").resolve() == party.kit / "startup" / "fed_client.json"
    assert not (party.home / "startup").is_symlink()
    assert party_of(party.home, "site").home == party.home  # paths in site.toml mean the same
    assert party.home.stat().st_mode & 0o777 == 0o700


def test_a_party_that_does_not_run_is_not_well(party: Party) -> None:
    assert health(party) == (False, "is not running")
    said: list[str] = []
    stop(party, said.append)
    assert said == ["north: is not running"]


@pytest.mark.parametrize(
    ("state", "well", "said"),
    [
        ({"connected": True, "peers": 1, "contact": 0}, True, "connected to the server, process {pid}"),
        ({"connected": False, "peers": 0, "contact": None}, False, "not connected to the server yet"),
        ({"connected": False, "peers": 0, "contact": -42}, False, "not connected to the server for 42 s"),
        ({"connected": True, "peers": 1, "contact": 0, "written": -40}, False, "has said nothing for 40 s"),
        ({"connected": True, "peers": 1, "contact": 0, "began": 1.0}, False, "is not running"),  # another's number
    ],
)
def test_health_is_what_the_process_wrote_last(
    state: dict[str, object], well: bool, said: str, party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1e9)
    party.make_home()
    mine = psutil.Process()
    times = {name: state[name] + 1e9 for name in ("contact", "written") if isinstance(state.get(name), int)}  # type: ignore[operator]
    about = {"process": mine.pid, "began": mine.create_time(), "written": 1e9}
    (party.home / STATE).write_text(json.dumps({**about, **state, **times}))
    assert health(party) == (well, said.format(pid=mine.pid))


def test_a_party_that_keeps_dying_is_given_up(party: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kit without keys: FLARE ends at once, each time."""
    monkeypatch.setattr("orchard.sites.service.PAUSE", 0.01)
    monkeypatch.setattr("orchard.sites.service.POLL", 0.01)
    monkeypatch.setattr(Party, "command", lambda self, python: [python, "-c", "raise SystemExit(7)"])
    party.make_home()
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    left = subprocess.Popen([*sleep, "nvflare.private.fed.app.client.worker_process", "-m", str(party.home)])
    reader = subprocess.Popen([*sleep, str(party.home)])
    said: list[str] = []
    with pytest.raises(RunFailed, match="ended 5 times within 5 minutes, the last time with code 7"):
        start(party, said.append)
    assert said.count("north: ended with code 7; starting it again") == 4
    assert not (party.home / STATE).exists()
    assert not psutil.pid_exists(left.pid)  # what a killed service had left behind was ended first
    left.wait(10)
    assert reader.poll() is None  # somebody who looks into the folder
    reader.kill()
    reader.wait(10)


def test_a_second_start_leaves_the_running_one_alone(party: Party) -> None:
    party.make_home()
    party.link_kit()
    (party.kit / "startup" / "new").touch()
    with FileLock(party.home / "lock"), pytest.raises(UserError, match="north: is running already"):
        start(party, print)
    assert not (party.home / "startup" / "new").exists()


# --- Real processes, that may write nothing but one volume ---


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that other users can reach; pytest's are its own."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def shut_in(volume: Path) -> list[str]:
    """Return what runs a command as nobody, with all files read-only but for a volume and an empty /tmp."""
    if os.geteuid() or subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("needs root and mount namespaces")
    volume.mkdir()
    os.chown(volume, NOBODY, NOBODY)
    python = Path(sys.base_prefix).resolve()
    script = (
        f"set -e; mount --make-rprivate /; mount --bind {volume} {volume}; {_within_reach(python)}"
        "mount -o remount,bind,ro /; mount -t tmpfs tmpfs /tmp; "
        f"exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups --no-new-privs --bounding-set=-all "
        '--inh-caps=-all env HOME=/nowhere "$@"'
    )
    return ["unshare", "--mount", "sh", "-c", script, "sh"]


def _within_reach(python: Path) -> str:
    """Return what lets others reach an interpreter that lies in a folder closed to them, such as /root."""
    closed = [folder for folder in (*python.parents, python) if not folder.stat().st_mode & 0o001]
    if not closed:
        return ""
    top = closed[-1]
    return (
        f"mount --bind {python} /mnt; mount -t tmpfs -o mode=755 tmpfs {top}; mkdir -p {python}; "
        f"mount --move /mnt {python}; mount -o remount,bind,ro {top}; "
    )


def processes_of(party: Party) -> list[psutil.Process]:
    found = psutil.process_iter(["cmdline"])
    return [process for process in found if str(party.home) in (process.info["cmdline"] or [])]


@pytest.mark.slow
def test_services_run_without_rights_and_write_one_volume(home: Path) -> None:
    volumes = {name: home / f"{name}-volume" for name in ("localhost", "north", "south")}
    around = {name: shut_in(volume) for name, volume in volumes.items()}
    names = ["north", "south"]
    with Federation(home, names, digits(2), storage=str(volumes["localhost"])) as federation:
        for site in names:
            settle(federation, site, volumes[site], statistics=site == "north")
        hand_over(federation, *volumes)
        parties = {name: party_of(federation.kits / name, "site" if name in names else "server") for name in volumes}
        for name in volumes:
            federation.serve(name, *around[name])
        for one in parties.values():
            federation.wait(lambda one=one: health(one)[0], f"{one.name} to be well")  # type: ignore[misc]
        said = ended(
            federation.command("stats", str(_experiment(home)), "--kit", str(federation.kits / COORDINATOR)), 300
        )
        assert "south: told nothing: statistics not allowed here" in said
        assert any(line.startswith("north") and len(line.split()) == 12 for line in said.splitlines())
        run = federation.run(rounds=6)
        federation.wait(lambda: len(list(volumes["north"].glob("*/rounds-*"))) > 1, "a round")
        for process in processes_of(parties["north"]):
            process.kill()
        ended(run, 400)
        entries = [entry for _, entry in Trail(volumes["north"]).entries() if entry]
        assert [entry["what"] for entry in entries[:3]] == ["statistics", "enrol", "start"]
        assert verify(Trail(volumes["north"])).entries == len(entries)
        assert "starting it again" in federation.log("north")
        for name, one in parties.items():
            if name == "south":
                federation.processes[name].terminate()  # as systemd and containers do
            else:
                stop(one, print)
            assert federation.processes[name].wait(60) == 0
            assert not processes_of(one)
            assert health(one) == (False, "is not running")
        theirs = {path.name for name in volumes for path in (federation.kits / name).rglob("*") if path.is_file()}
        assert not theirs & {"log.txt", "audit.log", "pid.fl"}


def settle(federation: Federation, site: str, volume: Path, **settings: object) -> None:
    """Let a site write its records into a volume."""
    places = {"data": str(federation.home / site / "data.npz"), "records": str(volume)}
    (federation.kits / site / "local" / "site.toml").write_text(tomli_w.dumps({**places, **settings}))


def hand_over(federation: Federation, *names: str) -> None:
    """Give kits to the user that services run as."""
    federation.kits.chmod(0o755)
    for name in names:
        for path in [federation.kits / name, *(federation.kits / name).rglob("*")]:
            os.chown(path, NOBODY, NOBODY)


@pytest.mark.slow
def test_consent_is_given_outside_while_the_site_sees_its_kit_read_only(home: Path) -> None:
    volume = home / "north-volume"
    around, arrays = shut_in(volume), digits(2)
    with Federation(home, ["north"], arrays[:1]) as federation:
        settle(federation, "north", volume)
        hand_over(federation, "north")
        federation.serve("localhost")
        federation.serve("north", *around)
        federation.join("south", arrays[1])
        federation.serve("south")
        run = federation.run(rounds=2)
        note = home / "run" / "waiting.json"
        federation.wait(lambda: note.exists() and "consent of north" in note.read_text(), "being asked")
        accept = [sys.executable, "-c", "from orchard.cli import main; main()", "site", "accept"]
        accept += [str(federation.kits / "north"), "south"]
        within = subprocess.run([*around, *accept], capture_output=True, text=True, check=False)
        assert within.stderr.endswith("cannot be written: Read-only file system; accept where the kit is writable\n")
        assert note.exists()
        subprocess.run(accept, check=True)
        ended(run, 300)
        for name in ("north", "south", "localhost"):
            federation.processes[name].terminate()
            assert federation.processes[name].wait(60) == 0


NGINX = """
load_module modules/ngx_stream_module.so;
daemon off;
pid {home}/nginx.pid;
error_log {home}/nginx.log;
events {{}}
stream {{
    map $ssl_preread_server_name $upstream {{ localhost 127.0.0.1:{inside}; default 127.0.0.1:1; }}
    server {{ listen {outside}; ssl_preread on; proxy_pass $upstream; }}
    server {{
        listen {inspected} ssl;
        ssl_certificate {home}/proxy.crt;
        ssl_certificate_key {home}/proxy.key;
        proxy_pass 127.0.0.1:{inside};
        proxy_ssl on;
    }}
}}
"""


@pytest.mark.slow
def test_a_proxy_may_pass_tls_on_and_not_end_it(tmp_path: Path) -> None:
    """North goes through a proxy that reads the name and passes all on; south through one that inspects."""
    if not shutil.which("nginx") or not shutil.which("openssl"):
        pytest.skip("needs nginx and openssl")
    with Federation(tmp_path, ["north", "south"], digits(2)) as federation:
        outside, inside, inspected = federation.consortium.port, free_port(), free_port()
        _replace(federation.kits / "localhost" / "startup" / "fed_server.json", outside, inside)
        _replace(federation.kits / "south" / "startup" / "fed_client.json", outside, inspected)
        made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
        files = ["-keyout", str(tmp_path / "proxy.key"), "-out", str(tmp_path / "proxy.crt")]
        subprocess.run([*made, *files], check=True, capture_output=True)
        config = tmp_path / "nginx.conf"
        config.write_text(NGINX.format(home=tmp_path, outside=outside, inside=inside, inspected=inspected))
        proxy = subprocess.Popen(["nginx", "-c", str(config)])
        try:
            for name in ("localhost", "north", "south"):
                federation.serve(name)
            north, south = (party_of(federation.kits / site, "site") for site in federation.sites)
            federation.wait(lambda: health(north)[0], "north to be well")
            federation.wait(lambda: "CERTIFICATE_VERIFY_FAILED" in federation.log("south"), "south to refuse the proxy")
            status = ended(federation.command("status", "--kit", str(federation.kits / COORDINATOR)))
            assert [line.split()[1] for line in status.splitlines()] == ["connected", "absent"]
            assert not health(south)[0]
        finally:
            for name in ("north", "south", "localhost"):
                federation.processes[name].terminate()
                federation.processes[name].wait(60)
            proxy.terminate()
            proxy.wait(10)


def _replace(file: Path, old: int, new: int) -> None:
    file.write_text(file.read_text().replace(str(old), str(new)))


def _experiment(home: Path) -> Path:
    file = home / "stats.toml"
    deploy = {"classes": [str(k) for k in range(10)]}
    file.write_text(tomli_w.dumps({"dataset": "digits", "model": "mlp", "deploy": deploy}))
    return file
