"""Random generators, each seeded by its purpose.

A generator is a pure function of (seed, purpose, client, round, epoch), so a run's result does not depend on the
number of workers, the order of clients, interruptions or the engine.
"""

import numpy as np


def generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """Return the generator for one purpose, e.g. ``generator(42, "batches", client, round, epoch)``."""
    return np.random.default_rng(_entropy(seed, purpose, numbers))


def derived_seed(seed: int, purpose: str, *numbers: int) -> int:
    """Return a 64-bit seed for a library that takes a number, not a generator."""
    words = np.random.SeedSequence(_entropy(seed, purpose, numbers)).generate_state(1, np.uint64)
    return int(words[0])


def _entropy(seed: int, purpose: str, numbers: tuple[int, ...]) -> list[int]:
    return [seed, int.from_bytes(purpose.encode(), "big"), *numbers]
