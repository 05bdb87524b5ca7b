"""The consortium's authority: which certificates it has issued, and the list of those that it revoked.

Its folder holds the key that signs kits and that list. Nothing here needs a new authority.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchard.errors import UserError
from orchard.sites.revocation import FILE, Revocations, Revoked, fingerprint_of
from orchard.whole import write_durably

if TYPE_CHECKING:
    from cryptography import x509

NO_PARTIES = ("root_cert", "root_pri_key")


@dataclass(frozen=True)
class Issued:
    """A certificate that counts until it expires or is revoked."""

    name: str
    fingerprint: str
    expires: datetime


def issued(authority: Path) -> dict[str, Issued]:
    """Return the certificates that count, by the party's name."""
    found = {}
    for name, entry in _state(authority)[1].items():
        if name not in NO_PARTIES:
            certificate = _parsed(entry["cert"])
            expires = certificate.not_valid_after_utc.astimezone(UTC)
            found[name] = Issued(name, fingerprint_of(certificate), expires)
    return found


def revocations(authority: Path) -> tuple[Revocations, str]:
    """Return the list of revoked certificates and its signed text; an empty one if none was revoked."""
    file = authority / FILE
    if not file.is_file():
        return Revocations(), ""
    text = file.read_text("utf-8")
    return Revocations.verified(text, _parsed(_state(authority)[1]["root_cert"])), text


def revoke(out: Path, name: str) -> tuple[Revoked, list[Path]]:
    """Revoke a party's certificate; return it, and the kits here that have the new list.

    The party's kit is put away. If it is still to take part, `deploy init` makes it another one.
    """
    authority = out / "authority"
    file, state = _state(authority)
    counting = issued(authority)
    if name not in counting:
        raise UserError(f"{name}: has no certificate that counts; {', '.join(sorted(counting))} have one")
    if (out / name / "startup" / "fed_server.json").exists():
        raise UserError(
            f"{name}: is the server, which sites know by the authority alone: make new kits in a new folder"
        )
    entry = Revoked(name=name, fingerprint=counting[name].fingerprint, day=f"{datetime.now(UTC):%Y-%m-%d}")
    known, _ = revocations(authority)
    text = Revocations(number=known.number + 1, revoked=[*known.revoked, entry]).signed(_key(state))
    write_durably(authority / FILE, text)
    kits = hand_out(out, text)
    if (out / name).exists():
        (out / name).rename(out / f".{name}.revoked-{entry.fingerprint[:8]}")
    del state[name]  # last: until then, the same command again does what a crash has left undone
    write_durably(file, json.dumps(state))
    return entry, [kit for kit in kits if kit.exists()]


def hand_out(out: Path, text: str) -> list[Path]:
    """Write the signed list into the kits of the server and the coordinator; return these."""
    kits = [
        file.parents[1] for pattern in ("server", "admin") for file in out.glob(f"[!.]*/startup/fed_{pattern}.json")
    ]
    for kit in kits:
        write_durably(kit / "local" / FILE, text)
    return kits


def _state(authority: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file in which FLARE keeps what it has issued, and its content."""
    found = list(authority.glob("*/state/cert.json"))
    if len(found) != 1:
        raise UserError(f"{authority}: is not the folder of an authority (made by: orchard deploy init)")
    state: dict[str, Any] = json.loads(found[0].read_text("utf-8"))
    return found[0], state


def _parsed(text: str) -> "x509.Certificate":
    from cryptography import x509

    return x509.load_pem_x509_certificate(text.encode())


def _key(state: dict[str, Any]) -> Any:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    return load_pem_private_key(state["root_pri_key"].encode(), password=None)
