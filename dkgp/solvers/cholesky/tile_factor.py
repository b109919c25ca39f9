"""A Cholesky factor of Kbar in tiles: which tile is computed when, and how a system is solved with them."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkgp.cluster.executors.base import BlockExecutor, BlockTask, PendingRound, split_evenly
from dkgp.data.stores.tile_store import TileStore
from dkgp.errors import CheckpointError, MemoryBudgetError, NumericalError, StorageError
from dkgp.forks import remove_with
from dkgp.operators.base import FloatArray, Variances
from dkgp.operators.block_tasks import BlockContext
from dkgp.solvers.cholesky.factor_tasks import (
    PanelTiles,
    TileContext,
    TileLayout,
    digest,
    digest_task,
    panel_task,
    product_task,
    verify_task,
)
from dkgp.solvers.cholesky.memory_tiles import Tiles

FORMAT_VERSION = 1
# Tiles of a panel that a task computes together: each shares the reading of a row of tiles with the others.
MOST_ROWS_AT_ONCE = 4


class BrokenDownError(NumericalError):
    """The matrix, as rounded to the tiles' type, is not positive definite; `sample` is where that showed."""

    def __init__(self, sample: int) -> None:
        super().__init__(f"the factorisation broke down at sample {sample}")
        self.sample = sample


class FactoredSystem(Protocol):
    """The matrix that is factored, and who does the work: an operator, or what stands for one."""

    @property
    def executor(self) -> BlockExecutor:
        """Whose memory and threads the work is planned for."""

    @property
    def context(self) -> BlockContext:
        """Inputs and kernel."""

    @property
    def noise(self) -> Variances:
        """Variances that are added to the diagonal."""

    def submit(
        self, name: str, task: BlockTask, arguments: tuple[Any, ...], groups: Sequence[Sequence[Any]]
    ) -> PendingRound:
        """Start a round; see `Rounds.submit`."""


@dataclass(frozen=True)
class SystemOf:
    """A system without an operator: its rounds are the executor's, and nobody counts entries."""

    executor: BlockExecutor
    context: BlockContext
    noise: Variances

    def submit(
        self, name: str, task: BlockTask, arguments: tuple[Any, ...], groups: Sequence[Sequence[Any]]
    ) -> PendingRound:
        """Start a round; see `Rounds.submit`."""
        return self.executor.submit(name, task, arguments, groups)


class TileFactor:
    """L of Kbar = L L', in tiles.

    - `system`: its executor does the work.
    - `place`: where the tiles lie: memory, or a folder, where what a factorisation of the same matrix left is taken
      over. None takes a folder of its own in the system's place for temporary files, removed when this object is.
    - `memory_bytes`: what the tasks of one process may hold.
    - `disk_budget_bytes`: what the tiles may take; by default, what the disk has free.
    - `expanded`: whether distances are; see `TileEvaluator`.

    Raises `MemoryBudgetError`, `StorageError`: memory or disk do not suffice; before anything is computed;
    `CheckpointError`: the folder holds tiles of another matrix.
    """

    def __init__(
        self,
        system: FactoredSystem,
        layout: TileLayout,
        place: str | Tiles | None,
        memory_bytes: int,
        disk_budget_bytes: int | None,
        *,
        expanded: bool | None = None,
    ) -> None:
        self._system, self._executor = system, system.executor
        self._executor.require_one_arithmetic()
        self.layout = layout
        self._parallelism, self._rows_at_once = _plan(system.executor, layout, memory_bytes)
        if place is None:
            place = tempfile.mkdtemp(prefix="dkgp-tiles-")
            # What a kill leaves behind is the system's to clear.
            remove_with(self, place)
        self._store: Tiles = TileStore(place) if isinstance(place, str) else place
        self._tiles = TileContext(system.context, self._store, layout, system.noise, expanded)
        self._held = self._take_over()
        _check_disk(self._store, layout, len(self._held), disk_budget_bytes)
        if not self._held:
            self._store.create(self._description())

    @property
    def url(self) -> str:
        """The place of the tiles."""
        return self._store.url

    @property
    def tiles(self) -> TileContext:
        """The tiles, for tasks that read them."""
        return self._tiles

    @property
    def is_complete(self) -> bool:
        """True if no tile is missing."""
        return len(self._held) == self.layout.n_tiles

    def complete(self, panels: int) -> None:
        """Compute what is missing of the first `panels` block columns; tiles that are there stay as they are.

        Raises `BrokenDownError`: the matrix is not positive definite in the tiles' type.
        """
        for k in range(panels):
            if not self._holds(k, k):
                self._run([[(k, (k,))]])
            missing = [i for i in range(k + 1, self.layout.n_panels) if not self._holds(i, k)]
            if missing:
                self._run(self._cut(k, missing))

    def solve(self, right: FloatArray) -> FloatArray:
        """About (L L')^-1 B in the tiles' precision, for B (n, t): a preconditioner."""
        self.complete(self.layout.n_panels)
        # Residuals near the end are small: scaled, they stay clear of float32's limits.
        scale = np.abs(right).max(axis=0)
        scale[scale == 0.0] = 1.0
        solution = right / scale
        panels = range(self.layout.n_panels)
        for k in panels:
            self._substitute(solution, k, [(i, k) for i in panels[k + 1 :]], transposed=False)
        for k in reversed(panels):
            self._substitute(solution, k, [(k, j) for j in panels[:k]], transposed=True)
        return np.asarray(solution * scale)

    def remove(self) -> None:
        """Remove the tiles, and the folder where nothing else lies in it."""
        self._store.clear()
        self._held.clear()

    def _substitute(self, solution: FloatArray, k: int, places: list[tuple[int, int]], *, transposed: bool) -> None:
        """Solve with the tile (k, k) and take the result's part off the other rows."""
        rows = slice(*self.layout.bounds(k))
        part: NDArray[Any] = scipy.linalg.solve_triangular(
            self._tiles.read(k, k),
            solution[rows].astype(self.layout.dtype),
            lower=True,
            trans="T" if transposed else "N",
            check_finite=False,
        )
        solution[rows] = part
        groups = split_evenly(places, self._parallelism) if places else []
        arguments = (self._tiles, part, transposed)
        products = self._executor.submit("ksubstitute", product_task, arguments, groups).result() if groups else []
        for (i, j), product in zip(places, products, strict=True):
            solution[slice(*self.layout.bounds(j if transposed else i))] -= product

    def _holds(self, i: int, k: int) -> bool:
        return self.layout.name(i, k) in self._held

    def _cut(self, k: int, rows: list[int]) -> list[list[PanelTiles]]:
        """Tasks for tiles of panel k; that of (k + 1, k) goes on to (k + 1, k + 1), which needs no other of them."""
        tasks: list[list[PanelTiles]] = []
        for part in split_evenly(rows, self._parallelism):
            runs: list[PanelTiles] = []
            if part[0] == k + 1 and not self._holds(k + 1, k + 1):
                runs += [(k, (k + 1,)), (k + 1, (k + 1,))]
                part = part[1:]
            step = self._rows_at_once
            runs += [(k, tuple(part[first : first + step])) for first in range(0, len(part), step)]
            tasks.append(runs)
        return tasks

    def _run(self, tasks: list[list[PanelTiles]]) -> None:
        results = self._system.submit("kpanel", panel_task, (self._tiles,), tasks).result()
        runs = [run for task in tasks for run in task]
        for (k, rows), failed in zip(runs, results, strict=True):
            if failed:
                raise BrokenDownError(self.layout.bounds(k)[0] + failed - 1)
            self._held.update(self.layout.name(i, k) for i in rows)

    def _description(self) -> dict[str, Any]:
        context, noise = self._system.context, self._system.noise
        groups = split_evenly(range(context.n_blocks), self._executor.parallelism)
        digests = self._executor.submit("kdigest", digest_task, (context,), groups).result()
        described = {
            "format": FORMAT_VERSION,
            "inputs": hashlib.sha256("".join(digests).encode()).hexdigest(),
            "n": context.n,
            "kernel": context.kernel.to_json(),
            "noise_variance": noise if isinstance(noise, float) else f"by sample, {digest(noise)}",
            "tile_rows": self.layout.rows,
            "precision": self.layout.precision,
        }
        plain: dict[str, Any] = json.loads(json.dumps(described))
        return plain

    def _take_over(self) -> set[str]:
        """Names of the whole tiles of this matrix that are there already; damaged ones are removed."""
        description = self._store.description()
        if description is None:
            return set()
        for name, expected in self._description().items():
            if description.get(name) != expected:
                raise CheckpointError(
                    f"the tiles in '{self.url}' belong to another factorisation: their {name.replace('_', ' ')} is "
                    f"{description.get(name)!r}; this one's is {expected!r}. Name another folder, or remove that one"
                )
        self._store.drop_temporaries()
        panels = range(self.layout.n_panels)
        names = self._store.names()
        places = [(i, k) for i in panels for k in panels[: i + 1] if self.layout.name(i, k) in names]
        if not places:
            return set()
        groups = split_evenly(places, self._parallelism)
        whole = self._executor.submit("kverify", verify_task, (self._tiles,), groups).result()
        for (i, k), sound in zip(places, whole, strict=True):
            if not sound:
                self._store.remove(self.layout.name(i, k))
        return {self.layout.name(i, k) for (i, k), sound in zip(places, whole, strict=True) if sound}


def _plan(executor: BlockExecutor, layout: TileLayout, memory_bytes: int) -> tuple[int, int]:
    """Tasks at once, and tiles that each computes together, within the memory of a process."""
    threads = max(1, executor.threads_per_process)
    for rows in range(MOST_ROWS_AT_ONCE, 0, -1):
        if threads * layout.task_bytes(rows) <= memory_bytes:
            return executor.parallelism, rows
    least = layout.task_bytes(1)
    if executor.shares_memory and least <= memory_bytes:
        return memory_bytes // least, 1
    count = 1 if executor.shares_memory else threads
    raise MemoryBudgetError(
        f"tiles of {layout.rows:,} rows need {count * least:,} bytes in a process ({count} tasks at a time of "
        f"{least:,} bytes each); memory_bytes allows {memory_bytes:,}. Lower tile_rows, or raise memory_bytes"
    )


def _check_disk(store: Tiles, layout: TileLayout, held: int, budget_bytes: int | None) -> None:
    needed = layout.disk_bytes
    if budget_bytes is not None and needed > budget_bytes:
        raise StorageError(
            f"the tiles of {layout.n:,} samples take {needed:,} bytes on disk; disk_budget_bytes allows "
            f"{budget_bytes:,}. Raise it, or choose another solver: 'gbcd' needs no disk"
        )
    free = store.free_bytes()
    remaining = needed - held * layout.tile_bytes
    if free is not None and remaining > free:
        raise StorageError(
            f"the tiles of {layout.n:,} samples take {max(remaining, 0):,} bytes more on disk; '{store.url}' has "
            f"{free:,} bytes free. Free some space, name a folder on another disk, or choose another solver: 'gbcd' "
            "needs no disk"
        )
