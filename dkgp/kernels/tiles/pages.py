"""Memory that goes back to the system once it is let go: arrays on pages of their own."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import DTypeLike, NDArray


def fresh_array(entries: int, dtype: DTypeLike) -> NDArray:  # type: ignore[type-arg]
    """An array of so many numbers on untouched pages.

    An allocator's memory may have been used before, and may stay with it after use: its price could not be measured,
    and it might not be freed.
    """
    # Shared ones, the default, are a file's in memory: dearer, never huge.
    pages = mmap.mmap(-1, max(1, entries * np.dtype(dtype).itemsize), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype, entries)
