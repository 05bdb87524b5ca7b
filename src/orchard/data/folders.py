"""The layout of a folder of images: whole, in parts or by client, and in each of these by class or with masks.

    <class>/…           train/<class>/…, test/<class>/…         <client>/<class>/…
    images/…, masks/…   train/images/…, train/masks/…, …        <client>/images/…, <client>/masks/…

Where samples are volumes, a folder of DICOM slices is one of them, like a file.
"""

from pathlib import Path
from typing import Literal

from orchard.data.catalogue import NAMES
from orchard.data.medical.scans import holds_slices, is_medical
from orchard.data.tables.reading import SUFFIXES
from orchard.errors import UserError
from orchard.text import readable, shortened

FolderKind = Literal["whole", "parts", "clients"]

EXTENSIONS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".pgm", ".ppm", ".tif", ".tiff", ".webp"})
MASKED = ("images", "masks")
"""The folders of images and of their maps of labels."""


def folder_kind(folder: Path, volumes: bool = False) -> FolderKind:
    """Tell whether a folder's data are whole, in parts or by client."""
    inner = subfolders(folder, volumes)
    if not inner:
        raise UserError(f"{folder}: holds no folders; expected <class>/…, train/<class>/… or <client>/<class>/…")
    if any(path.name == "train" and subfolders(path, volumes) for path in inner):
        return "parts"
    if has_masks(folder):
        return "whole"
    by_class = [path for path in inner if holds_images(path, volumes)]
    by_client = [path for path in inner if subfolders(path, volumes)]
    if by_class and by_client:
        raise UserError(f"{folder}: mixes layouts: {by_class[0].name} holds images, {by_client[0].name} holds folders")
    return "clients" if by_client else "whole"


def has_masks(folder: Path) -> bool:
    """Tell whether a folder holds `images/…` and `masks/…`."""
    return all((folder / name).is_dir() for name in MASKED)


def is_table(path: Path) -> bool:
    """Tell whether a path is a table, or a folder with a table for each site."""
    return path.suffix.lower() in SUFFIXES or bool(site_tables(path))


def site_tables(folder: Path) -> dict[str, Path]:
    """Return the tables in a folder by their sites' names; none if it is no folder, or holds anything else."""
    if not folder.is_dir():
        return {}
    files = _contents(folder)
    tables = {readable(path.stem): path for path in files if path.suffix.lower() in SUFFIXES}
    return tables if len(tables) == len(files) else {}


def subfolders(folder: Path, volumes: bool = False) -> list[Path]:
    """Return the folders in a folder, sorted by name, without hidden ones, and without those that are a volume."""
    return [path for path in _contents(folder) if path.is_dir() and not (volumes and holds_slices(path))]


def images(folder: Path, volumes: bool = False) -> list[Path]:
    """Return the images in a folder, sorted by name, without hidden ones."""
    return [path for path in _contents(folder) if is_image(path, volumes)]


def holds_images(folder: Path, volumes: bool = False) -> bool:
    """Tell whether a folder holds an image; it looks no further than the first."""
    return any(is_image(path, volumes) for path in _contents(folder))


def is_image(path: Path, volumes: bool = False) -> bool:
    """Tell whether a file is an image, or a folder a volume."""
    if path.is_dir():
        return volumes and holds_slices(path)
    return is_ordinary(path) or is_medical(path)


def is_ordinary(path: Path) -> bool:
    """Tell by its name whether a file is an image that is not DICOM or NIfTI."""
    return path.suffix.lower() in EXTENSIONS and not path.is_dir()


def images_below(folder: Path, volumes: bool = False) -> list[Path]:
    """Return the images in a folder and in those inside it, sorted, without hidden ones; of masks, their images."""
    if has_masks(folder):
        return images(folder / MASKED[0], volumes)
    if volumes and holds_slices(folder):
        return [folder]
    inner = [path for path in subfolders(folder, volumes) if not path.is_symlink()]
    return sorted([*images(folder, volumes), *(file for path in inner for file in images_below(path, volumes))])


def first_image(folder: Path, volumes: bool) -> Path | None:
    """Return the first image in a folder or in those inside it."""
    for path in _contents(folder):
        if is_image(path, volumes):
            return path
        if path.is_dir() and not path.is_symlink() and (found := first_image(path, volumes)):
            return found
    return None


def _contents(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder}: cannot be read: {error.strerror}") from None


def own_folder(dataset: str) -> Path | None:
    """Return the folder that a dataset is, if it is one."""
    try:
        dataset.encode()
        return Path(dataset) if dataset not in NAMES and Path(dataset).is_dir() else None
    except UnicodeEncodeError:
        raise UserError(f"dataset = {dataset!r}: a path that is not UTF-8 cannot be saved; rename it") from None
    except OSError as error:  # e.g. the name is too long, or access is denied
        raise UserError(f"dataset = {shortened(dataset, 60)!r}: cannot be opened: {error.strerror}") from None


def comes_by_client(dataset: str, volumes: bool = False) -> bool:
    """Tell whether a dataset is a folder with one folder for each client."""
    folder = own_folder(dataset)
    return folder is not None and not site_tables(folder) and folder_kind(folder, volumes) == "clients"
