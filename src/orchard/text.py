"""Text for people: suggest names, make them printable, shorten them, put them in tables."""

import difflib
import unicodedata
from collections.abc import Iterable, Sequence

NOT_TEXT = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Unicode categories that do not print: controls, surrogates, line and paragraph separators."""

FORMULA = frozenset("=+-@\t\r")
"""With these a formula begins."""


def nearest(word: str, known: Sequence[str]) -> str:
    """Return a hint for an unknown name: the nearest known name, else all known names."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}"


def readable(name: str) -> str:
    """Escape the characters that cannot be printed, such as bytes of a file name that are not text."""
    return "".join(
        character.encode("unicode_escape").decode() if unicodedata.category(character) in NOT_TEXT else character
        for character in name
    )


def no_formula(text: str) -> str:
    """Return a text for a cell of CSV that a spreadsheet does not take for a formula; numbers stay as they are."""
    if text[:1] not in FORMULA:
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def shortened(name: str, length: int) -> str:
    """Cut a name to at most `length` characters."""
    return name if len(name) <= length else name[: length - 1] + "…"


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    return [_row(headings), "|" + "---|" * len(headings), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
