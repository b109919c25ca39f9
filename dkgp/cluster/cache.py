"""Memory of a worker between rounds, within byte budgets: prepared features of row blocks, and kernel matrix tiles.

The cache can always be rebuilt from the store, so losing it (a worker dies, a block is evicted) costs time and nothing
else. The budget of tiles is the user's, or a share of the available memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import psutil

# Public as `dkgp.cluster.FeatureCache`.
from dkgp.forks import FeatureCache as FeatureCache

_WORKER_CACHE = FeatureCache()


def worker_cache() -> FeatureCache:
    """The cache of this process; workers that share a process share it."""
    return _WORKER_CACHE


_scratch: str | None = None


def worker_scratch() -> str | None:
    """The folder to which this process's cache spills; None for the system's place for temporary files."""
    return _scratch


def set_worker_scratch(folder: str) -> None:
    """Set the folder of `worker_scratch`; called in worker processes."""
    global _scratch
    _scratch = folder


# By default a third of a worker's memory, or of the available memory where workers have no limit.
SHARE = 3
# The most that a budget of dkgp's choice takes where tiles pay, but not enough for the whole share.
MODEST_BYTES = 1024**3


@dataclass(frozen=True)
class TileBudget:
    """Budget of the tiles that a worker may keep of the kernel matrix between products."""

    # In each worker's process.
    bytes: int = 0
    # True of a budget that dkgp has chosen: workers measure whether it pays (see `dkgp.operators.keeping`).
    measured: bool = False
    # Products with the whole matrix that the run is foreseen to take; None where the solver foresees them on its way.
    products: float | None = None

    @property
    def modest_bytes(self) -> int:
        """Bytes that may be kept where that pays at all; more of a measured budget only where much is gained."""
        return min(self.bytes, MODEST_BYTES) if self.measured else self.bytes


def budget_here(size: int | str, processes: int = 1, worker_memory_bytes: int | None = None) -> TileBudget:
    """The budget of each of so many worker processes on this machine; `size` is a number of bytes, or "auto"."""
    if isinstance(size, int):
        return TileBudget(size)
    memory = worker_memory_bytes or int(psutil.virtual_memory().available) // max(1, processes)
    return TileBudget(memory // SHARE, measured=True)


def budget_elsewhere(size: int | str, workers: Iterable[Mapping[str, Any]]) -> TileBudget:
    """The budget of each worker that a scheduler describes; nothing where one has no limit, which hides its memory."""
    if isinstance(size, int):
        return TileBudget(size)
    memory = min((int(worker.get("memory_limit") or 0) for worker in workers), default=0)
    return TileBudget(memory // SHARE, measured=True)
