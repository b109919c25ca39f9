"""Chunks of finished stores that were read for a part of their rows, kept for the readers of the other rows.

A chunk is read and decoded as one, and rows are asked for in blocks that end within chunks. Each process keeps the
latest such chunks, so that neighbouring blocks do not read a chunk twice.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from numpy.typing import NDArray

from dkgp.forks import fork_safe

# Eight chunks of the largest default size, one for each thread of a usual worker.
BUDGET_BYTES = 64 * 2**20


class KeptChunks:
    """The latest chunks within a byte budget, each read once however many threads ask for it at a time."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self.budget_bytes = budget_bytes
        self._chunks: OrderedDict[tuple[Hashable, ...], NDArray[Any]] = OrderedDict()
        self._n_bytes = 0
        self._reading: dict[Hashable, threading.Lock] = {}
        self._lock = fork_safe(threading.Lock())

    def get(self, key: tuple[Hashable, ...], read: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """Return the chunk under a key that begins with its array; do not write to it. Errors as of `read`."""
        with self._lock:
            if key in self._chunks:
                self._chunks.move_to_end(key)
                return self._chunks[key]
            gate = self._reading.setdefault(key, fork_safe(threading.Lock()))
        with gate:
            with self._lock:
                if key in self._chunks:
                    return self._chunks[key]
            try:
                chunk = read()
                with self._lock:
                    self._keep(key, chunk)
            finally:
                with self._lock:
                    self._reading.pop(key, None)
        return chunk

    def forget(self, array: Hashable) -> None:
        """Forget the chunks of an array."""
        with self._lock:
            for key in [key for key in self._chunks if key[0] == array]:
                self._n_bytes -= self._chunks.pop(key).nbytes

    def _keep(self, key: tuple[Hashable, ...], chunk: NDArray[Any]) -> None:
        if chunk.nbytes > self.budget_bytes or key in self._chunks:
            return
        self._chunks[key] = chunk
        self._n_bytes += chunk.nbytes
        while self._n_bytes > self.budget_bytes:
            self._n_bytes -= self._chunks.popitem(last=False)[1].nbytes


KEPT_CHUNKS = KeptChunks()
