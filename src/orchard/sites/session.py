"""FLARE's administration session, in a process of its own that can be ended at any moment.

FLARE's calls have no limit that one can rely on: closing a session waits for threads that may never end, and so does
Python when it exits. A process can be killed. It reads commands from its standard input, a line of JSON each, and
writes an answer of one line to each. It ends when its input does, so it does not outlive the one who started it.
"""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

import orchard

UNREACHABLE = (
    "NoAnswer",
    "NoConnection",
    "SessionClosed",
    "SessionExpired",
    "FLCommunicationError",
    "InternalError",
    "NoReply",
    "OSError",
    "RuntimeError",
)
"""Our exception, those of FLARE, and what they derive from, after which another session may succeed."""
REFUSED = ("AuthenticationError", "AuthorizationError")
GOODBYE = 5.0
"""Seconds that a session has to log out."""


class CallFailed(Exception):
    """FLARE raised an exception; `kinds` are the names of its class and of those that it derives from."""

    def __init__(self, kinds: list[str], text: str) -> None:
        super().__init__(text)
        self.kinds = kinds

    def is_one_of(self, names: tuple[str, ...]) -> bool:
        """Tell whether it is of one of these classes."""
        return not set(names).isdisjoint(self.kinds)


class Session:
    """A session, seen from the process that uses it."""

    def __init__(self, kit: Path, user: str) -> None:
        path = [str(Path(orchard.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(  # noqa: S603  (this very program)
            [sys.executable, "-P", "-m", __name__, str(kit.resolve()), user],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is for the process that uses it
        )
        self._commands, self._lines = cast("IO[str]", self._process.stdin), cast("IO[str]", self._process.stdout)
        self._answers: queue.Queue[str] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        for line in self._lines:
            self._answers.put(line)
        self._answers.put("")

    def call(self, seconds: float, name: str, *arguments: object) -> Any:
        """Return a command's answer; raise if there is none within some seconds. The session is of no use then."""
        try:
            self._send(name, arguments)
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise CallFailed(["NoAnswer"], f"no answer to {name!r} within {seconds:.0f} s") from None
        except OSError:
            line = ""
        if not line:
            raise CallFailed(["NoAnswer"], "the session has ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise CallFailed(answer["error"], answer["text"])
        return answer["answer"]

    def _send(self, name: str, arguments: tuple[object, ...]) -> None:
        self._commands.write(json.dumps([name, arguments]) + "\n")
        self._commands.flush()

    def close(self, seconds: float = GOODBYE) -> None:
        """Log out, if that takes no longer than some seconds; end the process in any case."""
        with suppress(OSError, ValueError, subprocess.TimeoutExpired):
            self._send("close", ())
            self._process.wait(seconds)
        self._process.kill()
        self._process.wait()
        self._listener.join(GOODBYE)
        for pipe in (self._commands, self._lines):
            with suppress(OSError):
                pipe.close()


# --- In the process of its own ---


def main() -> None:
    """Carry out commands until the input ends."""
    kit, user = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # FLARE prints
    orders: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_carry_out, args=(orders, answers, kit, user), daemon=True).start()
    for line in sys.stdin:
        orders.put(line)
    os._exit(0)  # without waiting for FLARE's threads


def _carry_out(orders: "queue.Queue[str]", answers: IO[str], kit: str, user: str) -> None:
    session: Any = None
    while True:
        name, arguments = json.loads(orders.get())
        try:
            if name == "close":
                if session is not None:
                    session.close()
                os._exit(0)
            session = session or _connected(kit, user)
            line = json.dumps({"answer": COMMANDS[name](session, *arguments)})
        except Exception as error:
            kinds = [kind.__name__ for kind in type(error).__mro__]
            # FLARE raises an exception anew under a name that says less.
            why = error.__context__ if isinstance(error.__context__, type(error)) else error
            line = json.dumps({"error": kinds, "text": str(why)})
        with suppress(BrokenPipeError):
            print(line, file=answers, flush=True)


def _connected(kit: str, user: str) -> Any:
    import logging

    from nvflare.fuel.flare_api.flare_api import new_secure_session

    logging.getLogger("nvflare").setLevel(logging.CRITICAL)
    return new_secure_session(user, kit, auto_login_max_tries=1)


def _system(session: Any) -> dict[str, Any]:
    """Return when the server was started, and the jobs that it runs."""
    server = session.get_system_info()
    return {"started": server.server_info.start_time, "jobs": [entry.job_id for entry in server.job_info]}


COMMANDS: Mapping[str, Callable[..., Any]] = {
    "sites": lambda session: session.get_client_job_status(),
    "submit": lambda session, folder, token: session.submit_job(folder, submit_token=token),
    "meta": lambda session, job: session.get_job_meta(job),
    "system": _system,
    "jobs": lambda session, run: session.list_jobs(name_prefix=run),
    "ask": lambda session, job, topic, asked: session.do_app_command(job, topic, asked),
    "abort": lambda session, job: session.abort_job(job),
    "download": lambda session, job, folder: session.download_job_result(job, folder),
}

if __name__ == "__main__":
    main()
