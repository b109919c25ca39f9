"""Budgets of tiles that workers keep of a kernel matrix: as a user says, or a share of the memory that they have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import psutil

# By default a third of a worker's memory, or of what is available where workers have no limit.
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
