"""Budgets of tiles that workers keep of a kernel matrix: as a user says, or a share of the memory that they have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import psutil

# Unless a user says how much: one part in so many of a worker's memory, or of what is available where workers have no
# limit.
SHARE = 3
# What dkgp's own choice takes without a gain that is worth a share of the memory.
MODEST_BYTES = 1024**3


@dataclass(frozen=True)
class TileBudget:
    """Budget of the tiles that a worker may keep of the kernel matrix between products."""

    # In each worker's process.
    bytes: int = 0
    # Workers find out if it pays (see `dkgp.operators.keeping`): a budget of dkgp's own choice.
    measured: bool = False
    # That the run is foreseen to take with the whole matrix; a run that foresees none tells on its way.
    products: float | None = None

    @property
    def modest_bytes(self) -> int:
        """Bytes that may be kept where it pays at all; of dkgp's own, more only where much is gained."""
        return min(self.bytes, MODEST_BYTES) if self.measured else self.bytes


def budget_here(wanted: int | str, processes: int = 1, worker_memory_bytes: int | None = None) -> TileBudget:
    """The budget of each of so many worker processes on this machine; `wanted` are bytes, or "auto"."""
    if isinstance(wanted, int):
        return TileBudget(wanted)
    memory = worker_memory_bytes or int(psutil.virtual_memory().available) // max(1, processes)
    return TileBudget(memory // SHARE, measured=True)


def budget_elsewhere(wanted: int | str, workers: Iterable[Mapping[str, Any]]) -> TileBudget:
    """The budget of each worker that a scheduler describes; one without a limit says nothing of the memory it has."""
    if isinstance(wanted, int):
        return TileBudget(wanted)
    memory = min((int(worker.get("memory_limit") or 0) for worker in workers), default=0)
    return TileBudget(memory // SHARE, measured=True)
