"""Memory that goes back to the system once it is let go: arrays on pages of their own."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["fresh_array"]


def fresh_array(entries: int, dtype: DTypeLike) -> NDArray:  # type: ignore[type-arg]
    """Return an array of so many numbers on pages that nobody has touched yet.

    What an allocator hands out may have been used before, and what it gets back it may keep: neither tells what memory
    costs, nor frees it.
    """
    # Shared ones, the default, are a file's in memory: dearer, never huge.
    pages = mmap.mmap(-1, max(1, entries * np.dtype(dtype).itemsize), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype, entries)
