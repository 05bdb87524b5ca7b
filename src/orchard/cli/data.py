"""Commands about data: data list, data show."""

from pathlib import Path
from typing import Annotated

import typer

from orchard.cli.options import Clients, DataDir, Fraction, Partition, Settings, app, definition

data_app = typer.Typer(no_args_is_help=True, help="Show datasets, and what each client holds.")
app.add_typer(data_app, name="data")


@data_app.command("list")
def list_datasets(data_dir: DataDir = None) -> None:
    """List the datasets that are known by name."""
    from orchard.cli.data_tables import print_catalogue

    print_catalogue(data_dir)


@data_app.command("show")
def show_dataset(
    dataset: Annotated[str, typer.Argument(help="A name, an .npz, a folder of images, or a table.")],
    partition: Partition = None,
    clients: Clients = None,
    data_dir: DataDir = None,
    fraction: Fraction = None,
    settings: Settings = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The figure: .png, .svg or .pdf; default: in this folder.")
    ] = None,
) -> None:
    """Describe a dataset; with a partition, or your own data, print and draw what each client holds."""
    experiment, options = definition(
        None,
        settings,
        dataset=dataset,
        partition=partition,
        clients=clients,
        data_dir=data_dir,
        fraction=fraction,
    )

    from orchard.cli.data_tables import entry_text, print_columns
    from orchard.cli.display import print_distribution
    from orchard.data.catalogue import CATALOGUE
    from orchard.data.folders import is_table

    table = dataset not in CATALOGUE and is_table(Path(dataset))
    if dataset in CATALOGUE:
        typer.echo(entry_text(dataset, CATALOGUE[dataset]))
    if table:
        print_columns(experiment)
    elif dataset not in CATALOGUE or partition or clients or fraction or output or settings:
        print_distribution(experiment, options.data_dir, output)
    if table and experiment.table:
        print_distribution(experiment, options.data_dir, output)
