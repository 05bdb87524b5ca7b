"""How a folder of images is laid out: by class, by part and class, or by client and class."""

import unicodedata
from pathlib import Path
from typing import Literal

from orchard.errors import Refusal

Layout = Literal["classes", "parts", "clients"]

EXTENSIONS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".pgm", ".ppm", ".tif", ".tiff", ".webp"})
NOT_TEXT = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Unicode's control characters, halves of characters, and ends of lines and paragraphs."""


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
    return [path for path in _contents(folder) if path.is_dir()]


def images(folder: Path) -> list[Path]:
    """Return the image files in a folder by name, hidden ones left out."""
    return [path for path in _contents(folder) if path.suffix.lower() in EXTENSIONS]


def _contents(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise Refusal(f"{folder}: cannot be read: {error.strerror}") from None


def readable(name: str) -> str:
    """Return a name as it can be printed and written: what is not text, as bytes of file names may be, is escaped."""
    return "".join(
        character.encode("unicode_escape").decode() if unicodedata.category(character) in NOT_TEXT else character
        for character in name
    )


def shortened(name: str, length: int) -> str:
    """Return a name that fits; a longer one is cut."""
    return name if len(name) <= length else name[: length - 1] + "…"
