"""Large tensors come in large pages, so that a step does not spend its time waiting for memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchard.engines.pages import use_large_pages

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
VARIABLE = "THP_MEM_ALLOC_ENABLE"

needs_large_pages = pytest.mark.skipif(
    not SETTING.exists() or "[never]" in SETTING.read_text(), reason="the system gives out no large pages"
)

FIRST = "from orchard.engines.pages import use_large_pages; use_large_pages(); import torch"
AFTER_PYTORCH = "import torch; from orchard.engines.pages import use_large_pages; use_large_pages()"
A_RUN = "import torch, orchard; orchard.run(clients=2, rounds=1, epochs=1, model='mlp', fraction=0.1)"

PAGE_FAULTS = """
import resource
from concurrent.futures import ThreadPoolExecutor
import torch

def page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(25_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with ThreadPoolExecutor(1) as worker:
    print(worker.submit(page_faults).result())
"""


def printed(program: str) -> str:
    """What a program prints in a process of its own, in which nobody has set the variable."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()


@needs_large_pages
@pytest.mark.parametrize("beginning", [FIRST, AFTER_PYTORCH, A_RUN], ids=["first", "after PyTorch", "in a run"])
def test_a_large_tensor_takes_few_page_faults(beginning: str) -> None:
    assert int(printed(beginning + PAGE_FAULTS)) < 5000  # 100 MB are 24,414 pages of 4 KB


def test_importing_orchard_sets_nothing() -> None:
    imports = "import os, orchard, orchard.cli, orchard.methods; orchard.run, orchard.resume, orchard.Experiment"
    assert printed(f"{imports}; print(os.environ.get({VARIABLE!r}))") == "None"


@pytest.mark.parametrize("before", [None, "0", "1"])
def test_whoever_has_set_it_keeps_it(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(VARIABLE, before)
    use_large_pages()
    assert os.environ[VARIABLE] == (before or "1")
