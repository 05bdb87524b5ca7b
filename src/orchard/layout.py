"""How a folder of images is laid out: by class, by part and class, or by client and class."""

from pathlib import Path
from typing import Literal

from orchard.errors import Refusal

Layout = Literal["classes", "parts", "clients"]

EXTENSIONS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".pgm", ".ppm", ".tif", ".tiff", ".webp"})


def folder_layout(folder: Path) -> Layout:
    """Tell `<class>/…` from `train/<class>/…` and `<client>/<class>/…`."""
    inner = subfolders(folder)
    if not inner:
        raise Refusal(f"{folder}: holds no folders; expected <class>/…, train/<class>/… or <client>/<class>/…")
    if any(path.name == "train" and subfolders(path) for path in inner):
        return "parts"
    by_class = [path for path in inner if images(path)]
    by_client = [path for path in inner if subfolders(path)]
    if by_class and by_client:
        raise Refusal(f"{folder}: mixes layouts: {by_class[0].name} holds images, {by_client[0].name} holds folders")
    return "clients" if by_client else "classes"


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder by name, hidden ones left out."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def images(folder: Path) -> list[Path]:
    """Return the image files in a folder by name, hidden ones left out."""
    return sorted(
        path for path in folder.iterdir() if path.suffix.lower() in EXTENSIONS and not path.name.startswith(".")
    )
