"""Commands for a server, and those that a site has too: start, stop, health."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchard.cli.options import app

if TYPE_CHECKING:
    from orchard.sites.party import Kind, Party

server_app = typer.Typer(no_args_is_help=True, help="Be the server of silos on separate machines.")
app.add_typer(server_app, name="server")


def add_service(group: typer.Typer, kind: "Kind") -> None:
    """Add the commands that run a party."""

    def party_of(kit: Path) -> "Party":
        from orchard.sites.kit import need_flare

        need_flare()
        from orchard.sites.party import party_of

        return party_of(kit, kind)

    @group.command("start")
    def start(kit: Annotated[Path, typer.Argument(help=f"The {kind}'s startup kit.")]) -> None:
        """Run until told to stop, in the foreground: for systemd, containers, and people who try it out."""
        from orchard.sites.service import start
        from orchard.sites.settings import load_site

        party = party_of(kit)
        if kind == "site" and not (data := load_site(kit).data).exists():
            typer.echo(f"{party.name}: {data} is not there; until it is, this site takes part in no run")
        start(party, typer.echo)

    @group.command("stop")
    def stop(kit: Annotated[Path, typer.Argument(help=f"The {kind}'s startup kit.")]) -> None:
        """End its processes and wait until they are gone; runs go on when it starts again."""
        from orchard.sites.service import stop

        stop(party_of(kit), typer.echo)

    @group.command("health")
    def health(kit: Annotated[Path, typer.Argument(help=f"The {kind}'s startup kit.")]) -> None:
        """Say whether it runs and is connected, or as a server listens; exit with 1 if not."""
        from orchard.sites.service import health

        party = party_of(kit)
        well, said = health(party)
        typer.echo(f"{party.name}: {said}")
        if not well:
            raise typer.Exit(1)


add_service(server_app, "server")
