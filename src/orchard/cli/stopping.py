"""Ctrl-C: once to stop after the current round, twice to stop at once."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 130
ECHO = 0.3
"""Seconds within which a second signal is ignored: a parent process may pass on the same Ctrl-C."""


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether to stop. Before its first call, Ctrl-C raises `KeyboardInterrupt`."""
    asked, requested = False, 0.0

    def stop() -> bool:
        nonlocal asked
        asked = True
        return requested > 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        if not asked:
            raise KeyboardInterrupt
        if requested and time.monotonic() - requested < ECHO:
            return
        if requested:
            # Workers cannot be interrupted. Exiting without them is safe: files on disk are always complete.
            _say("orchard: stopped at once; the last checkpoint holds")
            os._exit(INTERRUPTED)
        requested = time.monotonic()
        _say("orchard: stopping after this round; once more stops at once")

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    """Write to stderr; ignore errors, which a signal handler would raise inside the round."""
    with suppress(OSError, RuntimeError, ValueError):
        show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # a live display hides it
        sys.stderr.write(f"{show_cursor}\n{text}\n")
        sys.stderr.flush()
