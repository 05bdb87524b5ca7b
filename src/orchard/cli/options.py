"""The command-line app, and the options that several commands share."""

import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from orchard.errors import UserError

if TYPE_CHECKING:
    from orchard.experiment import Experiment, RunOptions

app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]}
)

RUNS = Path("runs")


class WithSettings(TyperCommand):
    """A command with --set: it says of a setting that is typed as an option how to give it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments."""
        known = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        for option in (word.partition("=")[0] for word in args if word.startswith("--")):
            key = option[2:].replace("-", "_")
            if option not in known and key in _setting_names():
                raise UserError(f"{option}: is no option, but a setting: --set {key}=…")
        return super().parse_args(ctx, args)


ExperimentFile = Annotated[Path | None, typer.Argument(help="A TOML file; without one, the defaults.")]
Dataset = Annotated[str | None, typer.Option(help="A dataset's name.")]
DataDir = Annotated[Path | None, typer.Option(help="Where data files are; else $ORCHARD_DATA.")]
Fraction = Annotated[float | None, typer.Option(help="Share of the training data to use.")]
Partition = Annotated[
    str | None, typer.Option(help="pathological, practical, dirichlet, iid, column, writers, hospitals or given.")
]
Clients = Annotated[int | None, typer.Option(help="How many clients.")]
Rounds = Annotated[int | None, typer.Option(help="How many rounds.")]
Workers = Annotated[int | None, typer.Option(help="Clients trained at the same time; default: the cores.")]
Engine = Annotated[
    Literal["local", "ray"] | None, typer.Option(help="Who trains: this process, or a Ray cluster (extra \\[ray]).")
]
Address = Annotated[
    str | None, typer.Option(help="Of the Ray cluster; default: $RAY_ADDRESS, or one of this machine alone.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Any setting, e.g. --set lr=0.02", metavar="KEY=VALUE")
]
Trust = Annotated[
    bool, typer.Option("--trust", metavar="", help="Run the code of a model of one's own that the file names.")
]
Force = Annotated[bool, typer.Option("--force", metavar="", help="Replace a file that is there, without asking.")]
RunArgument = Annotated[Path, typer.Argument(help="A run's folder.")]
RunsArgument = Annotated[list[Path], typer.Argument(help="Runs' folders, or a folder of them.", metavar="RUN...")]
Methods = Annotated[
    str | None,
    typer.Option(help="Names, with commas; parameters with colons: apple,apple:mu=0. Default: all built-in."),
]
Seeds = Annotated[str, typer.Option(help="Seeds, with commas.")]
Reused = Annotated[Path, typer.Option(help="Where the runs' folders are; finished ones are reused.")]
Quiet = Annotated[bool, typer.Option("--quiet", metavar="", help="Show no progress.")]


def definition(
    file: Path | None, settings: list[str] | None, *, trust: bool = False, **given: object
) -> "tuple[Experiment, RunOptions]":
    """Return the experiment and run options that a file, the command's own options and --set define."""
    from orchard.cli.trust import check_trust
    from orchard.experiment import load_definition

    experiment, options = load_definition(file, overrides=given, assignments=settings or [])
    typed = any(setting.partition("=")[0].strip() == "model" for setting in settings or [])
    check_trust(experiment.model, None if typed else file, trust)
    return experiment, options


def trusted(run: Path, *, trust: bool) -> None:
    """Raise unless the code of the model that a run's folder, or an offer, names may run."""
    from orchard.cli.trust import check_trust
    from orchard.runs.folder import RunFolder
    from orchard.runs.offer import Offer

    made = (run / "experiment.toml").exists()
    experiment = RunFolder(run).experiment() if made or not run.is_dir() else Offer.read(run).experiment
    check_trust(experiment.model, run, trust)


def chosen(**options: Any) -> dict[str, Any]:
    """Return the options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def _setting_names() -> set[str]:
    from orchard.experiment import Experiment, RunOptions

    return {*Experiment.model_fields, *RunOptions.model_fields}


def listed(option: str, text: str) -> list[str]:
    """Return the items of a comma-separated option; raise if there are none."""
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise UserError(f"--{option}: names nothing")
    return items


def seeds_of(text: str) -> list[int]:
    """Return the seeds in a comma-separated option, each once."""
    return list(dict.fromkeys(_whole_number(item) for item in listed("seeds", text)))


def _whole_number(text: str) -> int:
    if not text.isdecimal():
        raise UserError(f"--seeds: {text!r} is not a whole number from 0")
    return int(text)


def may_replace(file: Path, *, force: bool) -> None:
    """Ask before a file is replaced; raise if nobody can be asked, or the answer is no."""
    if force or not file.exists():
        return
    if not (sys.stdin.isatty() and typer.confirm(f"{file} exists; replace it?", err=True)):
        raise UserError(f"{file}: exists; --force replaces it")


def make_folder(option: str, path: Path) -> None:
    """Make an output folder; raise if it cannot be written, before hours are spent."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UserError(f"{option} {path}: cannot be written: {error.strerror}") from None
