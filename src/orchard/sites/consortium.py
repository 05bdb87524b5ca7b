"""Who takes part: a file that the coordinator writes, from which all startup kits are made."""

import re
from pathlib import Path, PurePosixPath
from typing import Self

from pydantic import Field, model_validator

from orchard.settings import Settings, read_toml, validated
from orchard.sites.kit import check_kit
from orchard.sites.plan import NAME

FILE = "local/consortium.toml"
"""Its path in a startup kit."""
HOST = r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?"
ADMIN = r"[A-Za-z0-9._-]+@[A-Za-z0-9.-]+"


class Consortium(Settings):
    """A server, its sites and their coordinator."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,62}$", description="small letters, digits and hyphens")
    server: str = Field(pattern=f"^{HOST}$", description="the name under which sites reach the server")
    port: int = Field(default=8002, ge=1, le=65535, description="the only one that must be open, at the server alone")
    coordinator: str = Field(pattern=f"^{ADMIN}$", description="an address, which is the coordinator's name")
    sites: list[str] = Field(min_length=1, description="letters, digits and hyphens make a name")
    storage: str = Field(default="/var/lib/orchard", description="the server's folder for jobs and runs")
    message_mb: int = Field(
        default=1024, ge=1, description="no message may be larger; one holds a model, or all others'"
    )
    days: int = Field(default=360, ge=1, description="how long the authority's certificate is valid")

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for site in self.sites:
            if not re.fullmatch(NAME, site):
                raise ValueError(f"sites: {site!r}: letters, digits and hyphens make a name")
        if len({self.server, *self.sites}) < len(self.sites) + 1:
            raise ValueError("sites: two parties have the same name")
        if not PurePosixPath(self.storage).is_absolute():
            raise ValueError(f"storage = {self.storage!r}: must be an absolute path")
        return self


def load_consortium(file: Path) -> Consortium:
    """Read and check the coordinator's file."""
    return validated(Consortium, read_toml(file), f"{file}: ")


def consortium_of(kit: Path) -> Consortium:
    """Return the consortium that a startup kit belongs to."""
    check_kit(kit)
    return load_consortium(kit / FILE)
