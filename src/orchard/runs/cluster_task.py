"""A run on a node of a Ray cluster, and the actor at home that it tells of its files."""

import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from orchard.core.training import NotFinite
from orchard.data.clients import FederatedData
from orchard.engines.pages import use_large_pages
from orchard.engines.ray.packing import PackedData, unpack_data
from orchard.errors import NoUsableCheckpoint, RunFailed, Stopped, UserError
from orchard.experiment import Experiment, RunOptions
from orchard.runs.result import Result
from orchard.runs.run import resume, run
from orchard.whole import write_durably

Kind = Literal["finished", "failed", "stopped", "no checkpoint"]


@dataclass(frozen=True)
class Outcome:
    """How a task ended; its figures are in the run's folder."""

    kind: Kind
    text: str = ""
    trace: str = ""


class Home:
    """An actor on the driver's node: tells tasks to stop, and keeps the files of those that do not see its folders."""

    def __init__(self) -> None:
        self.stopped = False

    def stop(self) -> None:
        """Let all tasks stop after their round."""
        self.stopped = True

    def stopping(self) -> bool:
        """Tell whether to stop."""
        return self.stopped

    def read(self, folder: Path) -> dict[str, bytes]:
        """Return the files of a run."""
        return {str(file.relative_to(folder)): file.read_bytes() for file in _files(folder)}

    def write(self, folder: Path, changed: Mapping[str, bytes], names: Sequence[str]) -> None:
        """Write files of a run, in the given order, and delete those that it no longer has."""
        for name, content in changed.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_durably(folder / name, content)
        for file in _files(folder):
            if str(file.relative_to(folder)) not in names:
                file.unlink()
        for path in sorted(folder.rglob("*"), reverse=True):
            with suppress(OSError):  # it is a file, or not empty
                path.rmdir()


def train(
    experiment: Experiment,
    packed: tuple[FederatedData, list[PackedData]],
    options: RunOptions,
    folder: Path,
    sign: Path,
    home: Any,
) -> Outcome:
    """Run an experiment, or resume it if its folder has a beginning of it."""
    import ray

    use_large_pages()
    data = replace(packed[0], clients=tuple(map(unpack_data, packed[1])))

    def stop() -> bool:
        return bool(ray.get(home.stopping.remote()))

    if stop():
        return Outcome("stopped")
    with _working_folder(folder, sign, home) as (path, send):
        try:
            if (path / "experiment.toml").exists():
                resume(path, data, progress=send, stop=stop, engine="local", workers=options.workers)
            else:
                run(experiment, data, options=options, out=path, progress=send, stop=stop)
        except NoUsableCheckpoint as lost:
            return Outcome("no checkpoint", str(lost))
        except (RunFailed, UserError) as failure:
            cause = failure.__cause__
            bug = cause is not None and not isinstance(cause, NotFinite)
            return Outcome("failed", str(failure), "".join(traceback.format_exception(cause)) if bug else "")
        except Stopped:
            return Outcome("stopped")
    return Outcome("finished")


@contextmanager
def _working_folder(folder: Path, sign: Path, home: Any) -> Iterator[tuple[Path, Callable[[Result | None], None]]]:
    """Yield a run's folder if this node sees it, else a copy; and what sends home what has changed in the copy."""
    if sign.exists():
        yield folder, lambda result: None
        return
    import ray

    with tempfile.TemporaryDirectory(prefix="orchard-") as own:
        path = Path(own) / folder.name
        for name, content in ray.get(home.read.remote(folder)).items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
        path.mkdir(exist_ok=True)
        seen: dict[str, tuple[int, int]] = {}

        def send(result: Result | None) -> None:
            there = {str(file.relative_to(path)): file for file in _files(path)}
            now = {name: (file.stat().st_mtime_ns, file.stat().st_size) for name, file in there.items()}
            changed = {name: there[name].read_bytes() for name in there if seen.get(name) != now[name]}
            if changed or seen.keys() - now.keys():
                ray.get(home.write.remote(folder, changed, list(there)))
            seen.clear()
            seen.update(now)

        try:
            yield path, send
        finally:
            send(None)


def _files(folder: Path) -> list[Path]:
    """Return a run's files, in an order in which they may be written: what completes a checkpoint comes last."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name not in (".lock", ".holder.json")]
    return sorted(files, key=lambda file: (file.suffix == ".json", file.name == "summary.json", str(file)))
