"""What FLARE runs at the server besides jobs: it lets nobody in whose certificate was revoked.

FLARE knows no such lists. It checks a party's certificate when the party registers, and gives it a token that is good
for as long as its process lives, even if the server is started anew. A session of the coordinator is no different. So
the list is asked each time: when somebody registers, at every heartbeat, and at every command of a session. If a list
cannot be read, nobody is let in.
"""

import hashlib
import json
import logging
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.defs import IdentityChallengeKey
from nvflare.private.fed.utils.identity_utils import IdentityVerifier, InvalidAsserterCert

from orchard.errors import UserError
from orchard.sites.kit import storage_of, true_kit
from orchard.sites.members import CERTIFICATE_REVOKED
from orchard.sites.revocation import Revocations, at_server, fingerprint_of
from orchard.whole import write_durably

log = logging.getLogger(__name__)

ADMITTED = "admitted.json"
"""In the server's storage: by name, a hash of its token, and the certificate that it showed for that."""


class Admission(FLComponent):  # type: ignore[misc]
    """Asks the list of revoked certificates wherever FLARE lets somebody in."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Take the door over when the server starts."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            workspace, server = (fl_ctx.get_prop(k) for k in (FLContextKey.WORKSPACE_OBJECT, FLContextKey.SITE_OBJ))
            Door(true_kit(Path(workspace.get_root_dir()))).guard(server)


class Door:
    """The server's decisions about who is let in."""

    def __init__(self, kit: Path) -> None:
        self.kit = kit
        self.file = storage_of(kit) / ADMITTED
        self.lock = threading.Lock()
        self.shown: dict[str, str] = {}
        """The certificate that each party showed last, by name."""
        self.turned_away: set[str] = set()
        """Who showed a revoked one last."""
        self.sessions: dict[str, str] = {}
        """The certificate that the coordinator showed for a session, by the session's number."""

    def guard(self, server: Any) -> None:
        """Ask before FLARE's manager of clients lets somebody in, or its administration the coordinator."""
        manager, take = server.client_manager, server.set_admin_server
        authenticate, heartbeat = manager.authenticate, manager.heartbeat

        def registered(request: Any, fl_ctx: FLContext) -> Any:
            client = authenticate(request, fl_ctx)
            if client is not None:
                self.admit(client.name, client.token)
            elif _named_in(request.payload) in self.turned_away:
                fl_ctx.set_prop(FLContextKey.UNAUTHENTICATED, CERTIFICATE_REVOKED, sticky=False)
            return client

        def alive(token: str, name: str, fqcn: str, fl_ctx: FLContext) -> bool:
            if self.may_stay(name, token):
                return bool(heartbeat(token, name, fqcn, fl_ctx))
            manager.remove_client(token)
            fl_ctx.set_prop(FLContextKey.UNAUTHENTICATED, CERTIFICATE_REVOKED, sticky=False)
            return False

        manager.authenticate, manager.heartbeat = registered, alive

        def administered(admin: Any) -> None:  # it comes later, and checks certificates by itself
            admin.cred_keeper.id_verifier = Verifier(self)
            self.guard_sessions(admin.sess_mgr)
            take(admin)

        server.set_admin_server = administered
        manager.cred_keeper.id_verifier = Verifier(self)

    def guard_sessions(self, manager: Any) -> None:
        """Let the coordinator's sessions end when the certificate is revoked that was shown for them."""
        create, get, recreate = manager.create_session, manager.get_session, manager.recreate_session

        def created(user_name: str, *rest: Any, **named: Any) -> Any:
            session = create(user_name, *rest, **named)
            self.sessions[session.sess_id] = self.shown.get(user_name, "")
            return session

        def found(*token: Any) -> Any:
            session = get(*token)
            return None if session is None or ended(session) else session

        def recreated(*token: Any) -> Any:
            session = recreate(*token)
            if ended(session):
                raise ValueError(CERTIFICATE_REVOKED)
            return session

        def ended(session: Any) -> bool:
            if self._counts(session.user_name, self.sessions.get(session.sess_id, "")):
                return False
            manager.end_session_by_id(session.sess_id, CERTIFICATE_REVOKED)
            return True

        manager.create_session, manager.get_session, manager.recreate_session = created, found, recreated

    def revoked(self) -> Revocations:
        """Return the newest list that the server has."""
        return at_server(self.kit)

    def admit(self, name: str, token: str) -> None:
        """Remember with which certificate a party got its token."""
        with self.lock, suppress(OSError):  # several come at once; with a full disk they come in all the same
            write_durably(self.file, json.dumps({**self._admitted(), name: [_hash(token), self.shown.get(name, "")]}))

    def may_stay(self, name: str, token: str) -> bool:
        """Tell whether a party's token is still good."""
        known, certificate = self._admitted().get(name, ["", ""])
        return self._counts(name, certificate if known == _hash(token) else "")

    def _counts(self, name: str, certificate: str) -> bool:
        """Tell whether a party's certificate counts; if nobody knows which it was, none of that name may be revoked."""
        try:
            revoked = self.revoked()
        except UserError:
            return False
        return certificate not in revoked if certificate else all(entry.name != name for entry in revoked.revoked)

    def _admitted(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            return dict(json.loads(self.file.read_text("utf-8")))
        return {}


class Verifier(IdentityVerifier):  # type: ignore[misc]
    """FLARE's check of a certificate, which asks the list too."""

    def __init__(self, door: Door) -> None:
        super().__init__(root_cert_file=str(door.kit / "startup" / "rootCA.pem"))
        self.door = door

    def verify_common_name(self, asserted_cn: str, nonce: str, asserter_cert: Any, *rest: Any, **named: Any) -> bool:
        """Raise if the certificate was revoked, or is not what FLARE wants."""
        shown = fingerprint_of(asserter_cert)
        if shown in self.door.revoked():
            log.warning("%s is not let in: its certificate was revoked", asserted_cn)
            self.door.turned_away.add(asserted_cn)
            raise InvalidAsserterCert("it was revoked")
        good = bool(super().verify_common_name(asserted_cn, nonce, asserter_cert, *rest, **named))
        self.door.shown[asserted_cn] = shown
        self.door.turned_away.discard(asserted_cn)
        return good


def _named_in(payload: object) -> str:
    """Return the name that somebody gives who wants to be let in, whatever they send."""
    return str(payload.get(IdentityChallengeKey.COMMON_NAME)) if isinstance(payload, dict) else ""


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
