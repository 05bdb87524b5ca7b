"""Sites that join and leave: the others are told, and agree first; who was shut out does not come in again."""

import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import tomli_w

from processes import orchard_command

pytest.importorskip("nvflare")

from nvflare.apis.fl_context import FLContext
from nvflare.fuel.hci.server.sess import SessionManager
from nvflare.private.fed.server.client_manager import ClientManager
from nvflare.private.fed.server.cred_keeper import CredKeeper
from nvflare.private.fed.utils.identity_utils import IdentityAsserter, InvalidAsserterCert

from orchard.engines.flare.messages import MessageRejected
from orchard.errors import UserError
from orchard.sites import authority
from orchard.sites.admission import Door
from orchard.sites.authority import issued, revocations, revoke
from orchard.sites.consortium import Consortium
from orchard.sites.job import write_job
from orchard.sites.members import NOT_ACCEPTED, accept, check_members, described, members_of
from orchard.sites.provision import make_kits
from orchard.sites.revocation import (
    Revocations,
    at_server,
    authority_of,
    certificate_in,
    fingerprint_of,
    keep_newest,
    newest,
    stored_at_server,
)
from orchard.sites.settings import load_site
from orchard.whole import write_durably
from sites import small_plan

PARTIES = {"name": "lungs", "server": "hub", "coordinator": "ada@example.org"}


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    make(tmp_path, "north", "south")
    return tmp_path / "kits"


def make(home: Path, *sites: str, out: str = "kits") -> None:
    values = {**PARTIES, "storage": str(home / "storage"), "sites": list(sites)}
    make_kits(Consortium.model_validate(values), home / out)
    (home / "storage" / "lungs").mkdir(parents=True, exist_ok=True)


def job(kits: Path) -> Path:
    """Return the configuration of a job that the coordinator submits now."""
    folder = kits.parent / "job"
    shutil.rmtree(folder, ignore_errors=True)
    return write_job(folder, small_plan(), ["north"], kits / "ada@example.org") / "app" / "config"


def told(kits: Path, site: str, *sites: str) -> None:
    """Let a site take note of a job for some sites."""
    check_members(kits / site, load_site(kits / site), job(kits), sites)


def lines(kits: Path, site: str) -> str:
    return "\n".join(described(kits / site, load_site(kits / site), site))


def test_the_members_of_the_day_a_kit_is_made_are_accepted(kits: Path) -> None:
    told(kits, "north", "north", "south")
    prints = {
        name: fingerprint_of(certificate_in(kits / name / "startup" / "client.crt")) for name in ("north", "south")
    }
    assert members_of(kits / "north") == members_of(kits / "ada@example.org") == prints


def test_a_site_trains_with_a_new_member_only_after_its_operator_has_accepted_it(
    kits: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(kits.parent, "north", "south", "east")
    told(kits, "north", "north", "south")  # a run that began before
    assert "east has joined" in caplog.text
    with pytest.raises(MessageRejected, match=NOT_ACCEPTED):
        told(kits, "north", "north", "south", "east")
    assert "orchard site accept" in lines(kits, "north")
    assert "takes part, as this site was told on 20" in lines(kits, "north")
    assert accept(kits / "north", "east") == fingerprint_of(certificate_in(kits / "east" / "startup" / "client.crt"))
    told(kits, "north", "north", "south", "east")
    assert "accept" not in lines(kits, "north")
    told(kits, "east", "north", "south", "east")  # whose kit has them all
    with pytest.raises(MessageRejected, match=NOT_ACCEPTED):
        told(kits, "south", "north", "south", "east")
    with pytest.raises(UserError, match="west: this site was not told of such a member; to be accepted: east"):
        accept(kits / "south", "west")


def test_a_site_may_leave_the_choice_to_the_coordinator(kits: Path) -> None:
    make(kits.parent, "north", "south", "east")
    file = kits / "north" / "local" / "site.toml"
    file.write_text(file.read_text().replace("consent = true", "consent = false"))
    told(kits, "north", "north", "south", "east")


def test_nobody_gets_around_consent_by_not_being_announced(kits: Path) -> None:
    with pytest.raises(MessageRejected, match=NOT_ACCEPTED):
        told(kits, "north", "north", "south", "west")


def test_a_site_is_told_who_has_left_and_goes_on(kits: Path, caplog: pytest.LogCaptureFixture) -> None:
    make(kits.parent, "north")
    told(kits, "north", "north", "south")  # a run that began before
    assert "south has left" in caplog.text
    assert "since this site agreed: south has left" in lines(kits, "north")


def test_a_member_with_a_new_certificate_must_be_accepted_again(kits: Path) -> None:
    revoke(kits, "south")
    assert not (kits / "south").exists()
    make(kits.parent, "north", "south")
    with pytest.raises(MessageRejected, match=NOT_ACCEPTED):
        told(kits, "north", "north", "south")
    said = lines(kits, "north")
    assert "south has another certificate" in said
    assert "revoked on 20" in said
    accept(kits / "north", "south")
    told(kits, "north", "north", "south")


def test_init_says_which_old_certificates_count_and_revoke_ends_that(tmp_path: Path) -> None:
    make(tmp_path, "north", "south")
    consortium = Consortium.model_validate({**PARTIES, "storage": str(tmp_path), "sites": ["north"]})
    old = make_kits(consortium, tmp_path / "kits").old
    assert [entry.name for entry in old] == ["south"]
    entry, written = revoke(tmp_path / "kits", "south")
    assert entry.fingerprint == old[0].fingerprint
    assert {kit.name for kit in written} == {"hub", "ada@example.org"}
    after = make_kits(consortium, tmp_path / "kits")
    assert (after.old, after.revoked) == ([], [entry])
    assert "south" not in issued(tmp_path / "kits" / "authority")
    for name, message in (
        ("south", "has no certificate that counts; ada@example.org, hub, north have one"),
        ("hub", "is the server"),
    ):
        with pytest.raises(UserError, match=message):
            revoke(tmp_path / "kits", name)


def test_only_the_authority_writes_the_list_and_an_older_one_replaces_no_newer(kits: Path, tmp_path: Path) -> None:
    make(tmp_path, "north", "south", out="others")
    revoke(kits, "south")
    _, first = revocations(kits / "authority")
    revoke(kits, "north")
    _, second = revocations(kits / "authority")
    assert [len(Revocations.verified(text, authority_of(kits / "hub")).revoked) for text in (first, second)] == [1, 2]
    revoke(tmp_path / "others", "north")
    _, foreign = revocations(tmp_path / "others" / "authority")
    shortened = json.dumps({**json.loads(second), "list": json.loads(first)["list"]})
    for text in (foreign, shortened, "[]", "", '{"list": "x", "signature": "eA=="}'):
        with pytest.raises(UserError, match="is not a list of revoked certificates that this consortium's authority"):
            Revocations.verified(text, authority_of(kits / "hub"))
    (kits / "hub" / "local" / "revoked.json").unlink()
    for text in (second, first):
        (tmp_path / "brought.json").write_text(text)
        keep_newest(stored_at_server(kits / "hub"), [tmp_path / "brought.json"], kits / "hub")
    assert at_server(kits / "hub").number == 2


def test_a_token_is_good_as_long_as_the_certificate_that_it_was_given_for(kits: Path) -> None:
    south = fingerprint_of(certificate_in(kits / "south" / "startup" / "client.crt"))
    door = Door(kits / "hub")
    door.shown = {"south": south, "north": "00"}
    for name in door.shown:
        door.admit(name, f"token of {name}")
    assert door.may_stay("south", "token of south")
    assert door.may_stay("south", "one from before the server was started anew")
    revoke(kits, "south")
    for token in ("token of south", "one from before the server was started anew"):
        assert not Door(kits / "hub").may_stay("south", token)
    assert door.may_stay("north", "token of north")
    with ThreadPoolExecutor(8) as threads:  # as when a server has been started anew
        list(threads.map(lambda k: door.admit(f"site {k}", "token"), range(32)))
    assert len(door._admitted()) == 34
    door.shown["south"] = "11"  # a new certificate
    door.admit("south", "new token")
    assert door.may_stay("south", "new token")
    assert not door.may_stay("south", "token of south")
    (kits / "hub" / "local" / "revoked.json").write_text("cut off")
    assert not door.may_stay("north", "token of north")


def test_a_new_authority_begins_with_a_clean_list(kits: Path) -> None:
    """As before certificates expire: storage and records stay, with what was revoked and told under the old one."""
    make(kits.parent, "north", "south", "east")
    revoke(kits, "east")
    make(kits.parent, "north", "south", "east")
    told(kits, "north", "north", "south")
    assert "since this site agreed: east has joined" in lines(kits, "north")
    keep_newest(stored_at_server(kits / "hub"), [job(kits) / "revoked.json"], kits / "hub")
    assert len(at_server(kits / "hub").revoked) == 1
    make(kits.parent, "north", "south", "east", out="next")
    following = kits.parent / "next"
    assert at_server(following / "hub").revoked == []
    assert "since this site agreed" not in lines(following, "north")
    told(following, "north", "north", "south", "east")


def test_a_revocation_that_was_cut_short_is_finished_by_the_same_command(
    kits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a crash has left undone, of its four writes and one rename."""
    for done in range(5):
        name, left = f"site-{done}", iter(range(done))
        make(kits.parent, "north", "south", name)

        def cut_short(path: Path, text: str, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            write_durably(path, text)

        with monkeypatch.context() as context:
            context.setattr(authority, "write_durably", cut_short)
            with suppress(KeyboardInterrupt):
                revoke(kits, name)
        if name in issued(kits / "authority"):
            revoke(kits, name)
        assert (name in issued(kits / "authority"), (kits / name).exists()) == (False, False)
        assert name in {entry.name for entry in at_server(kits / "hub").revoked}
        assert name in {
            entry.name for entry in newest(kits / "hub", [kits / "ada@example.org/local/revoked.json"])[0].revoked
        }


def test_administration_asks_the_list_too(kits: Path) -> None:
    """FLARE checks the coordinator's certificate a second time, when a session begins, with means of its own."""
    server = SimpleNamespace(client_manager=ClientManager(), set_admin_server=lambda admin: None)
    admin = SimpleNamespace(cred_keeper=CredKeeper(), sess_mgr=SessionManager(None))
    Door(kits / "hub").guard(server)
    server.set_admin_server(admin)
    certificate = certificate_in(kits / "ada@example.org" / "startup" / "client.crt")
    revoke(kits, "ada@example.org")
    for keeper in (server.client_manager.cred_keeper, admin.cred_keeper):
        with pytest.raises(InvalidAsserterCert, match="it was revoked"):
            keeper.get_id_verifier(FLContext()).verify_common_name(
                asserted_cn="ada@example.org", asserter_cert=certificate, signature="", nonce=""
            )


def test_a_session_ends_with_the_certificate_that_it_began_with_and_no_other(kits: Path) -> None:
    """FLARE takes a session's token for good, even after the server was started anew."""
    ada, startup = "ada@example.org", kits / "hub" / "startup"
    cell = SimpleNamespace(fire_and_forget=lambda **message: None)
    asserter = IdentityAsserter(str(startup / "server.key"), str(startup / "server.crt"))

    def served() -> tuple[Door, SessionManager]:
        door, manager = Door(kits / "hub"), SessionManager(cell)
        door.guard_sessions(manager)
        return door, manager

    def begun(door: Door, manager: SessionManager) -> str:
        door.shown[ada] = fingerprint_of(certificate_in(kits / ada / "startup" / "client.crt"))
        token: str = manager.create_session(ada, "org", "project_admin", "origin").make_token(asserter)
        return token

    door, manager = served()
    old = begun(door, manager)
    assert manager.get_session(old, asserter)
    revoke(kits, ada)
    make(kits.parent, "north", "south")
    new = begun(door, manager)
    assert manager.get_session(new, asserter)
    assert manager.get_session(old, asserter) is None
    for one in (manager, served()[1]):
        with pytest.raises(ValueError, match="certificate revoked"):
            one.recreate_session(old, "origin", asserter)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives files away")
def test_what_root_accepts_the_service_can_read(kits: Path) -> None:
    """As the units have it: the kit belongs to root and to the group that the site runs as."""
    make(kits.parent, "north", "south", "east")
    with pytest.raises(MessageRejected, match=NOT_ACCEPTED):
        told(kits, "north", "north", "south", "east")
    file = kits / "north" / "local" / "members.json"
    os.chown(file, 0, 12345)
    file.chmod(0o640)
    accept(kits / "north", "east")
    assert (file.stat().st_gid, file.stat().st_mode & 0o777) == (12345, 0o640)


def test_the_commands_say_which_certificates_count(tmp_path: Path) -> None:
    def init(*sites: str) -> str:
        values = {**PARTIES, "storage": str(tmp_path / "storage"), "sites": list(sites)}
        (tmp_path / "consortium.toml").write_text(tomli_w.dumps(values))
        return orchard_command("deploy", "init", "consortium.toml", cwd=tmp_path).stdout

    assert "counts until" not in init("north", "south")
    assert "revoke it with: orchard deploy revoke south -o kits" in init("north")
    done = orchard_command("deploy", "revoke", "south", cwd=tmp_path)
    assert "written: kits/hub/local/revoked.json" in done.stdout
    again = init("north")
    assert "counts until" not in again
    assert "was revoked on 20" in again
    refused = orchard_command("deploy", "revoke", "south", cwd=tmp_path)
    assert (refused.returncode, refused.stderr.count("has no certificate that counts")) == (2, 1)
