"""Downloads, against a real server that fails, stalls, breaks off and sends wrong bytes."""

import hashlib
import http.server
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchard.data import download
from orchard.data.catalogue import CATALOGUE, Source
from orchard.errors import UserError

CONTENT = bytes(range(256)) * 2000
Behaviour = Callable[["Handler"], None]


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers each request with the next behaviour; the last one stays."""

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        server.ranges.append(self.headers.get("Range"))
        behaviour = server.behaviours.pop(0) if len(server.behaviours) > 1 else server.behaviours[0]
        behaviour(self)

    def send(self, content: bytes, announce: int | None = None, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content) if announce is None else announce))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None: ...


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviours: list[Behaviour] = [resumable]
        self.ranges: list[str | None] = []

    @property
    def source(self) -> Source:
        digest = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
        return Source("set/data.bin", (f"http://127.0.0.1:{self.server_port}/data.bin",), digest)


def resumable(handler: Handler) -> None:
    start = int((handler.headers.get("Range") or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
    if start >= len(CONTENT):
        handler.send(b"", status=416)
    else:
        handler.send(CONTENT[start:], status=206 if start else 200)


def whole(handler: Handler) -> None:
    """A server that knows no ranges."""
    handler.send(CONTENT)


def breaks_off(handler: Handler) -> None:
    handler.send(CONTENT[:100_000], announce=len(CONTENT))


def breaks_off_early(handler: Handler) -> None:
    """A server that knows no ranges, on a line that breaks sooner each time."""
    handler.send(CONTENT[:30_000], announce=len(CONTENT))


def a_little_more(handler: Handler) -> None:
    start = int((handler.headers.get("Range") or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
    content = CONTENT[start : start + 40_000]
    handler.send(content, announce=len(CONTENT) - start, status=206 if start else 200)


def fails(handler: Handler) -> None:
    handler.send(b"sorry", status=503)


def wrong(handler: Handler) -> None:
    handler.send(b"x" * len(CONTENT))


def stalls(handler: Handler) -> None:
    handler.send(CONTENT[:50_000], announce=len(CONTENT))
    handler.wfile.flush()
    time.sleep(2)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(download, "PAUSE", 0.01)
    monkeypatch.setattr(download, "PATIENCE", 0.5)
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def is_whole(path: Path) -> bool:
    return path.read_bytes() == CONTENT and not list(path.parent.glob("*.part*"))


@pytest.mark.parametrize(
    ("behaviours", "ranges"),
    [
        ([resumable], [None]),
        ([fails, fails, resumable], [None, None, None]),
        ([breaks_off, resumable], [None, "bytes=100000-"]),
        ([breaks_off, whole], [None, "bytes=100000-"]),
        ([stalls, resumable], [None, "bytes=50000-"]),
        ([wrong, resumable], [None, None]),
        ([breaks_off, breaks_off_early, resumable], [None, "bytes=100000-", "bytes=100000-"]),
        ([a_little_more], [None, *(f"bytes={start}-" for start in range(40_000, len(CONTENT), 40_000))]),
        ([a_little_more, fails, fails, fails, a_little_more, fails, fails, fails, resumable], None),
    ],
    ids=[
        "smooth",
        "fails twice",
        "breaks off",
        "breaks off, cannot resume",
        "stalls",
        "wrong bytes once",
        "breaks off, then sooner from the start",
        "breaks off again and again, each time further",
        "fails often, but never four times in a row",
    ],
)
def test_a_file_arrives_whole(
    server: Server, tmp_path: Path, behaviours: list[Behaviour], ranges: list[str | None] | None
) -> None:
    server.behaviours = behaviours
    path = download.obtain(server.source, tmp_path)
    assert path == tmp_path / "set/data.bin"
    assert is_whole(path)
    asked = list(server.ranges)
    assert ranges is None or asked == ranges
    download.obtain(server.source, tmp_path)
    assert server.ranges == asked  # a file that is there is not downloaded again


def test_an_interrupted_process_is_taken_up(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set/data.bin.part").write_bytes(CONTENT[:123_456])
    assert is_whole(download.obtain(server.source, tmp_path))
    assert server.ranges == ["bytes=123456-"]


def test_what_has_come_survives_a_server_that_cannot_resume(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    part = tmp_path / "set/data.bin.part"
    part.write_bytes(CONTENT[:123_456])
    server.behaviours = [breaks_off_early]
    with pytest.raises(UserError, match="the connection broke after 30000 of 512000 bytes"):
        download.obtain(server.source, tmp_path)
    assert part.read_bytes() == CONTENT[:123_456]
    assert not list(part.parent.glob("*.anew"))
    assert server.ranges == ["bytes=123456-"] * 4  # none of them brought anything new


def test_a_part_that_is_longer_than_the_file_is_replaced(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set/data.bin.part").write_bytes(b"?" * (len(CONTENT) + 1))
    server.behaviours = [whole]
    assert is_whole(download.obtain(server.source, tmp_path))
    assert server.ranges == [f"bytes={len(CONTENT) + 1}-"]


def test_a_part_that_was_already_whole_is_accepted(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set/data.bin.part").write_bytes(CONTENT)
    assert is_whole(download.obtain(server.source, tmp_path))


def test_wrong_bytes_are_never_kept(server: Server, tmp_path: Path) -> None:
    server.behaviours = [wrong]
    with pytest.raises(UserError, match=r"data\.bin cannot be downloaded: the file from http.* has MD5 \w+, not \w+"):
        download.obtain(server.source, tmp_path)
    assert [path.name for path in (tmp_path / "set").iterdir() if not path.name.endswith(".lock")] == []


def test_offline_the_manual_steps_are_named(server: Server, tmp_path: Path) -> None:
    source = Source("data.bin", ("http://127.0.0.1:1/data.bin",), server.source.md5)
    with pytest.raises(UserError) as refusal:
        download.obtain(source, tmp_path)
    message = str(refusal.value)
    for words in (
        "Connection refused",
        "download the file elsewhere and copy it here",
        "http://127.0.0.1:1/data.bin",
        source.md5,
    ):
        assert words in message
    assert f"to   {tmp_path / 'data.bin'}" in message


def test_a_second_address_is_tried(server: Server, tmp_path: Path) -> None:
    source = Source("data.bin", ("http://127.0.0.1:1/data.bin", *server.source.addresses), server.source.md5)
    assert is_whole(download.obtain(source, tmp_path))


def test_another_file_of_that_name_is_used_with_a_warning(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "set").mkdir()
    (tmp_path / "set/data.bin").write_bytes(b"mine")
    mine = hashlib.md5(b"mine", usedforsecurity=False).hexdigest()
    for _ in range(2):  # also when the sum is already known
        with pytest.warns(UserWarning, match=f"MD5 is {mine}, the published one's {server.source.md5}"):
            download.obtain(server.source, tmp_path)
    assert (tmp_path / "set/data.bin").read_bytes() == b"mine"
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["data.bin"]  # nothing was written beside it
    assert len(list((tmp_path / "cache/orchard/checksums").iterdir())) == 1


def test_a_folder_that_cannot_be_written_is_refused(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").write_text("a file, not a folder")
    with pytest.raises(UserError, match=r"data\.bin: cannot be written"):
        download.obtain(server.source, tmp_path)


def download_in_process(source: Source, folder: Path) -> None:
    if not is_whole(download.obtain(source, folder)):
        os._exit(1)


def test_a_killed_process_leaves_what_has_come(server: Server, tmp_path: Path) -> None:
    server.behaviours = [stalls]
    process = multiprocessing.get_context("spawn").Process(target=download_in_process, args=(server.source, tmp_path))
    process.start()
    part = tmp_path / "set/data.bin.part"
    while not (part.exists() and part.stat().st_size) and process.is_alive():
        time.sleep(0.05)
    process.kill()
    process.join()
    size = part.stat().st_size
    server.behaviours, server.ranges = [resumable], []
    assert is_whole(download.obtain(server.source, tmp_path))
    assert server.ranges == [f"bytes={size}-"]


def test_two_processes_at_once_do_not_damage_each_other(server: Server, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=download_in_process, args=(server.source, tmp_path)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert server.ranges == [None]  # the others waited, and found it there


def test_the_folder_is_the_chosen_one_then_the_variable_then_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHARD_DATA", "/somewhere")
    assert download.data_folder(Path("here")) == Path("here")
    assert download.data_folder(None) == Path("/somewhere")
    monkeypatch.delenv("ORCHARD_DATA")
    assert download.data_folder(None).name == "orchard"


def test_the_catalogue_is_complete() -> None:
    assert len(CATALOGUE) == 18
    sums = [source.md5 for entry in CATALOGUE.values() for files in entry.files.values() for source in files]
    assert len(set(sums)) == 4 + 4 + 1 + 12 * 4 + 4
    assert len(sums) == len(set(sums)) + 4  # both readings of heart-disease have the same files
    assert all(len(md5) == 32 for md5 in sums)
    assert {len(entry.classes) for entry in CATALOGUE.values()} == {2, 4, 5, 7, 8, 9, 10, 11, 14}
