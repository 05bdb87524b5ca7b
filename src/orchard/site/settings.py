"""What a site decides for itself; no message from a server changes it."""

from pathlib import Path

from pydantic import Field, ValidationError

from orchard.errors import Refusal
from orchard.settings import LaxPath, Settings, explain, read_toml

FILE = "local/site.toml"
"""Where a site's kit holds them."""


class SiteSettings(Settings):
    """The file `local/site.toml` of a site's kit; paths are seen from the kit's folder."""

    data: LaxPath = Field(description="an .npz, or a folder of images")
    records: LaxPath = Field(description="outside of the kit, and of this site alone: what a crash must not lose")
    device: str = "cpu"
    models: list[str] = Field(
        default=[], description='networks of your own that a run may name: "package.module:factory"'
    )


def load_site(kit: Path) -> SiteSettings:
    """Read a site's settings from its kit."""
    file = kit / FILE
    values = read_toml(file)
    try:
        settings = SiteSettings.model_validate(values)
    except ValidationError as error:
        raise Refusal(f"{file}: {explain(error)}") from None
    home = kit.resolve()
    places = {"data": home / settings.data, "records": (home / settings.records).resolve()}
    if places["records"].is_relative_to(home):
        raise Refusal(
            f"{file}: records = '{settings.records}': must lie outside of the kit, which is replaced at times"
        )
    return settings.model_copy(update=places)
