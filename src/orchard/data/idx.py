"""The idx format of MNIST and its kin: a magic number, the sizes, then bytes, all inside gzip."""

import gzip
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from orchard.errors import Refusal

UNSIGNED_BYTE = 0x08


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes, refusing anything that is not exactly that."""
    try:
        with gzip.open(path) as file:
            content = file.read()
    except FileNotFoundError:
        raise Refusal(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise Refusal(f"{path}: is damaged or not gzip: {error}") from None
    header = 4 * (1 + dimensions)
    if content[:4] != bytes((0, 0, UNSIGNED_BYTE, dimensions)) or len(content) < header:
        raise Refusal(f"{path}: is not an idx file of bytes in {dimensions} dimensions")
    shape = [int(size) for size in np.frombuffer(content, ">u4", count=dimensions, offset=4)]
    expected = int(np.prod(shape))
    if len(content) != header + expected:
        raise Refusal(f"{path}: announces {expected} bytes of data but holds {len(content) - header}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
