"""Who takes part: names with fingerprints of certificates. A site trains with nobody whom it has not accepted.

The members of the day a kit is made count as accepted: who takes the kit agrees to them. Each job tells the sites the
members of the day it is submitted, signed by the coordinator as all of the job is. With somebody new among those of a
run, a site takes no part until its operator accepts them: `orchard site accept`.
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from orchard.engines.flare.messages import MessageRejected
from orchard.errors import UserError
from orchard.sites.consortium import consortium_of
from orchard.sites.plan import NAME
from orchard.sites.revocation import FILE as REVOKED
from orchard.sites.revocation import FINGERPRINT, keep_newest, mark_of, newest
from orchard.sites.settings import SiteSettings, load_site
from orchard.whole import write_durably

log = logging.getLogger(__name__)

FILE = "members.json"
"""In a kit's folder `local`: those that its site has accepted; at the coordinator, all. In a job: those of the day."""
NOT_ACCEPTED = "new member not accepted"
CERTIFICATE_REVOKED = "certificate revoked"

Members = Mapping[str, str]
"""The fingerprint of each site's certificate, by name."""


def members_of(kit: Path) -> dict[str, str]:
    """Return the members that a kit knows, or that its site has accepted."""
    return read_members(kit / "local" / FILE)


def read_members(file: Path) -> dict[str, str]:
    """Return the members in a file; none if there is no file."""
    try:
        content = json.loads(file.read_text("utf-8"))["members"]
        if not all(re.fullmatch(NAME, name) and re.fullmatch(FINGERPRINT, print) for name, print in content.items()):
            raise ValueError("expected names and fingerprints")
        return dict(content)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{file}: cannot be read: {error}") from None


def write_members(file: Path, members: Members) -> None:
    """Write members into a file, with the time."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    write_durably(file, json.dumps({"told": now, "members": dict(members)}, indent=2) + "\n")


# --- At a site ---


def check_members(kit: Path, settings: SiteSettings, job: Path, sites: Sequence[str]) -> None:
    """Take note of a job's members and revoked certificates; raise if the site must agree to somebody first."""
    told, before = read_members(job / FILE), known_members(kit, settings)
    for change in changes(before, told):
        log.warning("%s", change)
    settings.records.mkdir(parents=True, exist_ok=True)
    if told != before or not told_in(kit, settings, FILE).exists():
        write_members(told_in(kit, settings, FILE), told)
    keep_newest(told_in(kit, settings, REVOKED), [job / REVOKED], kit)
    unknown = not_accepted(kit, told, sites)
    if unknown and settings.consent:
        log.error("not accepted: %s; accept with: orchard site accept %s NAME", ", ".join(unknown), kit)
        raise MessageRejected(NOT_ACCEPTED)


def told_in(kit: Path, settings: SiteSettings, name: str) -> Path:
    """Return where a site keeps what it was told last: not in its kit, which may be read-only."""
    return settings.records / f"{consortium_of(kit).name}-{mark_of(kit)}-{name}"


def changes(before: Members, now: Members) -> Iterator[str]:
    """Yield what has changed between two sets of members."""
    for name in sorted(now.keys() - before.keys()):
        yield f"{name} has joined"
    for name in sorted(before.keys() - now.keys()):
        yield f"{name} has left"
    for name in sorted(now.keys() & before.keys()):
        if now[name] != before[name]:
            yield f"{name} has another certificate"


def not_accepted(kit: Path, told: Members, sites: Sequence[str]) -> list[str]:
    """Return which sites this one has not accepted with the certificates that they have now."""
    accepted = members_of(kit)
    return [name for name in sites if name not in accepted or told.get(name, accepted[name]) != accepted[name]]


def accept(kit: Path, name: str) -> str:
    """Accept a member that this site was told of; return its fingerprint."""
    told = known_members(kit, load_site(kit))
    if name not in told:
        waiting = ", ".join(not_accepted(kit, told, list(told))) or "nobody"
        raise UserError(f"{name}: this site was not told of such a member; to be accepted: {waiting}")
    file = kit / "local" / FILE
    try:
        write_members(file, {**members_of(kit), name: told[name]})
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror}; accept where the kit is writable") from None
    return told[name]


def known_members(kit: Path, settings: SiteSettings) -> dict[str, str]:
    """Return who takes part as a site was told last, or as its kit says."""
    return read_members(told_in(kit, settings, FILE)) or members_of(kit)


def known_sites(kit: Path, settings: SiteSettings) -> list[str]:
    """Return their names; of a kit that was made without members, those in its consortium."""
    return list(known_members(kit, settings)) or consortium_of(kit).sites


def described(kit: Path, settings: SiteSettings, own: str) -> Iterator[str]:
    """Yield who takes part as far as a site knows, for its operator."""
    file, known, accepted = told_in(kit, settings, FILE), known_members(kit, settings), members_of(kit)
    if not known:
        return
    day = json.loads(file.read_text("utf-8"))["told"][:10] if file.exists() else ""
    since = f"this site was told on {day}" if day else "its kit says"
    yield f"takes part, as {since}: {', '.join(known)}"
    if own in known:
        yield f"  this site's certificate: {known[own]}"
    else:
        yield "  this site does not"
    for change in changes(accepted, known):
        yield f"  since this site agreed: {change}"
    for name in not_accepted(kit, known, list(known)):
        must = "this site takes part with it only after" if settings.consent else "it may be accepted with"
        yield f"  {name}, certificate {known[name]}: {must}: orchard site accept {kit} {name}"
    for entry in newest(kit, [told_in(kit, settings, REVOKED)])[0].revoked:
        yield f"  revoked on {entry.day}: {entry.name}'s certificate {entry.fingerprint}"
