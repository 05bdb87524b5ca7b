"""Commands for a server: start, stop, health. A site has the same."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchard.cli.options import app

if TYPE_CHECKING:
    from orchard.sites.party import Kind

server_app = typer.Typer(no_args_is_help=True, help="Be the server of silos on separate machines.")
app.add_typer(server_app, name="server")

Kit = Annotated[Path, typer.Argument(help="The server's startup kit.")]


@server_app.command("start")
def start_server(kit: Kit) -> None:
    """Serve until told to stop, in the foreground: for systemd, containers, and people who try it out."""
    run_party(kit, "server")


@server_app.command("stop")
def stop_server(kit: Kit) -> None:
    """End the server's processes and wait until they are gone; runs go on when it starts again."""
    stop_party(kit, "server")


@server_app.command("health")
def health_of_server(kit: Kit) -> None:
    """Say whether the server runs and listens; exit with 1 if not."""
    ask_party(kit, "server")


def run_party(kit: Path, kind: "Kind") -> None:
    """Run a party in the foreground."""
    from orchard.sites.kit import need_flare

    need_flare()
    from orchard.sites.party import party_of
    from orchard.sites.service import start

    start(party_of(kit, kind), typer.echo)


def stop_party(kit: Path, kind: "Kind") -> None:
    """Stop a party."""
    from orchard.sites.kit import need_flare

    need_flare()
    from orchard.sites.party import party_of
    from orchard.sites.service import stop

    stop(party_of(kit, kind), typer.echo)


def ask_party(kit: Path, kind: "Kind") -> None:
    """Say how a party is; exit with 1 if it is not well."""
    from orchard.sites.kit import need_flare

    need_flare()
    from orchard.sites.party import party_of
    from orchard.sites.service import health

    party = party_of(kit, kind)
    well, said = health(party)
    typer.echo(f"{party.name}: {said}")
    if not well:
        raise typer.Exit(1)
