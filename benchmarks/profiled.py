"""Where the time of an APPLE step goes, by operation: ``python benchmarks/profiled.py``."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch.profiler import ProfilerActivity, profile

from orchard.engines.pages import use_large_pages
from steps import apple, random_batches

STEPS, REPEATS, SHOWN = 5, 6, 16


def main() -> None:
    torch.set_num_threads(1)
    steps = apple(12, random_batches(STEPS))
    steps()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        for _ in range(REPEATS):
            steps()
    spent = sorted(recorded.key_averages(group_by_input_shape=True), key=lambda entry: -entry.self_cpu_time_total)
    total = sum(entry.self_cpu_time_total for entry in spent)
    print(f"{total / 1000 / STEPS / REPEATS:.1f} ms a step")
    for entry in spent[:SHOWN]:
        shapes = [shape for shape in entry.input_shapes if shape]
        print(f"{entry.self_cpu_time_total / total:6.1%}  {entry.key.removeprefix('aten::'):34} {shapes}")
    rest = sum(entry.self_cpu_time_total for entry in spent[SHOWN:])
    print(f"{rest / total:6.1%}  all else")


if __name__ == "__main__":
    use_large_pages()
    with ThreadPoolExecutor(1) as worker:  # as in a run, where PyTorch's memory comes from a thread's own heap
        worker.submit(main).result()
