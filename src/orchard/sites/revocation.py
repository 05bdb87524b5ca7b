"""Revoked certificates: a list that the authority signs, which the server honours and sites see.

Each list has a number and names all certificates that were ever revoked, so the newest one says everything. Who has no
key of the authority can neither write one nor shorten it; who carries it can only keep back a newer one.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field

from orchard.errors import UserError
from orchard.settings import Settings
from orchard.sites.kit import storage_of
from orchard.whole import write_durably

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.padding import PSS
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

FILE = "revoked.json"
"""Its name in a kit's folder `local` and in a job; elsewhere with `mark_of` the authority before it."""
PURPOSE = b"orchard: revoked certificates\n"
"""What is signed begins with it, so that the signature is good for nothing else."""
FINGERPRINT = r"[0-9a-f]{64}"


class Revoked(Settings):
    """A certificate that counts no more."""

    name: str = Field(max_length=255)
    fingerprint: str = Field(pattern=f"^{FINGERPRINT}$")
    day: str = Field(pattern=r"^\d{4}-\d\d-\d\d$")


class Revocations(Settings):
    """All certificates that were revoked; `number` grows with each list."""

    number: int = Field(default=0, ge=0)
    revoked: list[Revoked] = Field(default=[])

    def __contains__(self, fingerprint: object) -> bool:
        return any(entry.fingerprint == fingerprint for entry in self.revoked)

    def signed(self, key: "RSAPrivateKey") -> str:
        """Return the list as text, with the authority's signature."""
        from cryptography.hazmat.primitives.hashes import SHA256

        said = self.model_dump_json()
        signature = key.sign(PURPOSE + said.encode(), _padding(), SHA256())
        return json.dumps({"list": said, "signature": base64.b64encode(signature).decode()}) + "\n"

    @classmethod
    def verified(cls, text: str, authority: "x509.Certificate") -> Self:
        """Read a list; raise if the authority did not sign it."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
        from cryptography.hazmat.primitives.hashes import SHA256

        key = authority.public_key()
        try:
            content: Mapping[str, Any] = json.loads(text)
            said, signature = str(content["list"]), base64.b64decode(content["signature"], validate=True)
            if not isinstance(key, RSAPublicKey):
                raise TypeError
            key.verify(signature, PURPOSE + said.encode(), _padding(), SHA256())
            return cls.model_validate_json(said)
        except (ValueError, KeyError, TypeError, RecursionError, InvalidSignature, UserError):
            raise UserError("is not a list of revoked certificates that this consortium's authority signed") from None


def _padding() -> "PSS":
    from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS
    from cryptography.hazmat.primitives.hashes import SHA256

    return PSS(MGF1(SHA256()), PSS.DIGEST_LENGTH)


def fingerprint_of(certificate: "x509.Certificate") -> str:
    """Return what tells a certificate from all others."""
    from cryptography.hazmat.primitives.hashes import SHA256

    return certificate.fingerprint(SHA256()).hex()


def certificate_in(file: Path) -> "x509.Certificate":
    """Read a certificate."""
    from cryptography import x509

    return x509.load_pem_x509_certificate(file.read_bytes())


def authority_of(kit: Path) -> "x509.Certificate":
    """Return the authority's certificate, which every kit holds."""
    return certificate_in(kit / "startup" / "rootCA.pem")


def mark_of(kit: Path) -> str:
    """Return what tells a kit's authority from others: what was said under one counts for nothing under the next."""
    file = kit / "startup" / "rootCA.pem"
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise UserError(f"{kit}: is not a whole startup kit: {file}: {error.strerror}") from None


def newest(kit: Path, files: Iterable[Path]) -> tuple[Revocations, str]:
    """Return the newest list among some files, and its text; an empty one if there is none. Raise if one is forged."""
    best, text = Revocations(), ""
    for file in files:
        if file.is_file():
            try:
                content = file.read_text("utf-8")
                found = Revocations.verified(content, authority_of(kit))
            except (OSError, UnicodeDecodeError, UserError) as error:
                raise UserError(f"{file}: {error}") from None
            if found.number > best.number:
                best, text = found, content
    return best, text


def keep_newest(file: Path, others: Iterable[Path], kit: Path) -> None:
    """Replace a list by a newer one among others; raise if the authority did not sign it."""
    known, _ = newest(kit, [file])
    brought, text = newest(kit, others)
    if brought.number > known.number:
        write_durably(file, text)


def stored_at_server(kit: Path) -> Path:
    """Return where a server keeps the list that jobs bring."""
    return storage_of(kit) / f"{mark_of(kit)}-{FILE}"


def at_server(kit: Path) -> Revocations:
    """Return the newest list that a server has: in its kit, or in its storage."""
    return newest(kit, [kit / "local" / FILE, stored_at_server(kit)])[0]
