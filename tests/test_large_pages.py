"""Large tensors come in large pages, so that a step does not spend its time waiting for memory."""

import subprocess
import sys
from pathlib import Path

import pytest

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")

PROGRAM = """
import resource
from concurrent.futures import ThreadPoolExecutor
import orchard.vector
import torch

def page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(25_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with ThreadPoolExecutor(1) as worker:
    print(worker.submit(page_faults).result())
"""


@pytest.mark.skipif(
    not SETTING.exists() or "[never]" in SETTING.read_text(), reason="the system gives out no large pages"
)
def test_a_large_tensor_takes_few_page_faults() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 5000  # 100 MB are 24,414 pages of 4 KB
