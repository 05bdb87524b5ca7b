"""Commands for coordinating silos on separate machines: deploy init, bundle, stats, run, attach, status, stop."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchard.cli.options import RUNS, Quiet, app
from orchard.errors import UserError

if TYPE_CHECKING:
    from orchard.runs.result import Result

deploy_app = typer.Typer(
    no_args_is_help=True, help="Coordinate silos on separate machines (needs nvflare: orchard\\[deploy])."
)
app.add_typer(deploy_app, name="deploy")

Kit = Annotated[Path, typer.Option("--kit", help="The coordinator's startup kit.")]
LaterKit = Annotated[Path | None, typer.Option("--kit", help="The coordinator's kit; default: the one it began with.")]
Run = Annotated[Path, typer.Argument(help="The run's folder.")]


@deploy_app.command("init")
def init(
    consortium: Annotated[Path, typer.Argument(help="A TOML file that says who takes part.")],
    out: Annotated[Path, typer.Option("-o", "--output", help="Where the kits go.")] = Path("kits"),
) -> None:
    """Make a startup kit for each party: keys, certificates, and settings that allow only what Orchard needs."""
    from orchard.sites.consortium import load_consortium
    from orchard.sites.kit import need_flare
    from orchard.sites.provision import make_kits

    need_flare()
    kits = make_kits(load_consortium(consortium), out)
    for kit in kits.made:
        typer.echo(f"made: {kit}")
    for kit in kits.kept:
        typer.echo(f"was there and is left as it is: {kit}")
    typer.echo(f"""
Keep {kits.authority} on a machine of its own, away from networks: its key lets in whoever is given a kit made with it,
and it has the keys of all kits, to make one again that was lost.
The first certificate expires on {kits.expires:%Y-%m-%d}.
A kit holds a private key: hand each to its party by a way that you trust, and keep no copy.""")
    for entry in kits.old:
        typer.echo(
            f"{entry.name}: takes part no more, but its certificate counts until {entry.expires:%Y-%m-%d}; "
            f"revoke it with: orchard deploy revoke {entry.name} -o {out}"
        )
    for revoked in kits.revoked:
        typer.echo(f"{revoked.name}: the certificate {revoked.fingerprint[:16]}... was revoked on {revoked.day}")


@deploy_app.command("revoke")
def revoke_certificate(
    name: Annotated[str, typer.Argument(help="The site, or the coordinator.")],
    out: Annotated[Path, typer.Option("-o", "--output", help="Where the kits are.")] = Path("kits"),
) -> None:
    """Revoke a party's certificate: the server lets it in no more, and sites are told."""
    from orchard.sites.authority import revoke
    from orchard.sites.kit import need_flare

    need_flare()
    entry, kits = revoke(out, name)
    typer.echo(f"revoked: {name}'s certificate {entry.fingerprint}")
    for kit in kits:
        typer.echo(f"written: {kit / 'local' / 'revoked.json'}")
    typer.echo(f"""The server honours it from its next job on; at once if that file is in the kit it runs from.
If {name} is still to take part, orchard deploy init makes it a new kit; sites are asked to agree to a site's.""")


@deploy_app.command("bundle")
def bundle_wheels(
    source: Annotated[Path, typer.Argument(help="The folder of this copy of Orchard.")],
    out: Annotated[Path, typer.Option("-o", "--output", help="A new folder.")],
    extras: Annotated[str, typer.Option(help="Extras of Orchard, with commas.")] = "deploy,tables",
    platform: Annotated[
        list[str] | None, typer.Option(help="pip's name of the sites' platform; several may be given. Default: this.")
    ] = None,
    python: Annotated[str | None, typer.Option(help="The sites' Python, with --platform; default: this.")] = None,
) -> None:
    """Collect what sites without internet need to install Orchard: wheels, their hashes, a script."""
    from orchard.sites.bundle import SCRIPT, SUMS, Target, bundle

    if python is not None and not platform:
        raise UserError("--python: needs --platform too")
    target = Target(tuple(platform or ()), python or Target.python)
    digest = bundle(source, out, [extra.strip() for extra in extras.split(",") if extra.strip()], target)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file()) / 2**20
    typer.echo(f"""made: {out}, {size:,.0f} MB
A site copies the folder and calls: sh {SCRIPT} /opt/orchard
Tell the sites by another way what `sha256sum {SUMS}` must print: {digest}""")


@deploy_app.command("stats")
def stats(
    experiment: Annotated[Path, typer.Argument(help="An experiment's TOML file with a table \\[deploy].")], kit: Kit
) -> None:
    """Ask the sites for counts and means of their data, and say what does not fit together, before training."""
    from orchard.sites.statistics import ask, comparison

    told, reasons = ask(experiment, kit, lambda text: typer.echo(text, err=True))
    for line in comparison(told, reasons):
        typer.echo(line)


@deploy_app.command("run")
def run(
    experiment: Annotated[Path, typer.Argument(help="An experiment's TOML file with a table \\[deploy].")],
    kit: Kit,
    out: Annotated[Path | None, typer.Option(help="The run's folder; default: a new one in runs/.")] = None,
    quiet: Quiet = False,
) -> None:
    """Run an experiment on the sites and follow it; Ctrl-C leaves it running."""
    import secrets

    from orchard.sites.commands import begin
    from orchard.sites.consortium import consortium_of
    from orchard.sites.kit import check_kind
    from orchard.sites.plan import make_plan

    check_kind(kit, "coordinator")
    sites = consortium_of(kit).sites
    name = f"sites-{secrets.token_hex(4)}"
    plan = make_plan(experiment, name, sites)
    folder = out or RUNS / name
    _followed(folder, quiet, lambda say: begin(plan, kit, folder, say))


@deploy_app.command("attach")
def attach_to(run: Run, kit: LaterKit = None, quiet: Quiet = False) -> None:
    """Follow a run again; resume it if it was stopped or given up."""
    from orchard.sites.commands import attach

    _followed(run, quiet, lambda say: attach(run, kit, say))


@deploy_app.command("status")
def status(kit: Kit) -> None:
    """Show which sites are connected, and how many jobs each is running."""
    from orchard.sites.commands import site_table
    from orchard.sites.connection import Connection

    with Connection(kit, patience=0) as server:
        for site, state, jobs in site_table(server.consortium.sites, server.sites()):
            typer.echo(f"{site:24} {state:10} jobs: {jobs}")


@deploy_app.command("stop")
def stop_run(
    run: Run,
    kit: LaterKit = None,
    now: Annotated[bool, typer.Option("--now", metavar="", help="Do not wait for the round to end.")] = False,
) -> None:
    """Stop a run after its round; `orchard deploy attach` resumes it."""
    from orchard.sites.commands import stop

    stop(run, kit, now=now, say=typer.echo)


def _followed(folder: Path, quiet: bool, follow: "Callable[[Callable[[str], None]], Result]") -> None:
    """Follow a run on standard error, then print its result."""
    from orchard.cli.display import print_result
    from orchard.errors import Stopped
    from orchard.sites.commands import is_submitted
    from orchard.sites.supervision import attach_command

    def say(text: str) -> None:
        if not quiet:
            typer.echo(text, err=True)

    try:
        result = follow(say)
    except KeyboardInterrupt:
        goes_on = "the run goes on without being watched; see it" if is_submitted(folder) else "not begun yet; begin it"
        raise Stopped(f"{goes_on} with: {attach_command(folder)}") from None
    if not quiet:
        print_result(result, folder)
        typer.echo("Numbers of samples and scores are what each site claims; nobody else can check them.")
