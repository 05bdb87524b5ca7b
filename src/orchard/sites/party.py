"""A party as a process in the foreground: start FLARE, start it again if it dies, end it on a signal, say how it is.

The kit is only read. What FLARE writes, its log and its jobs, is in a folder of its own, in the party's records or
storage.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchard.errors import UserError
from orchard.sites.kit import SERVER, SERVER_ENVIRONMENT, WHOSE, check_kind, storage_of
from orchard.sites.settings import load_site

Kind = Literal["site", "server"]

HOME = ".flare"
"""The folder in records or storage that FLARE may write."""
MODULES: dict[Kind, str] = {"site": "client.client_train", "server": "server.server_train"}


@dataclass(frozen=True)
class Party:
    """A server or a site, as its startup kit describes it."""

    kind: Kind
    name: str
    kit: Path
    home: Path
    port: int
    """The server's."""

    def command(self, python: str) -> list[str]:
        """Return the command that runs FLARE in the foreground."""
        module = f"nvflare.private.fed.app.{MODULES[self.kind]}"
        about = [f"uid={self.name}", f"org={self.name}"] if self.kind == "site" else ["org=server"]
        options = ["-m", str(self.home), "-s", WHOSE[self.kind], "--set", "secure_train=true", *about]
        return [python, "-u", "-m", module, *options, "config_folder=config"]

    def environment(self) -> dict[str, str]:
        """Return the variables that FLARE's processes need besides those that are set."""
        return SERVER_ENVIRONMENT if self.kind == "server" else {"MALLOC_ARENA_MAX": "4"}

    def make_home(self) -> None:
        """Make the folder that FLARE writes."""
        with self._explained():
            self.home.mkdir(parents=True, exist_ok=True)
            self.home.chmod(0o700)
            (self.home / "transfer").mkdir(exist_ok=True)

    def link_kit(self) -> None:
        """Let that folder have links to what FLARE reads."""
        with self._explained():
            for name in ("startup", "local"):
                _link_all(self.kit / name, self.home / name)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(f"{error.filename or self.home}: cannot be written: {error.strerror}") from None


def _link_all(folder: Path, to: Path) -> None:
    """Fill a folder with links to what another holds; FLARE does not look into folders that are links themselves."""
    to.mkdir(exist_ok=True)
    for old in to.iterdir():
        old.unlink()
    for there in folder.resolve().iterdir():
        (to / there.name).symlink_to(there)


def party_of(kit: Path, kind: Kind) -> Party:
    """Return the party that a kit belongs to; raise if it is not of this kind."""
    check_kind(kit, kind)
    file = kit / "startup" / WHOSE[kind]
    try:
        said: dict[str, Any] = json.loads(file.read_text("utf-8"))
        service: str = said["servers"][0]["service"]["target"]
        name = service.rpartition(":")[0] if kind == "server" else said["client"]["fqsn"]
        port = int(service.rpartition(":")[2])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{file}: is not as orchard deploy init has made it: {error}") from None
    return Party(
        kind, name, kit.resolve(), (_storage(kit) if kind == "server" else load_site(kit).records) / HOME, port
    )


def _storage(kit: Path) -> Path:
    try:
        return storage_of(kit)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{kit / SERVER}: does not say where the server's storage is: {error}") from None
