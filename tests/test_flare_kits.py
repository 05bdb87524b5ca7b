"""Startup kits: what a party allows from the first day on, and how parties come and go."""

import json
import stat
from pathlib import Path

import pytest
import tomli_w

import orchard
from processes import orchard_command

pytest.importorskip("nvflare")

from cryptography import x509

from orchard.errors import UserError
from orchard.sites import provision
from orchard.sites.connection import Connection
from orchard.sites.consortium import Consortium, load_consortium
from orchard.sites.job import write_job
from orchard.sites.provision import make_kits
from sites import small_plan

NAMES = ["hub.example.org", "north", "south", "ada@example.org"]
PARTIES = {"name": "lungs", "server": "hub.example.org", "coordinator": "ada@example.org", "storage": "/srv/orchard"}


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("kits")
    make_kits(Consortium.model_validate({**PARTIES, "sites": ["north", "south"]}), home)
    return home


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_job_is_over_when_it_has_ended_or_its_server_was_started_since_and_knows_it_no_more(
    kits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_over(status: str, running: list[str], started: float) -> bool:
        answers = {"system": {"started": started, "jobs": running}, "meta": {"submit_time": 100.0}}
        connection = Connection(kits / "ada@example.org")
        monkeypatch.setattr(connection, "_call", lambda name, *arguments, expected=None: answers[name])
        return connection.is_over("job", status)

    assert is_over("FINISHED:COMPLETED", [], 50.0)
    assert not is_over("SUBMITTED", [], 50.0)
    assert not is_over("RUNNING", ["other", "job"], 50.0)
    assert not is_over("RUNNING", [], 50.0)  # it has just ended, and its server will say how
    assert not is_over("RUNNING", ["job"], 150.0)  # waited for its turn while the server was started anew
    assert is_over("RUNNING", ["other"], 150.0)


def test_a_kit_that_was_cut_off_in_the_making_does_not_pass_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed = Consortium.model_validate({**PARTIES, "sites": ["north", "south"]})
    narrow = provision._restrict

    def cut_off(kit: Path, name: str, consortium: Consortium) -> None:
        if name == "south":
            raise KeyboardInterrupt
        narrow(kit, name, consortium)

    monkeypatch.setattr(provision, "_restrict", cut_off)
    with pytest.raises(KeyboardInterrupt):
        make_kits(agreed, tmp_path)
    assert not (tmp_path / "south").exists()
    (tmp_path / ".south.new" / "startup").mkdir(parents=True)  # cut off in the copying
    (tmp_path / ".south.new" / "startup" / "old.key").write_text("")
    monkeypatch.setattr(provision, "_restrict", narrow)
    make_kits(agreed, tmp_path)
    assert not (tmp_path / "south" / "startup" / "old.key").exists()
    for name in ("north", "south", "hub.example.org"):
        rights = json.loads((tmp_path / name / "local" / "authorization.json").read_text())["permissions"]
        assert rights["project_admin"]["byoc"] == "none"


def test_keys_are_for_their_owners_alone(kits: Path) -> None:
    keys = [*kits.rglob("*.key"), *(kits / "authority").rglob("cert.json")]
    assert len(keys) == 5
    assert {mode(key) for key in keys} == {0o600}
    assert {mode(kits / name) for name in ("authority", "north", "hub.example.org", "ada@example.org")} == {0o700}


def test_the_authoritys_key_is_in_its_own_folder_alone(kits: Path) -> None:
    secret = json.loads(next((kits / "authority").rglob("cert.json")).read_text())["root_pri_key"]
    for file in kits.rglob("*"):
        if file.is_file() and "authority" not in file.parts:
            assert secret[:100] not in file.read_text(errors="replace"), file


@pytest.mark.parametrize(
    ("party", "component"),
    [("north", "orchard.sites.executor.SiteExecutor"), ("hub.example.org", "orchard.sites.controller.RunController")],
)
def test_a_party_runs_orchards_component_and_no_other(kits: Path, party: str, component: str) -> None:
    resources = json.loads((kits / party / "local" / "resources.json").read_text())
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["class_allow_list"] == [component]
    assert not list((kits / party / "local").glob("*.default"))


def test_a_site_allows_its_coordinator_three_things(kits: Path) -> None:
    policy = json.loads((kits / "north" / "local" / "authorization.json").read_text())
    rights = policy["permissions"].pop("project_admin")
    assert policy["permissions"] == {}
    assert {right for right, who in rights.items() if who != "none"} == {"submit_job", "check_status", "abort_job"}
    assert rights["byoc"] == rights["shell_commands"] == "none"


def test_logs_stay_at_their_site_and_jobs_are_signed(kits: Path) -> None:
    resources = json.loads((kits / "north" / "local" / "resources.json").read_text())
    assert resources["allow_log_streaming"] is False
    assert "site_log_streamer" not in [component["id"] for component in resources["components"]]
    for party, file in (("north", "fed_client.json"), ("hub.example.org", "fed_server.json")):
        assert json.loads((kits / party / "startup" / file).read_text())["require_signed_jobs"] is True


def test_a_server_keeps_nothing_in_a_temporary_folder(kits: Path) -> None:
    text = (kits / "hub.example.org" / "local" / "resources.json").read_text()
    assert "/tmp" not in text  # noqa: S108
    assert "/srv/orchard/lungs/jobs" in text


def test_a_site_is_added_by_the_same_authority_and_the_others_keep_their_kits(tmp_path: Path) -> None:
    make_kits(Consortium.model_validate({**PARTIES, "sites": ["north"]}), tmp_path)
    (tmp_path / "north" / "local" / "site.toml").write_text('data = "mine.npz"')
    key = (tmp_path / "north" / "startup" / "client.key").read_bytes()
    made = make_kits(Consortium.model_validate({**PARTIES, "sites": ["north", "south"]}), tmp_path)
    assert made.made == [tmp_path / "south"]
    assert (tmp_path / "north" / "startup" / "client.key").read_bytes() == key
    assert (tmp_path / "north" / "local" / "site.toml").read_text() == 'data = "mine.npz"'
    authority = x509.load_pem_x509_certificate((tmp_path / "north" / "startup" / "rootCA.pem").read_bytes())
    newcomer = x509.load_pem_x509_certificate((tmp_path / "south" / "startup" / "client.crt").read_bytes())
    newcomer.verify_directly_issued_by(authority)
    assert load_consortium(tmp_path / "ada@example.org" / "local" / "consortium.toml").sites == ["north", "south"]


def test_every_kit_says_which_format_it_has(kits: Path) -> None:
    marks = [json.loads((kits / name / "local" / "kit.json").read_text()) for name in NAMES]
    assert marks == [{"format": 2, "orchard": orchard.__version__}] * len(NAMES)


def test_a_coordinators_kit_of_another_format_is_refused_in_one_sentence(tmp_path: Path) -> None:
    make_kits(Consortium.model_validate({**PARTIES, "sites": ["north"]}), tmp_path / "kits")
    kit = tmp_path / "kits" / "ada@example.org"
    (kit / "local" / "kit.json").unlink()  # as they were before kits said so
    (tmp_path / "experiment.toml").write_text(tomli_w.dumps({"deploy": {"classes": ["a", "b"]}}))
    for words in (["run", "experiment.toml"], ["status"]):
        done = orchard_command("deploy", *words, "--kit", str(kit), cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        reads = f"Orchard {orchard.__version__} reads format 2; use the Orchard that wrote it, or start again"
        said = f"is a startup kit (made by: orchard deploy init) of format 1, but {reads}"
        assert done.stderr == f"orchard: {kit}: {said}\n"
    assert not (tmp_path / "runs").exists()


def test_a_run_on_sites_whose_plan_has_another_format_is_refused_in_one_sentence(tmp_path: Path) -> None:
    plan = {**json.loads(small_plan().to_json()), "format": 1}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "plan.json").write_text(json.dumps(plan))
    for command in ("attach", "stop"):
        done = orchard_command("deploy", command, "run", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        reads = f"Orchard {orchard.__version__} reads format 3; use the Orchard that wrote it, or start again"
        assert done.stderr == f"orchard: run: is a plan of format 1, but {reads}\n"


def test_a_job_is_configuration_only(tmp_path: Path) -> None:
    folder = write_job(tmp_path / "job", small_plan(), ["north", "south"])
    assert {file.suffix for file in folder.rglob("*") if file.is_file()} == {".json"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sites": ["north", "north"]}, "two parties have the same name"),
        ({"sites": ["../north"]}, "letters, digits and hyphens make a name"),
        ({"storage": "runs"}, "must be an absolute path"),
        ({"server": "hub; rm -rf /"}, "server"),
        ({"site": ["north"]}, "site: unknown key; did you mean 'sites'?"),
    ],
)
def test_a_strange_consortium_is_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    file = tmp_path / "consortium.toml"
    file.write_text(tomli_w.dumps({**PARTIES, "sites": ["north"], **changes}))
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        load_consortium(file)


def test_init_says_what_to_keep_safe_and_until_when(tmp_path: Path) -> None:
    (tmp_path / "consortium.toml").write_text(tomli_w.dumps({**PARTIES, "sites": ["north"]}))
    done = orchard_command("deploy", "init", "consortium.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "made: kits/north" in done.stdout
    assert "Keep kits/authority on a machine of its own" in done.stdout
    assert "The first certificate expires on 20" in done.stdout
