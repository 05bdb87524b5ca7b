"""Large memory pages. Separate from `memory.py`, so that PyTorch is not imported before the setting is made."""

import os


def use_large_pages() -> None:
    """Let PyTorch allocate large tensors in pages of 2 MB; it reads the setting once, for its first tensor.

    Every training step frees and allocates its activations. With pages of 4 KB, each zeroed first, that takes up to a
    fifth of its time. A value that the user has set is kept.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
