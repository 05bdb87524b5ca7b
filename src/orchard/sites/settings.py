"""What a site decides for itself; no message from the server can change it."""

from pathlib import Path

from pydantic import Field

from orchard.errors import UserError
from orchard.settings import LaxPath, Settings, read_toml, validated
from orchard.sites.kit import check_kind, true_kit

FILE = "local/site.toml"
"""Their path in a site's kit."""


class SiteSettings(Settings):
    """The file `local/site.toml` of a site's kit; paths are relative to the kit's folder."""

    data: LaxPath = Field(description="an .npz, a table, or a folder of images")
    records: LaxPath = Field(description="outside of the kit, and of this site alone: what a crash must not lose")
    device: str = Field(default="cpu", description="where networks are trained, by PyTorch's name: cpu, cuda, cuda:1")
    threads: int = Field(default=1, ge=1, description="compute threads; with others, the last bits differ")
    rounds_kept: int = Field(
        default=20, ge=1, description="how old a backup of the server may be, in rounds; each keeps one upload on disk"
    )
    consent: bool = Field(default=True, description="train with a new member only after: orchard site accept")
    models: list[str] = Field(
        default=[], description='networks of your own that a run may name: "package.module:factory"'
    )
    epsilon: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="the most that all runs recorded here may spend together; runs without [privacy] are then refused",
    )
    statistics: bool = Field(
        default=False, description="whether the coordinator may ask for statistics before training"
    )


def load_site(kit: Path) -> SiteSettings:
    """Read a site's settings from its kit."""
    file = kit / FILE
    check_kind(kit, "site")
    settings = validated(SiteSettings, read_toml(file), f"{file}: ")
    home = true_kit(kit).resolve()
    places = {"data": home / settings.data, "records": (home / settings.records).resolve()}
    if places["records"].is_relative_to(home):
        raise UserError(
            f"{file}: records = '{settings.records}': must lie outside of the kit, which is replaced at times"
        )
    return settings.model_copy(update=places)
