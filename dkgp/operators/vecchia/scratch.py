"""Leaves on disk: those that a worker's memory cannot hold lie in one file without a name, gone with the process.

Leaves are read for each use and not mapped: pages of a mapped file count as the process's memory.
"""

from __future__ import annotations

import os
import tempfile
import threading
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.cache import worker_scratch
from dkgp.operators.vecchia.leaf import Leaf


class ScratchFile:
    """A file that leaves are appended to; no other process sees it, and it goes with this one however that ends."""

    # For the cache, which weighs its content; a file without references is closed, and gone.
    nbytes = 1

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="dkgp-leaves-", dir=worker_scratch())  # noqa: SIM115
        self._lock = threading.Lock()
        self._end = 0

    def append(self, leaf: Leaf) -> SpilledLeaf:
        """Write a leaf; `OSError` where the disk is full, which leaves the file as it was."""
        with self._lock:
            start = end = self._end
            try:
                for array in (leaf.values, leaf.projected):
                    end = self._write(array, end)
            except OSError:
                os.ftruncate(self._file.fileno(), start)
                raise
            self._end = end
        empty = np.empty(0, np.float32)
        shapes = (leaf.values.shape, leaf.projected.shape)
        return SpilledLeaf(self, start, shapes, replace(leaf, values=empty, projected=empty, spilled=True))

    def _write(self, array: NDArray[np.float32], place: int) -> int:
        remaining = _bytes_of(array)
        while remaining:
            written = os.pwrite(self._file.fileno(), remaining, place)
            remaining, place = remaining[written:], place + written
        return place

    def read(self, place: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Read an array; `OSError` where it is not all there."""
        array = np.empty(shape, np.float32)
        remaining = _bytes_of(array)
        while remaining:
            count = os.preadv(self._file.fileno(), [remaining], place)
            if not count:
                raise OSError(f"a scratch file of leaves ends at byte {place}; it was longer when it was written")
            remaining, place = remaining[count:], place + count
        return array


@dataclass(frozen=True)
class SpilledLeaf:
    """A leaf in a scratch file."""

    file: ScratchFile
    start: int
    shapes: tuple[tuple[int, ...], ...]
    leaf: Leaf
    nbytes: int = 1

    def read(self) -> Leaf:
        """The leaf, in memory."""
        values = self.file.read(self.start, self.shapes[0])
        return replace(self.leaf, values=values, projected=self.file.read(self.start + values.nbytes, self.shapes[1]))


def _bytes_of(array: NDArray[np.float32]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
