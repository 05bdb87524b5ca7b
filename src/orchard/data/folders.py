"""Folders: of images by class, by part and class, or by client and class; of tables by site."""

from pathlib import Path
from typing import Literal

from orchard.data.catalogue import NAMES
from orchard.data.tables import SUFFIXES
from orchard.errors import UserError
from orchard.text import readable, shortened

FolderKind = Literal["classes", "parts", "clients"]

EXTENSIONS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".pgm", ".ppm", ".tif", ".tiff", ".webp"})


def folder_kind(folder: Path) -> FolderKind:
    """Tell whether a folder holds `<class>/…`, `train/<class>/…` or `<client>/<class>/…`."""
    inner = subfolders(folder)
    if not inner:
        raise UserError(f"{folder}: holds no folders; expected <class>/…, train/<class>/… or <client>/<class>/…")
    if any(path.name == "train" and subfolders(path) for path in inner):
        return "parts"
    by_class = [path for path in inner if images(path)]
    by_client = [path for path in inner if subfolders(path)]
    if by_class and by_client:
        raise UserError(f"{folder}: mixes layouts: {by_class[0].name} holds images, {by_client[0].name} holds folders")
    return "clients" if by_client else "classes"


def is_table(path: Path) -> bool:
    """Tell whether a path is a table, or a folder with a table for each site."""
    return path.suffix.lower() in SUFFIXES or bool(site_tables(path))


def site_tables(folder: Path) -> dict[str, Path]:
    """Return the tables in a folder by their sites' names; none if it is no folder, or holds anything else."""
    try:
        if not folder.is_dir():
            return {}
    except OSError:  # e.g. the name is too long, which `comes_by_client` says
        return {}
    files = _contents(folder)
    tables = {readable(path.stem): path for path in files if path.suffix.lower() in SUFFIXES}
    return tables if len(tables) == len(files) else {}


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted by name, without hidden ones."""
    return [path for path in _contents(folder) if path.is_dir()]


def images(folder: Path) -> list[Path]:
    """Return the image files in a folder, sorted by name, without hidden ones."""
    return [path for path in _contents(folder) if path.suffix.lower() in EXTENSIONS]


def _contents(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder}: cannot be read: {error.strerror}") from None


def comes_by_client(dataset: str) -> bool:
    """Tell whether a dataset is a folder with one folder for each client."""
    try:
        dataset.encode()
        is_folder = dataset not in NAMES and Path(dataset).is_dir()
    except UnicodeEncodeError:
        raise UserError(f"dataset = {dataset!r}: a path that is not UTF-8 cannot be saved; rename it") from None
    except OSError as error:  # e.g. the name is too long, or access is denied
        raise UserError(f"dataset = {shortened(dataset, 60)!r}: cannot be opened: {error.strerror}") from None
    return is_folder and not site_tables(Path(dataset)) and folder_kind(Path(dataset)) == "clients"
