"""Say what is waited for, with how long, and leave a note of it for those who list runs."""

import time
from collections.abc import Callable

SECONDS = 60.0
"""It is said again after a minute, and then each time after as long as it has taken so far, at most half an hour."""
MOST = 1800.0
SLOW = 60.0
"""Seconds after which what usually goes by in between counts as something that is waited for."""


class Waiting:
    """Something that is waited for; `note` is called with what that is, and with None when that is over."""

    def __init__(self, say: Callable[[str], None], note: Callable[[str | None], None] = lambda what: None) -> None:
        self.say, self.note = say, note
        self.what = ""
        self.began = self.due = 0.0
        self.said = False

    def on(self, what: str, most: float | None = None, after: float = 0.0) -> None:
        """Say what is waited for, once that has taken some seconds; call this again as long as it lasts."""
        now = time.monotonic()
        if what != self.what:
            self.what, self.began, self.due = what, now, after
        waited = now - self.began
        if waited >= self.due:
            limit = f", {duration(most)} at most" if most is not None else ""
            self.say(f"waiting for {what}{f', for {duration(waited)} now' if waited >= 1 else ''}{limit}")
            self.note(what)
            self.said, self.due = True, max(SECONDS, waited + min(waited, MOST))

    def over(self) -> bool:
        """Stop waiting; return whether something was said about it."""
        said, self.said, self.what = self.said, False, ""
        if said:
            self.note(None)
        return said


def duration(seconds: float) -> str:
    """Return a duration for people."""
    return f"{seconds:.0f} s" if seconds < 2 * SECONDS else f"{seconds / 60:.0f} min"
