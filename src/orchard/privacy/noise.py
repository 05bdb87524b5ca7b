"""Where noise and Poisson samples come from: a key that nobody else has, or in simulations the seed.

Each draw has a generator of its own, a pure function of the key and of what it is for, so that a resumed round draws
the same again. BLAKE2b makes its key: who sees one draw learns nothing of the others.
"""

import hashlib
import secrets

import numpy as np

BYTES = 32


class Noise:
    """Draws from a key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def of_seed(cls, seed: int, client: int) -> "Noise":
        """Return the noise of a client in a simulation, which everybody can repeat who knows the seed."""
        return cls(hashlib.blake2b(f"simulated noise of client {client} with seed {seed}".encode()).digest())

    @classmethod
    def secret(cls) -> "Noise":
        """Return noise that nobody can repeat."""
        return cls(secrets.token_bytes(BYTES))

    def of(self, what: bytes) -> "Noise":
        """Return noise that is independent of all noise for something else."""
        return Noise(hashlib.blake2b(what, key=self._key[:64], digest_size=BYTES).digest())

    def generator(self, draw: int) -> np.random.Generator:
        """Return the generator of one draw."""
        words = np.frombuffer(self.of(f"draw {draw}".encode())._key, np.uint64)
        return np.random.Generator(np.random.Philox(key=words[:2], counter=np.array([0, 0, words[2], words[3]])))
