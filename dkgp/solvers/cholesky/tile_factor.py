"""A Cholesky factor of Kbar in tiles, on disk or in memory: tasks that make it, and systems that it solves.

Block column k of the factor L ("panel" k) is made from the panels before it, left-looking: tile (i, k) is
(K_ik - sum_{j<k} L_ij L_kj') L_kk^-T. Every tile is written once, and its bits depend on nothing but the matrix and the
cut into tiles: a task that runs twice, or a tile that is computed again years later, changes nothing. Tasks are
stateless: they read tiles, compute, and write tiles.

Systems L F = C and L'V = F are solved in place for many right-hand sides at once, block row after block row, and tile
after tile within one, in one order on any number of threads. Row-major (rows, t) is column-major (t, rows), which is
how the calls of BLAS read; a single right-hand side takes matrix-vector products, which read a tile at the speed of
memory.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy
from numpy.typing import NDArray

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import BlockExecutor, BlockTask, PendingRound, split_evenly
from dkgp.cluster.threads import in_parallel
from dkgp.data.stores.tile_store import TILE_HEADER_BYTES, TileStore
from dkgp.data.types import Json
from dkgp.errors import CheckpointError, MemoryBudgetError, NumericalError, StorageError, StoreError
from dkgp.forks import remove_with
from dkgp.kernels import Features, TileEvaluator
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, Variances, noise_at
from dkgp.operators.blas import blas
from dkgp.operators.block_tasks import BlockContext, centre_of
from dkgp.solvers.cholesky.dense import factor_lower, solve_lower, subtract_product, subtract_square

# One run: a panel and the rows of its tiles that are computed together.
PanelTiles = tuple[int, tuple[int, ...]]

# Tiles that are read while the ones before them are worked on.
READ_AHEAD = 2
# Kernel rows evaluated at a time, in float64 for tiles of any precision: rounded once, they stay positive definite
# longest.
PIECE_ROWS = 256


@dataclass(frozen=True)
class TileLayout:
    """The cut of the lower triangle into tiles.

    - `rows`: rows and columns of a tile, fewer in the last.
    - `precision`: type of the tiles.
    """

    n: int
    rows: int
    precision: Precision

    @property
    def n_panels(self) -> int:
        """Block rows, and block columns."""
        return -(-self.n // self.rows)

    @property
    def n_tiles(self) -> int:
        """Tiles in all."""
        return self.n_panels * (self.n_panels + 1) // 2

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the tiles."""
        return np.dtype(np.float32 if self.precision == "single" else np.float64)

    @property
    def tile_bytes(self) -> int:
        """Bytes of a whole tile."""
        return self.rows * self.rows * self.dtype.itemsize

    @property
    def disk_bytes(self) -> int:
        """Bytes of all tiles as files."""
        sizes = [stop - start for start, stop in map(self.bounds, range(self.n_panels))]
        entries = sum(size * sum(sizes[: i + 1]) for i, size in enumerate(sizes))
        return entries * self.dtype.itemsize + TILE_HEADER_BYTES * len(sizes) * (len(sizes) + 1) // 2

    def bounds(self, i: int) -> tuple[int, int]:
        """First sample of block row i and the first sample after it."""
        return i * self.rows, min((i + 1) * self.rows, self.n)

    def shape(self, i: int, k: int) -> tuple[int, int]:
        """Rows and columns of tile (i, k)."""
        (first, last), (left, right) = self.bounds(i), self.bounds(k)
        return last - first, right - left

    @staticmethod
    def name(i: int, k: int) -> str:
        """Name of tile (i, k) in the store."""
        return f"{i:05d}-{k:05d}"

    def task_bytes(self, rows_at_once: int) -> int:
        """Bytes of a task that computes so many tiles of a panel together."""
        return (rows_at_once + 2 + READ_AHEAD + 1) * self.tile_bytes + 16 * PIECE_ROWS * self.rows


@dataclass(frozen=True)
class TileContext:
    """Context of a task, besides its tiles."""

    context: BlockContext
    store: Tiles
    layout: TileLayout
    noise: Variances
    expanded: bool | None = None  # whether distances are; see `TileEvaluator`

    @property
    def evaluator(self) -> TileEvaluator:
        """Evaluator of the tiles of Kbar, before they are rounded."""
        source = self.context.source
        return TileEvaluator(self.context.kernel, "double", expanded=self.expanded, centre=centre_of(source))

    def read(self, i: int, k: int) -> NDArray[Any]:
        """Tile (i, k) of the factor."""
        layout = self.layout
        return self.store.read(layout.name(i, k), layout.shape(i, k), layout.dtype)

    def read_ahead(self, tiles: Sequence[tuple[int, int]]) -> Iterator[NDArray[Any]]:
        """Tiles one after the other, the next ones on their way while one is worked on."""
        if isinstance(self.store, MemoryTiles):
            yield from (self.read(i, k) for i, k in tiles)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="dkgp-tiles") as reader:
            pending: deque[Future[NDArray[Any]]] = deque()
            try:
                for i, k in tiles:
                    pending.append(reader.submit(self.read, i, k))
                    if len(pending) > READ_AHEAD:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:
                for future in pending:
                    future.cancel()

    def evaluate(self, i: int, k: int) -> NDArray[Any]:
        """Tile (i, k) of Kbar, from the inputs."""
        layout = self.layout
        rows, columns = self.features(i), self.features(k)
        evaluator = self.evaluator
        tile = np.empty(layout.shape(i, k), layout.dtype)
        for first in range(0, rows.n, PIECE_ROWS):
            last = min(first + PIECE_ROWS, rows.n)
            piece = evaluator.tile(columns, rows.slice(first, last)).T
            if i == k:
                start, _ = layout.bounds(i)
                noise = noise_at(self.noise, slice(start + first, start + last))
                piece[np.arange(last - first), np.arange(first, last)] += noise
            tile[first:last] = piece
        return tile

    def features(self, i: int) -> Features:
        """The samples of block row i, prepared in float64, from this worker's cache or the store."""

        def build() -> Features:
            return self.evaluator.prepare(self.context.source.inputs(*self.layout.bounds(i)))

        return worker_cache().get((self.context.run_id, f"tile-rows-{self.layout.rows}", i), build)


@needs_one_arithmetic
def panel_task(tiles: TileContext, runs: list[PanelTiles]) -> list[int]:
    """Compute and write tiles of a panel, one run of them after the other, `(k, (k,))` being the one on the diagonal.

    For each run comes back 0, or the number (from 1) of the row of a tile on the diagonal where it proved not to be
    positive definite and was not written.
    """
    return [_diagonal(tiles, k) if rows == (k,) else _below(tiles, k, rows) for k, rows in runs]


def _diagonal(tiles: TileContext, k: int) -> int:
    block = tiles.evaluate(k, k)
    for left in tiles.read_ahead([(k, j) for j in range(k)]):
        subtract_square(block, left)
    failed = factor_lower(block)
    if not failed:
        tiles.store.write(tiles.layout.name(k, k), block)
    return failed


def _below(tiles: TileContext, k: int, rows: tuple[int, ...]) -> int:
    blocks = [tiles.evaluate(i, k) for i in rows]
    places = [(i, j) for j in range(k) for i in (k, *rows)]
    tiles_read = tiles.read_ahead([*places, (k, k)])
    for _ in range(k):
        right = next(tiles_read)
        for block in blocks:
            subtract_product(block, next(tiles_read), right)
    corner = next(tiles_read)
    for i, block in zip(rows, blocks, strict=True):
        solve_lower(corner, len(corner), block)
        tiles.store.write(tiles.layout.name(i, k), block)
    return 0


@needs_one_arithmetic
def product_task(
    tiles: TileContext, vector: NDArray[Any], transposed: bool, places: list[tuple[int, int]]
) -> list[NDArray[Any]]:
    """L_ik @ v (or L_ik' @ v) for each tile: (rows, t) in the tiles' type."""
    tiles_read = tiles.read_ahead(places)
    return [(tile.T if transposed else tile) @ vector for tile in tiles_read]


def verify_task(tiles: TileContext, places: list[tuple[int, int]]) -> list[bool]:
    """Tell whether each tile is whole."""
    return [_is_whole(tiles, i, k) for i, k in places]


def _is_whole(tiles: TileContext, i: int, k: int) -> bool:
    try:
        tiles.read(i, k)
    except StoreError:
        return False
    return True


def digest_task(context: BlockContext, blocks: list[int]) -> list[str]:
    """SHA-256 of the inputs of each block."""
    return [digest(context.source.inputs(*context.bounds(block))) for block in blocks]


def digest(numbers: FloatArray) -> str:
    """SHA-256 of an array's numbers."""
    return hashlib.sha256(np.ascontiguousarray(numbers, dtype="<f8").data).hexdigest()


class Tiles(Protocol):
    """A place for the tiles of a factor: in a folder (`TileStore`), or in memory."""

    url: str

    def create(self, description: Json) -> None:
        """Begin, with a description of the matrix and its tiles."""

    def description(self) -> Json | None:
        """Return the description passed to `create`; None without tiles to take over."""

    def names(self) -> set[str]:
        """Return the names of the tiles that are there."""

    def write(self, name: str, values: NDArray[Any]) -> None:
        """Write one tile, whole or not at all."""

    def read(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Read one tile of a known shape; `StoreError` where it is missing or damaged."""

    def remove(self, name: str) -> None:
        """Remove one tile."""

    def drop_temporaries(self) -> None:
        """Remove the temporary files of killed writers."""

    def clear(self) -> None:
        """Remove all."""

    def free_bytes(self) -> int | None:
        """Return the free bytes; None if they cannot be known."""


class MemoryTiles:
    """Tiles by name, handed out as they are: nobody changes one after it is written. Not for other processes.

    Parameters
    ----------
    nbytes : int
        Bytes of all tiles together.
    """

    url = "memory"

    def __init__(self, nbytes: int = 0) -> None:
        self.nbytes = nbytes
        self._tiles: dict[str, NDArray[Any]] = {}
        self._description: Json | None = None

    def __reduce__(self) -> str:
        raise TypeError("tiles in memory serve the process that they are in; workers elsewhere need a folder")

    def create(self, description: Json) -> None:
        """Begin anew."""
        self._tiles.clear()
        self.begin(description)

    def begin(self, description: Json) -> None:
        """Store the description of the matrix and its tiles."""
        self._description = description

    def description(self) -> Json | None:
        """Return the description passed to `create`; None before."""
        return self._description

    def names(self) -> set[str]:
        """Return the names of the tiles."""
        return set(self._tiles)

    def write(self, name: str, values: NDArray[Any]) -> None:
        """Keep one tile."""
        self._tiles[name] = np.ascontiguousarray(values)

    def read(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return one tile, the array itself."""
        tile = self._tiles.get(name)
        if tile is None or tile.shape != shape or tile.dtype != dtype:
            raise StoreError(f"there is no tile {name} of shape {shape} in memory")
        return tile

    def remove(self, name: str) -> None:
        """Drop one tile."""
        self._tiles.pop(name, None)

    def drop_temporaries(self) -> None:
        """Nothing is ever half written."""

    def clear(self) -> None:
        """Drop all."""
        self._tiles.clear()
        self._description = None

    def free_bytes(self) -> int | None:
        """Return None: the creator has checked the memory."""
        return None


def substitute(tiles: TileContext, right: FloatArray, threads: int, *, transposed: bool = False) -> None:
    """C becomes F = L^-1 C, or transposed F becomes V = L^-T F, for float64 (n, t) in rows.

    Each corner is solved in turn, and its product subtracted from the later block rows, which threads share.
    """
    rows = [slice(*tiles.layout.bounds(k)) for k in range(tiles.layout.n_panels)]
    order = range(len(rows))[::-1] if transposed else range(len(rows))
    for position, k in enumerate(order):
        _solve(tiles.read(k, k), right[rows[k]], transposed=transposed)
        later = order[position + 1 :]

        def take_off(index: int, k: int = k, later: Sequence[int] = later) -> None:
            i = later[index]
            tile = tiles.read(k, i) if transposed else tiles.read(i, k)
            _subtract(tile, right[rows[k]], right[rows[i]], transposed=transposed)

        in_parallel(take_off, len(later), threads)


def _subtract(tile: FloatArray, done: FloatArray, rest: FloatArray, *, transposed: bool) -> None:
    """rest -= L_ik done, or L_ki' done."""
    count, (rows, columns) = done.shape[1], tile.shape
    if count == 1:
        blas("gemv", b"N" if transposed else b"T", columns, rows, -1.0, tile, columns, done, 1, 1.0, rest, 1)
    elif transposed:
        blas("gemm", b"N", b"T", count, columns, rows, -1.0, done, count, tile, columns, 1.0, rest, count)
    else:
        blas("gemm", b"N", b"N", count, rows, columns, -1.0, done, count, tile, columns, 1.0, rest, count)


def _solve(tile: FloatArray, rows: FloatArray, *, transposed: bool) -> None:
    order, count = len(tile), rows.shape[1]
    if count == 1:
        blas("trsv", b"U", b"N" if transposed else b"T", b"N", order, tile, order, rows, 1)
    else:
        flag = b"T" if transposed else b"N"
        blas("trsm", b"R", b"U", flag, b"N", count, order, 1.0, tile, order, rows, count)


FORMAT_VERSION = 1
# Tiles of a panel that a task computes together: each shares the reading of a row of tiles with the others.
MOST_ROWS_AT_ONCE = 4


class BrokenDownError(NumericalError):
    """The matrix, as rounded to the tiles' type, is not positive definite; `sample` is where that showed."""

    def __init__(self, sample: int) -> None:
        super().__init__(f"the factorisation broke down at sample {sample}")
        self.sample = sample


class FactoredSystem(Protocol):
    """The matrix that is factored, and its executor: an operator, or an object like one."""

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
    - `place`: where the tiles lie: memory, or a folder, whose tiles of the same matrix are taken over. None
      takes a folder of its own in the system's place for temporary files, removed with this object.
    - `memory_bytes`: memory limit of the tasks of one process.
    - `disk_budget_bytes`: limit of the tiles; by default the free space of the disk.
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
            # The operating system removes the folder of a killed process.
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
        """Compute the missing tiles of the first `panels` block columns; existing ones stay unchanged.

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
